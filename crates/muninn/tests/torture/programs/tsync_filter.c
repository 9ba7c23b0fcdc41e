// Once its memory is far, puts a filter on all of its threads (TSYNC) that ends the process if one of
// them asks for a userfaultfd or does what is done with one, and goes on paging.
#include "torture.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static unsigned char *at;

static void *work(void *unused) {
    (void)unused;
    for (int round = 2; round < 6; round++) {
        fill(at, MUCH, round);
        CHECK(at, MUCH, round, "under the filter");
    }
    return NULL;
}

int main(void) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 4),
        // The type of the request is its second byte: 0xaa is userfaultfd's.
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof lines / sizeof *lines, lines};
    at = take(MUCH);
    fill(at, MUCH, 1);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    long refused = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
    if (refused) WRONG("the filter was refused\n");
    CHECK(at, MUCH, 1, "before the filter");
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_join(thread, NULL);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, MUCH, 5, "child");
        _exit(0);
    }
    wait_right(child, "child");
    say("all threads go on under the filter\n");
}
