// Forbids itself a few system calls once its memory is far, then forks. WHAT: unshare, or start
// (clone3, socket, userfaultfd: what a newcomer to a process might need).
#include "torture.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define FORBID(number, error)                             \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),    \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int count, char **words) {
    MUST(count == 2);
    static struct sock_filter no_unshare[] = {NUMBER, FORBID(SYS_unshare, EPERM), ALLOW};
    static struct sock_filter no_start[] = {NUMBER, FORBID(SYS_clone3, ENOSYS), FORBID(SYS_socket, EPERM),
                                            FORBID(SYS_userfaultfd, EPERM), FORBID(SYS_memfd_create, EPERM),
                                            FORBID(SYS_pidfd_open, EPERM), ALLOW};
    int first = !strcmp(words[1], "unshare");
    struct sock_fprog filter = {first ? sizeof no_unshare / sizeof *no_unshare : sizeof no_start / sizeof *no_start,
                                first ? no_unshare : no_start};
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            CHECK(at, MUCH, 1, "child");
            fill(at, MUCH, 2);
            CHECK(at, MUCH, 2, "child's own");
            _exit(0);
        }
        wait_right(child, "child");
        CHECK(at, MUCH, 1, "parent");
    }
    say("three children and their parent read right\n");
}
