// The first thread of a program ends and others go on: a process without its first thread has neither memory nor files
// in `/proc`, and is alive.
#include "torture.h"

static const size_t BYTES = 24 * MIB;
static unsigned char *at;

static int first_is_gone(void) {
    char text[256] = {0};
    FILE *file = fopen("/proc/self/stat", "r");
    MUST(file && fgets(text, sizeof text, file));
    fclose(file);
    return strstr(text, ") Z ") != NULL;
}

static void *go_on(void *unused) {
    while (!first_is_gone()) usleep(1000);
    // Whoever looks after it has looked by then.
    usleep(50000);
    for (int round = 0; round < 2; round++) {
        CHECK(at, BYTES, 1, "before");
        push_out();
        usleep(20000);
    }
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        CHECK(at, BYTES, 1, "in a child");
        push_out();
        CHECK(at, BYTES, 1, "in a child, later");
        _exit(0);
    }
    wait_right(child, "child");
    fill(at, BYTES, 2);
    push_out();
    CHECK(at, BYTES, 2, "after");
    say("right\n");
    // Another program takes the number of the first thread.
    execl("/bin/echo", "echo", "executed", NULL);
    MUST(!"exec");
    return unused;
}

int main(void) {
    at = take(BYTES);
    fill(at, BYTES, 1);
    push_out();
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, go_on, NULL) == 0);
    pthread_exit(NULL);
}
