// MADV_DONTFORK: a child has no memory there; after MADV_DOFORK it has its parent's.
#include "torture.h"

enum { BYTES = 256 * PAGE };

int main(void) {
    unsigned char *before = take(BYTES), *at = take(BYTES), *after = take(BYTES);
    fill(before, BYTES, 1);
    fill(at, BYTES, 2);
    fill(after, BYTES, 3);
    push_out();
    for (int fork_it = 0; fork_it < 3; fork_it++) {
        MUST(madvise(at, BYTES, fork_it == 1 ? MADV_DOFORK : MADV_DONTFORK) == 0);
        push_out();
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            unsigned char there;
            int have = mincore(at, PAGE, &there) == 0 || errno != ENOMEM;
            if (have != (fork_it == 1)) WRONG("the child %s it\n", have ? "has" : "has not");
            if (have) CHECK(at, BYTES, 2, "child");
            CHECK(before, BYTES, 1, "before it");
            CHECK(after, BYTES, 3, "after it");
            if (!have) {
                // The place is free for something else.
                void *new = mmap(at, BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                MUST(new == at);
                CHECK_ZERO(at, BYTES, "new memory of the child");
                fill(at, BYTES, 4);
                CHECK(at, BYTES, 4, "child's own");
            }
            _exit(0);
        }
        wait_right(child, "child");
        CHECK(at, BYTES, 2, "parent");
    }
    say("children have what they should\n");
}
