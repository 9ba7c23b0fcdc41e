// Fills 48 MiB and looks at it, in itself and in a child: what wrappers start.
#include "torture.h"

int main(void) {
    unsigned char *at = take(MUCH);
    for (int round = 1; round <= 3; round++) {
        fill(at, MUCH, round);
        CHECK(at, MUCH, round, "memory");
    }
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, MUCH, 3, "child");
        _exit(0);
    }
    wait_right(child, "child");
    say("right, user %d\n", (int)getuid());
}
