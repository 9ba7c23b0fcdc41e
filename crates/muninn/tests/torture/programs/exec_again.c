// Fills more than there is room for, executes itself in its own place, and so on, COUNT times: whoever looked
// after the program before it must not be taken for the one who looks after this one.
#include "torture.h"

int main(int count, char **words) {
    MUST(count == 2);
    int left = atoi(words[1]);
    unsigned char *at = take(MUCH / 2);
    fill(at, MUCH / 2, left);
    CHECK(at, MUCH / 2, left, "memory");
    if (left == 0) {
        say("right\n");
        return 0;
    }
    char next[16];
    snprintf(next, sizeof next, "%d", left - 1);
    execl("/proc/self/exe", words[0], next, NULL);
    MUST(!"exec");
}
