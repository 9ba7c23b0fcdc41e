// Several threads fork at once; every child looks at all memory.
#include "torture.h"

enum { THREADS = 4, FORKS = 10 };
static const size_t BYTES = 32 * MIB;
static unsigned char *at;

static void *fork_always(void *unused) {
    (void)unused;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            CHECK(at, BYTES, 1, "child");
            fill(at, BYTES / 8, 2);
            CHECK(at, BYTES / 8, 2, "child's own");
            _exit(0);
        }
        wait_right(child, "child");
    }
    return NULL;
}

int main(void) {
    at = take(BYTES);
    fill(at, BYTES, 1);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) MUST(pthread_create(&threads[i], NULL, fork_always, NULL) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(at, BYTES, 1, "parent");
    say("%d children are right\n", THREADS * FORKS);
}
