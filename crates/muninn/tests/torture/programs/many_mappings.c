// Six thousand mappings of four pages each, none beside another.
#include "torture.h"

enum { COUNT = 6000, BYTES = 4 * PAGE };

int main(void) {
    unsigned char *base = mmap(NULL, (size_t)COUNT * 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(base != MAP_FAILED);
    for (size_t i = 0; i < COUNT; i++) {
        unsigned char *at = base + i * 2 * BYTES;
        MUST(mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        fill(at, BYTES, i);
    }
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < COUNT; i++) CHECK(base + i * 2 * BYTES, BYTES, i + round, "a mapping");
        for (size_t i = 0; i < COUNT; i++) fill(base + i * 2 * BYTES, BYTES, i + round + 1);
    }
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < COUNT; i++) CHECK(base + i * 2 * BYTES, BYTES, i + 2, "a child's mapping");
        _exit(0);
    }
    wait_right(child, "child");
    say("%d mappings are right\n", COUNT);
}
