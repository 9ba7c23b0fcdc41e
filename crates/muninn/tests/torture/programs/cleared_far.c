// Tasks with words of their own for the kernel to clear at their end, somewhere in memory that is far:
// "clone" names them when it makes a task, "three" (clone3) as well, "address" says so later.
#include "torture.h"
#include <linux/futex.h>
#include <linux/sched.h>
#include <time.h>

enum { TASKS = 16, STACK = 64 << 10 };

static int go, asleep;
static int *words[TASKS];

static int wait_and_end(void *unused) {
    __atomic_fetch_add(&asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&go, __ATOMIC_SEQ_CST) == 0) syscall(SYS_futex, &go, FUTEX_WAIT, 0, NULL);
    syscall(SYS_exit, 0);
    return unused != NULL;
}

static void *say_and_end(void *word) {
    syscall(SYS_set_tid_address, word);
    wait_and_end(word);
    return NULL;
}

// The C library's function returns to where the new stack says.
static int clone_three(unsigned long flags, unsigned char *stack, int *word) {
    ((void **)(stack + STACK))[-2] = (void *)wait_and_end;
    struct clone_args how = {.flags = flags, .child_tid = (uintptr_t)word, .stack = (uintptr_t)stack};
    how.stack_size = STACK - 16;
    return syscall(SYS_clone3, &how, sizeof how);
}

static void wait_cleared(int i) {
    struct timespec patience = {5, 0};
    for (int tries = 0; tries < 4; tries++) {
        int now = __atomic_load_n(words[i], __ATOMIC_SEQ_CST);
        if (now == 0) return;
        syscall(SYS_futex, words[i], FUTEX_WAIT, now, &patience);
    }
    WRONG("word %d was never cleared\n", i);
}

int main(int argc, char **argv) {
    const char *how = argc < 2 ? "clone" : argv[1];
    unsigned char *at = take(8 * MIB), *stacks = take(TASKS * STACK);
    fill(at, 8 * MIB, 1);
    for (int i = 0; i < TASKS; i++) {
        words[i] = (int *)(at + (size_t)(i / 2) * 500 * 1024 + 64 * i);
        *words[i] = 7;
        pthread_t thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                    CLONE_CHILD_CLEARTID;
        if (!strcmp(how, "three"))
            MUST(clone_three(flags, stacks + i * STACK, words[i]) > 0);
        else if (!strcmp(how, "clone"))
            MUST(clone(wait_and_end, stacks + (i + 1) * STACK, flags, NULL, NULL, NULL, words[i]) > 0);
        else
            MUST(pthread_create(&thread, &attr, say_and_end, words[i]) == 0);
    }
    while (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST) < TASKS) usleep(1000);
    usleep(2000);
    push_out();
    __atomic_store_n(&go, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &go, FUTEX_WAKE, TASKS);
    for (int i = 0; i < TASKS; i++) wait_cleared(i);
    say("%d words were cleared\n", TASKS);
}
