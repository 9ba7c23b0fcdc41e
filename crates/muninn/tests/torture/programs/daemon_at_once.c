// Becomes a daemon: the parent ends at once, the child lives on, three times in a row.
#include "torture.h"

int main(void) {
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    for (int i = 0; i < 3; i++) {
        MUST(daemon(1, 1) == 0);
        CHECK(at, MUCH / 3, 1, "daemon");
    }
    CHECK(at, MUCH, 1, "daemon");
    fill(at, MUCH, 2);
    CHECK(at, MUCH, 2, "daemon's own");
    say("the daemon is right\n");
}
