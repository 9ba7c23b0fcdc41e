// Closes descriptors, then pages and forks. WHICH: 0, 012, all. Descriptors that it opens later have the
// numbers that they have without anybody else in the process. What it found is its exit code alone.
#include "torture.h"

int main(int count, char **words) {
    MUST(count == 2);
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    int last = !strcmp(words[1], "0") ? 0 : !strcmp(words[1], "012") ? 2 : -1;
    if (last >= 0) {
        for (int fd = 0; fd <= last; fd++) close(fd);
    } else if (syscall(SYS_close_range, 0, ~0u, 0) != 0) {
        return 3;
    }
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child < 0) return 4;
        if (child == 0) {
            if (open("/dev/null", O_RDWR) != 0) _exit(5);
            if (wrong_pages(at, MUCH, 1)) _exit(6);
            fill(at, MUCH, 2);
            if (wrong_pages(at, MUCH, 2)) _exit(7);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child) return 8;
        if (status != 0) return WIFSIGNALED(status) ? 100 + WTERMSIG(status) : 50 + WEXITSTATUS(status);
        if (wrong_pages(at, MUCH, 1)) return 9;
    }
    int fd = open("/dev/null", O_RDWR);
    return fd == 0 ? 0 : 10;
}
