// Reads a file past the cache (O_DIRECT) into memory while everything is pushed out around it.
#include "torture.h"

enum { BYTES = 4 * MIB };

static unsigned char *at;
static int file;
static volatile int stop;

static void *read_always(void *unused) {
    (void)unused;
    while (!stop) {
        memset(at, 0, BYTES);
        MUST(pread(file, at, BYTES, 0) == BYTES);
        CHECK(at, BYTES, 1, "read from the file");
    }
    return NULL;
}

int main(void) {
    char name[] = "direct-XXXXXX";
    int writer = mkstemp(name);
    MUST(writer >= 0);
    at = take(BYTES);
    fill(at, BYTES, 1);
    MUST(write(writer, at, BYTES) == BYTES);
    MUST(fsync(writer) == 0);
    file = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    if (file < 0) {
        say("none: O_DIRECT: %s\n", strerror(errno));
        return 0;
    }
    pthread_t reader;
    MUST(pthread_create(&reader, NULL, read_always, NULL) == 0);
    for (int i = 0; i < 8; i++) push_out();
    stop = 1;
    pthread_join(reader, NULL);
    say("every read was right\n");
}
