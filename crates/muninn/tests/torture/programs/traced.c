// One who traces a program sees the program's tasks and no others, and the program is not held up by that.
#include "torture.h"
#include <sys/ptrace.h>

static void be_traced(int how) {
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    raise(SIGSTOP);
    if (how == 1) execl("/bin/true", "true", NULL);
    if (how == 2) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        wait_right(child, "child");
    }
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    CHECK(at, MUCH, 1, "of one who is traced");
    _exit(0);
}

static int tasks(int how) {
    int status, seen = 0;
    pid_t child = fork(), stopped;
    MUST(child >= 0);
    if (child == 0) be_traced(how);
    MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL;
    MUST(ptrace(PTRACE_SETOPTIONS, child, 0, options) == 0);
    MUST(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    while ((stopped = waitpid(-1, &status, __WALL)) > 0) {
        if (!WIFSTOPPED(status)) {
            if (stopped == child && status != 0) WRONG("it ended with %x\n", status);
            continue;
        }
        seen += status >> 16 != 0;
        int signal = WSTOPSIG(status);
        ptrace(PTRACE_CONT, stopped, 0, signal == SIGTRAP || signal == SIGSTOP ? 0 : signal);
    }
    return seen;
}

int main(void) {
    unsigned char *at = take(24 * MIB);
    fill(at, 24 * MIB, 1);
    push_out();
    static const char *NAMES[] = {"memory", "exec", "fork"};
    for (int how = 0; how < 3; how++) say("%s: %d\n", NAMES[how], tasks(how));
    CHECK(at, 24 * MIB, 1, "memory");
}
