// Threads that end while the memory that the kernel writes to at their end is far: whoever joins them waits
// for a word in their descriptor. They sleep and end by system calls alone, so that they touch nothing of it.
// "created" by pthread_create; "stacks" in memory of the program; "thrd" by C11.
#include "torture.h"
#include <linux/futex.h>
#include <sys/rseq.h>
#include <threads.h>
#include <time.h>

enum { THREADS = 24, STACK = 64 << 10 };

static int go, asleep;

static inline long call(long number, long a, long b, long c) {
    long result;
    register long timeout __asm__("r10") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(timeout)
                     : "rcx", "r11", "memory");
    return result;
}

static void *end_far(void *unused) {
    // The kernel would touch the descriptor as well whenever the thread was put on another processor.
    struct rseq *rseq = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    syscall(SYS_rseq, rseq, 32, RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
    __atomic_fetch_add(&asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&go, __ATOMIC_SEQ_CST) == 0) call(SYS_futex, (long)&go, FUTEX_WAIT, 0);
    call(SYS_exit, 0, 0, 0);
    return unused;
}

static int end_far_c11(void *unused) {
    end_far(unused);
    return 0;
}

static void join(pthread_t thread, int i) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int error = pthread_timedjoin_np(thread, NULL, &until);
    if (error) WRONG("thread %d was never joined: %s\n", i, strerrorname_np(error));
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "created";
    unsigned char *stacks = take((size_t)THREADS * STACK);
    pthread_t threads[THREADS];
    for (int round = 0; round < 2; round++) {
        go = asleep = 0;
        for (int i = 0; i < THREADS; i++) {
            pthread_attr_t attr;
            pthread_attr_init(&attr);
            // Not at the ends of pages, so that descriptors begin anywhere.
            if (!strcmp(how, "stacks"))
                MUST(pthread_attr_setstack(&attr, stacks + (size_t)i * STACK, STACK - 128 * i) == 0);
            if (!strcmp(how, "thrd"))
                MUST(thrd_create((thrd_t *)&threads[i], end_far_c11, NULL) == thrd_success);
            else
                MUST(pthread_create(&threads[i], &attr, end_far, NULL) == 0);
        }
        while (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST) < THREADS) usleep(1000);
        usleep(50000);
        push_out();
        __atomic_store_n(&go, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &go, FUTEX_WAKE, THREADS);
        for (int i = 0; i < THREADS; i++) join(threads[i], i);
        // What was a descriptor is memory like any other again.
        fill(stacks, (size_t)THREADS * STACK, 5 + round);
        push_out();
        CHECK(stacks, (size_t)THREADS * STACK, 5 + round, "stacks");
    }
    say("%d threads were joined\n", 2 * THREADS);
}
