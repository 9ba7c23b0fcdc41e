// Forks while threads read and write memory that comes and goes; each child looks at all of it.
#include "torture.h"

enum { READERS = 2, FORKS = 30 };
static const size_t KEPT = 24 * MIB, CHANGED = 24 * MIB;
static unsigned char *kept, *changed;
static volatile int stop;

static void *read_always(void *number) {
    uint64_t at = (uintptr_t)number + 1;
    while (!stop) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        size_t page = (at >> 33) % (KEPT / PAGE);
        for (size_t i = page * 512; i < page * 512 + 512; i++)
            if (((uint64_t *)kept)[i] != word_of(1, i)) WRONG("a reader in the parent\n");
    }
    return NULL;
}

// The last word of each page: its number above, a count below.
static void *write_always(void *unused) {
    (void)unused;
    for (uint64_t count = 1; !stop; count++)
        for (size_t page = 0; page < CHANGED / PAGE; page++)
            ((volatile uint64_t *)changed)[page * 512 + 511] = (page + 1) << 32 | (uint32_t)count;
    return NULL;
}

int main(void) {
    kept = take(KEPT);
    changed = take(CHANGED);
    fill(kept, KEPT, 1);
    for (size_t page = 0; page < CHANGED / PAGE; page++) ((uint64_t *)changed)[page * 512 + 511] = (page + 1) << 32;
    pthread_t threads[READERS + 1];
    for (uintptr_t i = 0; i < READERS; i++) MUST(pthread_create(&threads[i], NULL, read_always, (void *)i) == 0);
    MUST(pthread_create(&threads[READERS], NULL, write_always, NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            CHECK(kept, KEPT, 1, "kept, in a child");
            for (size_t page = 0; page < CHANGED / PAGE; page++)
                if (((uint64_t *)changed)[page * 512 + 511] >> 32 != page + 1) WRONG("changed, in a child\n");
            _exit(0);
        }
        wait_right(child, "child");
    }
    stop = 1;
    for (int i = 0; i <= READERS; i++) pthread_join(threads[i], NULL);
    CHECK(kept, KEPT, 1, "kept, in the parent");
    say("%d children read right\n", FORKS);
}
