// Forks without libc. HOW: clone, clone3. WHO ends first: parent, child.
#include "torture.h"
#include <linux/sched.h>

int main(int count, char **words) {
    MUST(count == 3);
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    struct clone_args args = {.exit_signal = SIGCHLD};
    long child = !strcmp(words[1], "clone") ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                                            : syscall(SYS_clone3, &args, sizeof args);
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, MUCH, 1, "child");
        fill(at, MUCH, 2);
        CHECK(at, MUCH, 2, "child's own");
        say("child is right\n");
        _exit(0);
    }
    if (!strcmp(words[2], "parent")) _exit(0);
    wait_right(child, "child");
    CHECK(at, MUCH, 1, "parent");
    say("parent is right\n");
}
