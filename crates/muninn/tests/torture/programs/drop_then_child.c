// Becomes nobody while little is in memory, as daemons do, and forks a child that fills much: the child's own files
// in /proc are not its own any more.
#include "torture.h"
#include <grp.h>

int main(void) {
    MUST(setgroups(0, NULL) == 0);
    MUST(setresgid(65534, 65534, 65534) == 0);
    MUST(setresuid(65534, 65534, 65534) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        unsigned char *at = take(MUCH);
        fill(at, MUCH, 1);
        CHECK(at, MUCH, 1, "child");
        fill(at, MUCH, 2);
        CHECK(at, MUCH, 2, "child again");
        _exit(0);
    }
    wait_right(child, "child");
    say("right, user %d\n", (int)getuid());
}
