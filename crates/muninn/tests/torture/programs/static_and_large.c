// cc: -static
// No library can be put into it: fills 24 MiB, and has them until its input ends.
#include "torture.h"

int main(void) {
    unsigned char *at = take(24 * MIB);
    fill(at, 24 * MIB, 1);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    CHECK(at, 24 * MIB, 1, "memory");
    say("right\n");
    return 0;
}
