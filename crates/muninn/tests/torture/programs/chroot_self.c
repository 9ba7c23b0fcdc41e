// Goes into an empty root, then pages and forks. WHEN: before or after its memory was filled.
#include "torture.h"

int main(int count, char **words) {
    MUST(count == 2);
    unsigned char *at = take(MUCH);
    int before = !strcmp(words[1], "before");
    if (!before) fill(at, MUCH, 1);
    char name[] = "root-XXXXXX";
    MUST(mkdtemp(name));
    MUST(chroot(name) == 0);
    MUST(chdir("/") == 0);
    MUST(access("/proc", F_OK) != 0);
    if (before) fill(at, MUCH, 1);
    CHECK(at, MUCH, 1, "in the new root");
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            CHECK(at, MUCH, 1, "child");
            fill(at, MUCH, 2);
            CHECK(at, MUCH, 2, "child's own");
            _exit(0);
        }
        wait_right(child, "child");
    }
    CHECK(at, MUCH, 1, "parent");
    say("right in an empty root\n");
}
