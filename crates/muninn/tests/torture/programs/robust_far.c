// Threads end that hold robust mutexes in memory that is far: the next owner is told so.
#include "torture.h"
#include <semaphore.h>
#include <time.h>

enum { THREADS = 8, EACH = 4 };

static pthread_mutex_t *mutexes[THREADS][EACH];
static sem_t held, go;

static void *die_owning(void *which) {
    for (int i = 0; i < EACH; i++) MUST(pthread_mutex_lock(mutexes[(long)which][i]) == 0);
    sem_post(&held);
    sem_wait(&go);
    if ((long)which % 2) syscall(SYS_exit, 0);
    return NULL;
}

int main(void) {
    unsigned char *at = take(8 * MIB);
    fill(at, 8 * MIB, 1);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    sem_init(&held, 0, 0);
    sem_init(&go, 0, 0);
    for (int i = 0; i < THREADS * EACH; i++) {
        // Some begin in one page and end in the next.
        pthread_mutex_t *mutex = (pthread_mutex_t *)(at + (size_t)(i + 1) * 200 * 1024 - 16 * (i % 3));
        MUST(pthread_mutex_init(mutex, &attr) == 0);
        mutexes[i / EACH][i % EACH] = mutex;
    }
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) MUST(pthread_create(&threads[i], NULL, die_owning, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) sem_wait(&held);
    push_out();
    for (int i = 0; i < THREADS; i++) sem_post(&go);
    for (int i = 0; i < THREADS; i++) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        int error = pthread_timedjoin_np(threads[i], NULL, &until);
        if (error) WRONG("thread %d was never joined: %s\n", i, strerrorname_np(error));
    }
    for (int i = 0; i < THREADS * EACH; i++) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 5;
        pthread_mutex_t *mutex = mutexes[i / EACH][i % EACH];
        int error = pthread_mutex_timedlock(mutex, &until);
        if (error != EOWNERDEAD) WRONG("mutex %d: %d instead of EOWNERDEAD\n", i, error);
        MUST(pthread_mutex_consistent(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
    }
    say("the owners of %d mutexes are known to be dead\n", THREADS * EACH);
}
