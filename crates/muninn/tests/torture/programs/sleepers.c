// COUNT children that sleep until their parent gets SIGTERM. HOW: fork, exec.
#include "torture.h"

int main(int argc, char **words) {
    MUST(argc == 3);
    int count = atoi(words[1]), exec = !strcmp(words[2], "exec");
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    MUST(sigprocmask(SIG_BLOCK, &term, NULL) == 0);
    unsigned char *at = take(4 * MIB);
    fill(at, 4 * MIB, 1);
    pid_t *children = calloc(count, sizeof *children);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        MUST(children[i] >= 0);
        if (children[i] == 0) {
            MUST(sigprocmask(SIG_UNBLOCK, &term, NULL) == 0);
            if (exec) execl("/bin/sleep", "sleep", "1000", NULL);
            for (;;) pause();
        }
    }
    say("ready\n");
    int signal;
    MUST(sigwait(&term, &signal) == 0);
    int ended = 0;
    for (int i = 0; i < count; i++) {
        int status;
        kill(children[i], SIGTERM);
        MUST(waitpid(children[i], &status, 0) == children[i]);
        ended += WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    }
    if (ended != count) WRONG("%d of %d slept to the end\n", ended, count);
    CHECK(at, 4 * MIB, 1, "parent");
    say("%d slept\n", count);
}
