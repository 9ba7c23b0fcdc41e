// Has an allocator of its own, whose lock is held across fork by handlers that were registered later
// than anybody else's: whoever allocates between them waits for ever.
#include "torture.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char arena[64 * MIB] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t bytes) {
    pthread_mutex_lock(&lock);
    size_t at = (used + 31) & ~(size_t)15;
    used = at + bytes;
    if (used > sizeof arena) abort();
    *(size_t *)(arena + at - 16) = bytes;
    pthread_mutex_unlock(&lock);
    return arena + at;
}

void free(void *at) {
    pthread_mutex_lock(&lock);
    (void)at;
    pthread_mutex_unlock(&lock);
}

void *calloc(size_t count, size_t bytes) { return malloc(count * bytes); }

void *realloc(void *at, size_t bytes) {
    void *new = malloc(bytes);
    if (at) {
        size_t old = ((size_t *)at)[-2];
        memcpy(new, at, old < bytes ? old : bytes);
    }
    return new;
}

static void before(void) { pthread_mutex_lock(&lock); }
static void after(void) { pthread_mutex_unlock(&lock); }

int main(void) {
    MUST(pthread_atfork(before, after, after) == 0);
    unsigned char *near = malloc(PAGE), *at = malloc(MUCH);
    at = (unsigned char *)(((uintptr_t)at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    near[0] = 1;
    for (int i = 0; i < 20; i++) {
        // First far below any limit, later far above it.
        if (i == 10) fill(at, MUCH - PAGE, 1);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            unsigned char *own = malloc(1000);
            own[0] = near[0];
            if (i >= 10) CHECK(at, MUCH - PAGE, 1, "child");
            int right = own[0] == 1;
            free(own);
            _exit(right ? 0 : 1);
        }
        wait_right(child, "child");
    }
    CHECK(at, MUCH - PAGE, 1, "parent");
    say("twenty children allocated\n");
}
