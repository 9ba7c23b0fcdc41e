// Puts pages into a pipe by reference, then works elsewhere until their frames would have been used for
// something else, and reads the pipe: it holds the pages, whatever became of their addresses.
// HOW: libc, syscall (through libc's syscall()), raw (without libc). THEN: keep, unmap, rewrite (a pipe
// that refers to a page shows what is written to it later, too; of a page that was out in between it may have what
// was there before, but nothing else, and no mixture).
#include "torture.h"
#include <sys/uio.h>

enum { PAGES = 64 };

static long by_hand(int fd, struct iovec *all, unsigned long count, unsigned flags) {
    long result;
    register long r10 __asm__("r10") = flags;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_vmsplice), "D"((long)fd), "S"(all), "d"(count), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

int main(int count, char **words) {
    MUST(count == 3);
    int ends[2];
    MUST(pipe(ends) == 0);
    MUST(fcntl(ends[1], F_SETPIPE_SZ, PAGES * PAGE) == PAGES * PAGE);
    unsigned char *at = take(PAGES * PAGE);
    fill(at, PAGES * PAGE, 1);
    struct iovec all = {at, PAGES * PAGE};
    long got = !strcmp(words[1], "libc")      ? vmsplice(ends[1], &all, 1, 0)
               : !strcmp(words[1], "syscall") ? syscall(SYS_vmsplice, ends[1], &all, 1, 0)
                                              : by_hand(ends[1], &all, 1, 0);
    MUST(got == PAGES * PAGE);
    int seed = 1;
    if (!strcmp(words[2], "unmap")) MUST(munmap(at, PAGES * PAGE) == 0);
    for (int i = 0; i < 4; i++) push_out();
    if (!strcmp(words[2], "rewrite")) fill(at, PAGES * PAGE, seed = 2);
    push_out();
    unsigned char *read_back = take(PAGES * PAGE);
    for (size_t done = 0; done < PAGES * PAGE;) {
        ssize_t more = read(ends[0], read_back + done, PAGES * PAGE - done);
        MUST(more > 0);
        done += more;
    }
    for (int page = 0; page < PAGES; page++) {
        uint64_t *words_of_page = (uint64_t *)(read_back + page * PAGE);
        int before = 1, after = 1;
        for (size_t i = 0; i < 512; i++) {
            before &= words_of_page[i] == word_of(1, page * 512 + i);
            after &= words_of_page[i] == word_of(seed, page * 512 + i);
        }
        if (!before && !after) WRONG("page %d in the pipe was never written so\n", page);
    }
    if (strcmp(words[2], "unmap")) CHECK(at, PAGES * PAGE, seed, "pages in memory");
    say("%d pages in the pipe are right\n", PAGES);
}
