// What is said of forks counts for the forks after it: a child that was made before reads what its parent
// had, although the parent advises MADV_WIPEONFORK or MADV_DONTFORK in the very next call.
#include "torture.h"
#include <linux/sched.h>

enum { BYTES = 64 * PAGE, ROUNDS = 40 };

static pid_t fork_by_hand(void) {
    struct clone_args args = {.exit_signal = SIGCHLD};
    return syscall(SYS_clone3, &args, sizeof args);
}

// A child, of a child that may itself be a few microseconds old.
static void one(unsigned char *at, int advice, int undo, const char *what) {
    pid_t child = fork_by_hand();
    if (child != 0) {
        int said = madvise(at, BYTES, advice);
        MUST(said == 0 && child > 0);
        wait_right(child, what);
        MUST(madvise(at, BYTES, undo) == 0);
        return;
    }
    // Its parent is ahead.
    usleep(2000);
    CHECK(at, BYTES, 1, what);
    _exit(0);
}

int main(void) {
    unsigned char *at = take(BYTES);
    fill(at, BYTES, 1);
    push_out();
    // On a busy machine it takes a moment until anything is far.
    usleep(500000);
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 8 == 0) push_out();
        if (round % 2) {
            one(at, MADV_WIPEONFORK, MADV_KEEPONFORK, "wiped too early");
            continue;
        }
        one(at, MADV_DONTFORK, MADV_DOFORK, "left out too early");
        pid_t child = fork_by_hand();
        MUST(child >= 0);
        if (child == 0) {
            one(at, MADV_DONTFORK, MADV_DOFORK, "grandchild");
            _exit(0);
        }
        wait_right(child, "child");
    }
    say("children have what there was\n");
}
