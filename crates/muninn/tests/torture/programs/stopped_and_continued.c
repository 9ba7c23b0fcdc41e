// Pages, while a child of it stops and continues it again and again.
#include "torture.h"

int main(void) {
    pid_t parent = getpid(), child = fork();
    MUST(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 20; i++) {
            usleep(10000);
            kill(parent, SIGSTOP);
            usleep(10000);
            kill(parent, SIGCONT);
        }
        _exit(0);
    }
    unsigned char *at = take(MUCH);
    int status, round = 0;
    do {
        round++;
        fill(at, MUCH, round);
        CHECK(at, MUCH, round, "memory");
    } while (waitpid(child, &status, WNOHANG) == 0);
    if (status != 0) WRONG("the child's status: %x\n", status);
    CHECK(at, MUCH, round, "memory in the end");
    say("right through twenty stops\n");
}
