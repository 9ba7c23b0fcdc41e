// Memory goes far and is given up again, so that memory of servers is mapped and unmapped all the time, at
// addresses that the program had a moment ago: threads map and unmap pieces of many sizes beside it.
#include "torture.h"

static volatile int over;

static void *churn(void *seed) {
    unsigned x = (uintptr_t)seed;
    while (!over) {
        x = x * 1103515245 + 12345;
        size_t bytes = ((x >> 16) % 24 + 1) * MIB;
        unsigned char *at = take(bytes);
        for (size_t i = 0; i < bytes; i += 64 * PAGE) at[i] = 1;
        if ((x >> 8) % 4 == 0) sched_yield();
        MUST(munmap(at, bytes) == 0);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) MUST(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int round = 1; round < 13; round++) {
        unsigned char *at = take(MUCH);
        fill(at, MUCH, round);
        CHECK(at, MUCH, round, "memory");
        MUST(munmap(at, MUCH) == 0);
    }
    over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    say("right\n");
}
