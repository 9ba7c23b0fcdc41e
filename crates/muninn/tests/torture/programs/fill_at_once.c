// Fills MIB from the first instruction of main on, and looks at it. HOW its memory is: plain, populate
// (MAP_POPULATE), locked (mlockall before), lock-later (mlockall when all is filled), huge
// (MADV_HUGEPAGE), heap, threads (four fill it).
#include "torture.h"

static unsigned char *at;
static size_t bytes;

static void *fill_part(void *number) {
    uintptr_t part = (uintptr_t)number;
    fill(at + bytes / 4 * part, bytes / 4, 1 + part);
    return NULL;
}

int main(int count, char **words) {
    MUST(count == 3);
    bytes = strtoull(words[1], NULL, 10) * MIB;
    char *how = words[2];
    if (!strcmp(how, "locked") && mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
        say("none: mlockall: %s\n", strerror(errno));
        return 0;
    }
    if (!strcmp(how, "heap")) {
        // Small pieces, all of which come from the heap itself.
        enum { PIECE = 65536 };
        size_t pieces = bytes / PIECE;
        unsigned char **all = malloc(pieces * sizeof *all);
        for (size_t i = 0; i < pieces; i++) fill(all[i] = malloc(PIECE), PIECE, i);
        for (size_t i = 0; i < pieces; i++) CHECK(all[i], PIECE, i, "a piece");
        say("right\n");
        return 0;
    }
    int populate = strcmp(how, "populate") ? 0 : MAP_POPULATE;
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
    MUST(at != MAP_FAILED);
    if (!strcmp(how, "huge")) madvise(at, bytes, MADV_HUGEPAGE);
    if (!strcmp(how, "threads")) {
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, fill_part, (void *)i) == 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 4; i++) CHECK(at + bytes / 4 * i, bytes / 4, 1 + i, "a thread's part");
        say("right\n");
        return 0;
    }
    if (populate) CHECK_ZERO(at, bytes, "populated");
    fill(at, bytes, 1);
    if (!strcmp(how, "lock-later")) MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    CHECK(at, bytes, 1, "memory");
    fill(at, bytes, 2);
    CHECK(at, bytes, 2, "memory");
    say("right\n");
}
