// Starts other programs while its memory is far. HOW: vfork, spawn.
#include "torture.h"
#include <spawn.h>

extern char **environ;

int main(int count, char **words) {
    MUST(count == 2);
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    char *command[] = {"sh", "-c", "exit 3", NULL};
    for (int round = 0; round < 20; round++) {
        pid_t child;
        if (!strcmp(words[1], "vfork")) {
            // One that runs something, and one that only writes to its parent's memory and ends.
            volatile unsigned char *seen = at + (size_t)round * MIB;
            unsigned char before = *seen;
            child = vfork();
            if (child == 0) {
                if (round % 2) _exit(*seen == before ? 3 : 4);
                execv("/bin/sh", command);
                _exit(5);
            }
        } else {
            MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, command, environ) == 0);
        }
        MUST(child > 0);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) WRONG("child %d: status %x\n", round, status);
    }
    CHECK(at, MUCH, 1, "parent");
    say("twenty children ended as they should, and the parent is right\n");
}
