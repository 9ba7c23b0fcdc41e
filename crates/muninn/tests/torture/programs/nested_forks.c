// Children of children, five deep. Each changes a part of its own and must find the others' as they
// were; every second one ends before its child.
#include "torture.h"

enum { DEEP = 5 };
static const size_t PART = 8 * MIB;

int main(void) {
    unsigned char *at = take(PART * (DEEP + 1));
    for (int i = 0; i <= DEEP; i++) fill(at + i * PART, PART, 1 + i);
    int done[2];
    MUST(pipe(done) == 0);
    int level = 0;
    pid_t child = 0;
    while (level < DEEP) {
        child = fork();
        MUST(child >= 0);
        if (child != 0) break;
        level++;
        fill(at + level * PART, PART, 100 + level);
    }
    if (level % 2 == 0 && level != 0 && level != DEEP) _exit(0);
    for (int i = 0; i <= DEEP; i++) CHECK(at + i * PART, PART, i == 0 || i > level ? 1 + i : 100 + i, "a level");
    if (level == DEEP) {
        close(done[0]);
        MUST(write(done[1], "x", 1) == 1);
        _exit(0);
    }
    wait_right(child, "the level below");
    if (level != 0) _exit(0);
    close(done[1]);
    char byte;
    if (read(done[0], &byte, 1) != 1) WRONG("the deepest did not finish\n");
    say("%d levels are right\n", DEEP);
}
