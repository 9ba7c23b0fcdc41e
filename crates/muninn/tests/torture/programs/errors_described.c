// Children that become another user, so that whoever looks after them meets errors, and execute something; the
// program describes errors of its own beside that, under a lock of the C library.
#include "torture.h"

int main(void) {
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            if (getuid() == 0) MUST(setreuid(65534, 65534) == 0);
            // About when it is handed over: the other side is gone in the middle of that.
            usleep(9000 + round * 125);
            execl("/bin/sh", "sh", "-c", "exit 7", NULL);
            _exit(99);
        }
        for (int i = 0; i < 100; i++) {
            MUST(strcmp(strerror(EACCES), "Permission denied") == 0);
            usleep(100);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) WRONG("a child ended with %x\n", status);
    }
    CHECK(at, MUCH, 1, "memory");
    say("right\n");
}
