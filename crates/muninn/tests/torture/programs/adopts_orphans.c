// A program that is given the orphans of its descendants, and has children until there are none: whoever looks after it
// is not among them.
#include "torture.h"
#include <sys/prctl.h>

int main(int count, char **words) {
    if (count < 2) {
        MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
        execl("/proc/self/exe", words[0], "adopts", NULL);
        MUST(!"exec");
    }
    unsigned char *at = take(24 * MIB);
    fill(at, 24 * MIB, 1);
    push_out();
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            // Its own child becomes an orphan.
            if (fork() == 0) usleep(50000);
            _exit(0);
        }
    }
    alarm(30);
    while (wait(NULL) > 0 || errno == EINTR) {}
    CHECK(at, 24 * MIB, 1, "memory");
    push_out();
    CHECK(at, 24 * MIB, 1, "memory, later");
    say("right\n");
}
