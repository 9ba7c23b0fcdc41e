/* One thread gives pages back (4: MADV_DONTNEED), another writes them. Found by stress-ng --madvise 1.
 * Plain: "ok". Argument: the advice. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define N (32UL << 20)
static char *p; static volatile int stop;
static void *purge(void *x) { unsigned s = 1; while (!stop) madvise(p + (rand_r(&s) % (N >> 12) << 12), 4096, (long)x); return 0; }
int main(int c, char **v) {
    p = mmap(0, N, 3, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0); pthread_t t; pthread_create(&t, 0, purge, (void *)atol(v[1]));
    for (int r = 0; r < 40; r++) memset(p, r, N);
    stop = 1; pthread_join(t, 0); puts("ok"); return 0;
}
