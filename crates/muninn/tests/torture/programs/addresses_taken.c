// cc: -no-pie -fno-pic -Wl,-z,lazy -lm
// Takes the addresses of functions that it never calls. In a program that is not position-independent the
// address of such a function is a place in the program itself, also for libraries, and who calls it for
// the first time goes through the loader's tables. Some of these are in the heap, and far by then.
#include "torture.h"
#include <dlfcn.h>
#include <math.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

typedef void (*function)(void);
static function volatile taken;
#define TAKE(name) taken = (function)name

int main(void) {
    MUST(dlopen("libanl.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
    TAKE(exp2), TAKE(poll), TAKE(recvmsg), TAKE(sendmsg), TAKE(read), TAKE(writev), TAKE(sched_yield);
    TAKE(clock_gettime), TAKE(mprotect), TAKE(munmap), TAKE(mincore), TAKE(close), TAKE(fcntl);
    TAKE(setsockopt), TAKE(syscall), TAKE(readlink), TAKE(getrandom), TAKE(pause), TAKE(munlockall);
    unsigned char *at = take(MUCH);
    for (int round = 1; round < 4; round++) {
        fill(at, MUCH, round);
        CHECK(at, MUCH, round, "memory");
    }
    say("right\n");
}
