// cc: -fexceptions
// Threads are cancelled in the middle of system calls by number, and anywhere while they read far memory.
#include "torture.h"
#include <linux/futex.h>

static int word;
static unsigned char *at;

static void *wait_for_ever(void *unused) {
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL);
    return unused;
}

static void *pause_for_ever(void *unused) {
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    syscall(SYS_pause);
    return unused;
}

static void *read_for_ever(void *unused) {
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    for (unsigned page = 1;; page = page * 1103515245 + 12345) *(volatile char *)(at + (page >> 8) % 4096 * PAGE);
    return unused;
}

int main(void) {
    static void *(*const KINDS[])(void *) = {wait_for_ever, pause_for_ever, read_for_ever, read_for_ever};
    at = take(16 * MIB);
    fill(at, 16 * MIB, 1);
    push_out();
    for (int i = 0; i < 120; i++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, KINDS[i % 4], NULL) == 0);
        usleep(i % 40 * 100);
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        if (result != PTHREAD_CANCELED) WRONG("thread %d was not cancelled\n", i);
    }
    CHECK(at, 16 * MIB, 1, "memory");
    say("right\n");
}
