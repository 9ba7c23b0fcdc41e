// Futexes that are far: the kernel writes to some of them, and does not wait for userfaultfd there.
#include "torture.h"
#include <linux/futex.h>

static unsigned char *at;

static int *word(int number) { return (int *)(at + (size_t)number * 16 * PAGE); }

static void call(const char *name, int *one, int operation, long value, int *other, long third) {
    // In the place of a time, where a number is meant.
    void *many = other ? (void *)1 : NULL;
    long result = syscall(SYS_futex, one, operation, value, many, other, third);
    say("%s: %ld %s\n", name, result, result < 0 ? strerrorname_np(errno) : "");
}

static void *wait_for(void *word) {
    if (syscall(SYS_futex, word, FUTEX_LOCK_PI_PRIVATE, 0, NULL) != 0) WRONG("a lock is not handed on: %d\n", errno);
    if (syscall(SYS_futex, word, FUTEX_UNLOCK_PI_PRIVATE) != 0) WRONG("it is not given back: %d\n", errno);
    return NULL;
}

int main(void) {
    at = take(8 * MIB);
    fill(at, 8 * MIB, 1);
    for (int i = 0; i < 16; i++) *word(i) = 0;
    push_out();
    call("lock", word(1), FUTEX_LOCK_PI_PRIVATE, 0, NULL, 0);
    call("lock, shared", word(2), FUTEX_LOCK_PI, 0, NULL, 0);
    push_out();
    call("unlock", word(1), FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, 0);
    call("try", word(3), FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, 0);
    call("wake and add", word(4), FUTEX_WAKE_OP_PRIVATE, 1, word(5), FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0));
    if (*word(5) != 5) WRONG("it is %d\n", *word(5));
    call("hand on", word(6), FUTEX_CMP_REQUEUE_PRIVATE, 1, word(7), 0);
    call("wait", word(8), FUTEX_WAIT_PRIVATE, 1, NULL, 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, wait_for, word(3)) == 0);
    usleep(20000);
    push_out();
    call("unlock for somebody", word(3), FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, 0);
    MUST(pthread_join(thread, NULL) == 0);
    // Where nothing is, or nobody may write, the answer is what it would be.
    MUST(mprotect(word(9), PAGE, PROT_READ) == 0);
    call("read-only", word(9), FUTEX_LOCK_PI_PRIVATE, 0, NULL, 0);
    MUST(munmap(word(9), PAGE) == 0);
    call("nothing", word(9), FUTEX_LOCK_PI_PRIVATE, 0, NULL, 0);
    call("none", NULL, FUTEX_LOCK_PI_PRIVATE, 0, NULL, 0);
}
