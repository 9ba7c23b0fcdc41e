// Sends SIGTERM to its own group, with a handler, while its memory comes and goes.
#include "torture.h"

static volatile sig_atomic_t got;
static void handler(int signal) { (void)signal, got = 1; }

int main(void) {
    // A group of its own when it leads one; else that of whoever started it, as in a script.
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGTERM, &action, NULL) == 0);
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    MUST(kill(0, SIGTERM) == 0);
    if (!got) WRONG("the signal did not come\n");
    for (int round = 0; round < 5; round++) {
        CHECK(at, MUCH, 1 + round, "after the signal");
        fill(at, MUCH, 2 + round);
    }
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, MUCH, 6, "child");
        _exit(0);
    }
    wait_right(child, "child");
    say("the signal came, and memory is right\n");
}
