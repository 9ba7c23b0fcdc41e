// process_vm_writev gets hold of a batch of pages, then waits for others that are far, and only then
// writes: what it writes must not go to pages that have left meanwhile.
#include "torture.h"
#include <sys/uio.h>

enum { BYTES = 12 * MIB, SOME = 48 * PAGE, ROUNDS = 3 };

int main(void) {
    unsigned char *from = take(BYTES), *to = take(BYTES);
    size_t parts = BYTES / SOME;
    fill(to, BYTES, 1);
    for (uint64_t round = 2; round < 2 + ROUNDS; round++) {
        fill(from, BYTES, round);
        push_out();
        // Every other page is near, and has been for longest when it is written to.
        for (size_t at = 0; at < BYTES / 2; at += 2 * PAGE) (void)*(volatile unsigned char *)(to + at);
        for (size_t i = 0; i < parts; i++) {
            struct iovec near = {from + i * SOME, SOME}, far = {to + i * SOME, SOME};
            MUST(process_vm_writev(getpid(), &near, 1, &far, 1, 0) == SOME);
        }
        CHECK(to, parts * SOME, round, "what was written");
    }
    say("everything was written\n");
}
