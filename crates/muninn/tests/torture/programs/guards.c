// Puts guards over memory and takes them away again (MADV_GUARD_INSTALL, Linux 6.13): what was there is gone. By
// "madvise", by the number of that "call", or as one of a list of "ranges".
#include "torture.h"
#include <sys/uio.h>

enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
static const size_t BYTES = 16 * MIB, PART = 4 * MIB;

static void press(unsigned char *much, int seed) {
    fill(much, MUCH, seed);
    CHECK(much, MUCH, seed, "what pushes");
}

static int install(char how, void *at, size_t bytes) {
    if (how == 'c') return syscall(SYS_madvise, at, bytes, GUARD_INSTALL);
    if (how == 'm') return madvise(at, bytes, GUARD_INSTALL);
    struct iovec ranges[] = {{at, PAGE}, {(char *)at + PAGE, bytes - PAGE}};
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    ssize_t done = process_madvise(self, ranges, bytes > PAGE ? 2 : 1, GUARD_INSTALL, 0);
    close(self);
    return done == (ssize_t)bytes ? 0 : -1;
}

int main(int count, char **words) {
    char how = count > 1 ? words[1][0] : 'm';
    unsigned char *at = take(BYTES), *much = take(MUCH);
    for (int round = 1; round <= (how == 'm' ? 4 : 2); round++) {
        fill(at, BYTES, round);
        press(much, round);
        if (install(how, at + PART, PART) != 0) {
            say("none: no guards on this kernel\n");
            return 0;
        }
        // Neighbours come back, and are written to, with guards beside them.
        CHECK(at, PART, round, "before the guards");
        if (round % 2) press(much, round + 10);
        // A child dies of a guard as it should, and finds the rest.
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            CHECK(at, PART, round, "in a child");
            volatile unsigned char *guarded = at + PART + (size_t)round * 37 * PAGE;
            *guarded = 1;
            _exit(7);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) WRONG("a guard let a child pass: %x\n", status);
        MUST(madvise(at + PART, PART, GUARD_REMOVE) == 0);
        CHECK_ZERO(at + PART, PART, "after the guards");
        CHECK(at, PART, round, "before them");
        for (size_t page = 2 * PART / PAGE; page < BYTES / PAGE; page++) {
            if (((uint64_t *)at)[page * 512] != word_of(round, page * 512)) WRONG("a page behind the guards\n");
        }
        // Guards in memory that is filled page by page, in the middle of pages that would come as zeros together.
        unsigned char *fresh = take(PART);
        for (size_t page = 0; page < PART / PAGE; page += 8) {
            MUST(install(how, fresh + (page + 6) * PAGE, PAGE) == 0);
        }
        // Until that memory is the pager's, and there is no room.
        press(much, round + 20);
        for (size_t page = 0; page < PART / PAGE; page++) {
            if (page % 8 != 6) fresh[page * PAGE] = 1;
        }
        for (size_t page = 6; page < PART / PAGE; page += 8 * 16) {
            child = fork();
            MUST(child >= 0);
            if (child == 0) {
                volatile unsigned char *guarded = fresh + page * PAGE;
                _exit(*guarded ? 7 : 8);
            }
            MUST(waitpid(child, &status, 0) == child);
            if (!WIFSIGNALED(status)) WRONG("a guard was filled with zeros\n");
        }
        MUST(munmap(fresh, PART) == 0);
    }
    say("right\n");
    return 0;
}
