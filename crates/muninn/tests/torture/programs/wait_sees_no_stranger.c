// Waits for any child of any kind: there is none but those that it made, and their ends are told once.
#include "torture.h"

static volatile int told;
static void child_ended(int signal) { (void)signal, told++; }

static void nobody(const char *when) {
    int status;
    siginfo_t info;
    if (waitpid(-1, &status, WNOHANG) != -1 || errno != ECHILD) WRONG("waitpid %s\n", when);
    if (wait4(-1, &status, WNOHANG | __WALL, NULL) != -1 || errno != ECHILD) WRONG("wait4 %s\n", when);
    if (wait4(-1, &status, WNOHANG | __WCLONE, NULL) != -1 || errno != ECHILD) WRONG("wait4 of clones %s\n", when);
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != -1 || errno != ECHILD)
        WRONG("waitid %s\n", when);
}

int main(void) {
    struct sigaction action = {.sa_handler = child_ended, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGCHLD, &action, NULL) == 0);
    nobody("at first");
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    nobody("with far memory");
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            nobody("in a child");
            CHECK(at, 4 * MIB, 1, "child");
            _exit(0);
        }
        int status;
        if (wait4(-1, &status, __WALL, NULL) != child || status != 0) WRONG("another child, or its status\n");
        nobody("after a child");
    }
    if (told != 20) WRONG("%d ends were told\n", told);
    CHECK(at, MUCH, 1, "parent");
    say("nobody but its children, %d ends told\n", told);
}
