// Its memory is far when its companion is killed; so is its child's, which was made without libc. Both are
// to read right bytes or to end.
#include "torture.h"

static unsigned char *at;

int main(void) {
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, NULL);
    at = take(MUCH);
    fill(at, MUCH, 1);
    say("filled\n");
    int signal;
    sigwait(&go, &signal);
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    MUST(child >= 0);
    if (child == 0) {
        sigwait(&go, &signal);
        CHECK(at, MUCH, 1, "child");
        say("the child is right\n");
        _exit(0);
    }
    say("forked %d\n", child);
    for (;;) CHECK(at, MUCH, 1, "parent");
}
