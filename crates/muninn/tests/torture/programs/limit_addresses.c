// A program limits its own addresses, and is told the limit that it set: so are its children, and what it executes.
#include "torture.h"
#include <sys/resource.h>

static const rlim_t LIMIT = (rlim_t)1 << 30;

static void check(const char *who) {
    struct rlimit now, too;
    MUST(getrlimit(RLIMIT_AS, &now) == 0 && prlimit(0, RLIMIT_AS, NULL, &too) == 0);
    if (now.rlim_cur != LIMIT || now.rlim_max != LIMIT) WRONG("%s: %lu of %lu\n", who, now.rlim_cur, now.rlim_max);
    if (memcmp(&now, &too, sizeof now) != 0) WRONG("%s: it is told otherwise\n", who);
    unsigned char *at = take(200 * MIB);
    fill(at, MUCH, 1);
    push_out();
    CHECK(at, MUCH, 1, who);
    if (mmap(NULL, LIMIT - 100 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        WRONG("%s: more than is allowed\n", who);
    MUST(munmap(at, 200 * MIB) == 0);
}

int main(int count, char **words) {
    if (count > 1) {
        check("executed");
        say("right\n");
        return 0;
    }
    unsigned char *before = take(24 * MIB);
    fill(before, 24 * MIB, 2);
    struct rlimit limit = {LIMIT, LIMIT}, old;
    MUST(prlimit(getpid(), RLIMIT_AS, &limit, &old) == 0);
    say("before: %d\n", old.rlim_cur == RLIM_INFINITY);
    check("self");
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        check("child");
        CHECK(before, 24 * MIB, 2, "child");
        _exit(0);
    }
    wait_right(child, "child");
    limit.rlim_cur = LIMIT / 2;
    MUST(setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &old) == 0);
    say("half: %d\n", old.rlim_cur == LIMIT / 2);
    limit.rlim_cur = LIMIT;
    MUST(setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK(before, 24 * MIB, 2, "memory");
    execl("/proc/self/exe", words[0], "again", NULL);
    MUST(!"exec");
}
