// MADV_WIPEONFORK: a child reads zeros, also where its parent's page is far, and so does its own child;
// after MADV_KEEPONFORK it reads what its parent has. Random generators rely on it.
#include "torture.h"

enum { BYTES = 256 * PAGE };

static void zeros_in_child(unsigned char *at, const char *what) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK_ZERO(at, BYTES, what);
        fill(at, BYTES, 2);
        pid_t grandchild = fork();
        MUST(grandchild >= 0);
        if (grandchild == 0) {
            CHECK_ZERO(at, BYTES, "grandchild");
            _exit(0);
        }
        wait_right(grandchild, "grandchild");
        CHECK(at, BYTES, 2, "child's own");
        _exit(0);
    }
    wait_right(child, what);
    CHECK(at, BYTES, 1, "parent");
}

int main(void) {
    unsigned char *at = take(BYTES);
    fill(at, BYTES, 1);
    MUST(madvise(at, BYTES, MADV_WIPEONFORK) == 0);
    zeros_in_child(at, "near");
    push_out();
    push_out();
    zeros_in_child(at, "far");
    MUST(madvise(at, BYTES, MADV_KEEPONFORK) == 0);
    push_out();
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, BYTES, 1, "kept again");
        _exit(0);
    }
    wait_right(child, "kept again");
    MUST(madvise(at, BYTES, MADV_WIPEONFORK) == 0);
    zeros_in_child(at, "advised while far");
    CHECK(at, BYTES, 1, "parent");
    say("children read zeros where they should\n");
}
