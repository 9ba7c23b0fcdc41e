// What all of the programs need: memory with known contents, pressure that pushes everything else out,
// and a way to say that a byte was wrong.
#ifndef TORTURE_H
#define TORTURE_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

// Three times the limit of most tests.
#define MUCH ((size_t)48 * MIB)

__attribute__((unused, format(printf, 1, 2))) static void say(const char *format, ...) {
    // One write, with no buffer that a fork could print twice.
    char line[256];
    __builtin_va_list list;
    __builtin_va_start(list, format);
    int length = vsnprintf(line, sizeof line, format, list);
    __builtin_va_end(list);
    if (write(1, line, length) != length) _exit(98);
}

#define WRONG(...)             \
    do {                       \
        say("WRONG " __VA_ARGS__); \
        _exit(1);              \
    } while (0)

#define MUST(condition)                                                                   \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            say("failed: %s: %s\n", #condition, strerror(errno));                         \
            _exit(99);                                                                    \
        }                                                                                 \
    } while (0)

__attribute__((unused)) static unsigned char *take(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static inline uint64_t word_of(uint64_t seed, size_t index) {
    uint64_t x = (seed << 40) + index + 1;
    x *= 0x9e3779b97f4a7c15u;
    return (x ^ (x >> 29)) | 1; // never zero
}

// Every word depends on the seed and on where it is.
__attribute__((unused)) static void fill(void *at, size_t bytes, uint64_t seed) {
    uint64_t *words = at;
    for (size_t i = 0; i < bytes / 8; i++) words[i] = word_of(seed, i);
    __asm__ volatile("" ::: "memory"); // somebody may look
}

// How many pages are not as `fill` left them.
__attribute__((unused)) static size_t wrong_pages(const void *at, size_t bytes, uint64_t seed) {
    const uint64_t *words = at;
    size_t wrong = 0;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        for (size_t i = page * 512; i < page * 512 + 512; i++) {
            if (words[i] != word_of(seed, i)) {
                wrong++;
                break;
            }
        }
    }
    return wrong;
}

__attribute__((unused)) static size_t nonzero_pages(const void *at, size_t bytes) {
    const uint64_t *words = at;
    size_t wrong = 0;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        for (size_t i = page * 512; i < page * 512 + 512; i++) {
            if (words[i] != 0) {
                wrong++;
                break;
            }
        }
    }
    return wrong;
}

#define CHECK(at, bytes, seed, what)                                                        \
    do {                                                                                    \
        size_t wrong_ = wrong_pages(at, bytes, seed);                                       \
        if (wrong_) WRONG("%s: %zu of %zu pages\n", what, wrong_, (size_t)(bytes) / PAGE);  \
    } while (0)

#define CHECK_ZERO(at, bytes, what)                                                              \
    do {                                                                                         \
        size_t wrong_ = nonzero_pages(at, bytes);                                                \
        if (wrong_) WRONG("%s: %zu of %zu pages not zero\n", what, wrong_, (size_t)(bytes) / PAGE); \
    } while (0)

// Writes three times the limit, twice, so that whatever else there is goes out and frames go round.
__attribute__((unused)) static void push_out(void) {
    static unsigned char *other;
    static uint64_t seed = 1000;
    if (!other) other = take(MUCH);
    for (int round = 0; round < 2; round++) fill(other, MUCH, ++seed);
}

// Waits for a child, which must have exited with 0.
__attribute__((unused)) static void wait_right(pid_t pid, const char *what) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    MUST(got == pid);
    if (WIFSIGNALED(status)) WRONG("%s: ended by signal %d\n", what, WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) WRONG("%s: exit code %d\n", what, WEXITSTATUS(status));
}
#endif
