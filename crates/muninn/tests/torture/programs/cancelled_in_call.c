// cc: -fexceptions
// Threads are cancelled in the middle of system calls by number.
#include "torture.h"
#include <linux/futex.h>

static int word;

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

int main(void) {
    push_out();
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, i % 2 ? wait_for_ever : pause_for_ever, NULL) == 0);
        usleep(i * 100);
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        if (result != PTHREAD_CANCELED) WRONG("thread %d was not cancelled\n", i);
    }
    say("right\n");
}
