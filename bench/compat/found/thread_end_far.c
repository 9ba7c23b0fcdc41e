/* A thread ends while the word that the kernel clears at its end (set_tid_address) and a robust mutex
 * it holds are far. The kernel does not wait for userfaultfd in an ending thread: it leaves both as they
 * are, so pthread_join and the mutex' next owner wait for ever. Found by stress-ng --pthread 1 -t 3.
 * Plain: exit 0 and "cleared word: 0 ... EOWNERDEAD". */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
/* A thread ends while (a) a robust mutex it holds, (b) the word that the kernel must clear, are far. */
static pthread_mutex_t *m; static int *word; static sem_t held, go;
static void *run(void *x) {
    syscall(SYS_set_tid_address, word); *word = 7;
    pthread_mutex_lock(m); sem_post(&held); sem_wait(&go);
    syscall(SYS_exit, 0); return 0;
}
int main(void) {
    char *cold = mmap(0, 2 << 20, 3, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0); memset(cold, 1, 2 << 20);
    m = (void *)(cold + 65536); word = (int *)(cold + 1048576);
    pthread_mutexattr_t a; pthread_mutexattr_init(&a); pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST); pthread_mutex_init(m, &a);
    sem_init(&held, 0, 0); sem_init(&go, 0, 0);
    pthread_t t; pthread_create(&t, 0, run, 0); sem_wait(&held);
    char *hot = malloc(128 << 20); for (int r = 0; r < 3; r++) memset(hot, r, 128 << 20);
    sem_post(&go);
    for (int i = 0; i < 100; i++) usleep(10000); /* the thread is long gone */
    struct timespec until; clock_gettime(CLOCK_REALTIME, &until); until.tv_sec += 3;
    int w = *word, e = pthread_mutex_timedlock(m, &until);
    printf("cleared word: %d (0 is right); robust mutex: %s (EOWNERDEAD is right)\n", w, strerrorname_np(e));
    return !(w == 0 && e == EOWNERDEAD);
}
