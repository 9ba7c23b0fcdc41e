// Threads that are made and end as fast as they can, some joined, some detached, while memory comes and goes.
#include "torture.h"
#include <time.h>

enum { MAKERS = 3, BYTES = 24 * MIB };

static int stop, wrong, detached;
static long made;

static void *live_briefly(void *value) {
    unsigned char here[2000];
    memset(here, (int)(long)value, sizeof here);
    if ((long)value % 7 == 0) usleep((long)value % 300);
    if ((long)value % 11 == 0) pthread_exit((void *)(long)here[1999]);
    return (void *)(long)here[(long)value % sizeof here];
}

static void *live_alone(void *value) {
    usleep((long)value % 300);
    __atomic_fetch_sub(&detached, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *make(void *seed) {
    for (long i = (long)seed; !__atomic_load_n(&stop, __ATOMIC_SEQ_CST); i++) {
        enum { WAVE = 12 };
        pthread_t threads[WAVE];
        for (long n = 0; n < WAVE; n++) MUST(pthread_create(&threads[n], NULL, live_briefly, (void *)(i + n)) == 0);
        pthread_t alone;
        if (__atomic_fetch_add(&detached, 1, __ATOMIC_SEQ_CST) < 50) {
            // Not by pthread_detach, which glibc before 2.37 lets look at a thread that is gone.
            pthread_attr_t attr;
            pthread_attr_init(&attr);
            pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
            MUST(pthread_create(&alone, &attr, live_alone, (void *)i) == 0);
        } else {
            __atomic_fetch_sub(&detached, 1, __ATOMIC_SEQ_CST);
        }
        for (long n = 0; n < WAVE; n++) {
            void *said;
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 20;
            if (pthread_timedjoin_np(threads[n], &said, &until) != 0) WRONG("a thread was never joined\n");
            if ((long)said != ((i + n) & 255)) __atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
        }
        __atomic_fetch_add(&made, WAVE, __ATOMIC_SEQ_CST);
        usleep(1000); // there is one processor for all of us at times
    }
    return NULL;
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? atoi(argv[1]) : 1;
    unsigned char *at = take(BYTES);
    pthread_t makers[MAKERS];
    for (long i = 0; i < MAKERS; i++) MUST(pthread_create(&makers[i], NULL, make, (void *)(i * 1000)) == 0);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    uint64_t seed = 0;
    do {
        fill(at, BYTES, ++seed);
        CHECK(at, BYTES, seed, "beside threads");
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < seconds || seed < 2);
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < MAKERS; i++) pthread_join(makers[i], NULL);
    for (int i = 0; i < 2000 && __atomic_load_n(&detached, __ATOMIC_SEQ_CST); i++) usleep(10000);
    if (wrong || detached) WRONG("%d returned another thing, %d never ended\n", wrong, detached);
    if (made < 100) WRONG("only %ld threads\n", made);
    say("all threads ended\n");
}
