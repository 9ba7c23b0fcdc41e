// One thread throws pages away (MADV_DONTNEED), others touch them: they find what was written, or zeros.
#include "torture.h"

static const size_t BYTES = 32 * MIB;
static unsigned char *at;
static volatile int stop;

static void *touch(void *number) {
    uint64_t next = (uintptr_t)number + 1;
    while (!stop) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        size_t page = (next >> 33) % (BYTES / PAGE);
        volatile uint64_t *word = (uint64_t *)(at + page * PAGE);
        if (next & 1) *word = page + 1;
        uint64_t seen = *word;
        if (seen != 0 && seen != page + 1) WRONG("a page of another\n");
    }
    return NULL;
}

int main(void) {
    at = take(BYTES);
    unsigned char *kept = take(16 * MIB);
    fill(kept, 16 * MIB, 1);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) MUST(pthread_create(&threads[i], NULL, touch, (void *)i) == 0);
    for (int i = 0; i < 1500; i++) {
        size_t from = (size_t)i * 7919 % 448, pages = i % 5 ? 64 : 4096;
        MUST(madvise(at + from * PAGE, pages * PAGE, MADV_DONTNEED) == 0);
        if (i % 50 == 0) CHECK(kept, 16 * MIB, 1, "kept");
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    MUST(madvise(at, BYTES, MADV_DONTNEED) == 0);
    CHECK_ZERO(at, BYTES, "thrown away");
    say("nothing but zeros and what was written\n");
}
