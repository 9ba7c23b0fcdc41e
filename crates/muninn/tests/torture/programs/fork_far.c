// Fills MIB and forks; parent and child look at all of it. WHO: same, or dropped-before or dropped-after
// (becomes nobody before or after its memory was filled, then fills more and forks).
#include "torture.h"
#include <grp.h>

static void drop(void) {
    MUST(setgroups(0, NULL) == 0);
    MUST(setresgid(65534, 65534, 65534) == 0);
    MUST(setresuid(65534, 65534, 65534) == 0);
}

int main(int count, char **words) {
    MUST(count == 3);
    size_t bytes = strtoull(words[1], NULL, 10) * MIB;
    if (!strcmp(words[2], "dropped-before")) drop();
    unsigned char *at = take(bytes);
    fill(at, bytes, 1);
    if (!strcmp(words[2], "dropped-after")) drop();
    CHECK(at, bytes, 1, "before the fork");
    unsigned char *more = take(16 * MIB);
    fill(more, 16 * MIB, 3);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, bytes, 1, "child");
        CHECK(more, 16 * MIB, 3, "child, later memory");
        fill(at, bytes, 2);
        CHECK(at, bytes, 2, "child's own");
        _exit(0);
    }
    CHECK(at, bytes, 1, "parent beside its child");
    wait_right(child, "child");
    CHECK(at, bytes, 1, "parent");
    CHECK(more, 16 * MIB, 3, "parent, later memory");
    say("parent and child are right, user %d\n", (int)getuid());
}
