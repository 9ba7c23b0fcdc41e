// Fills MIB, then COUNT children read all of it at the same time: each page is there once for all.
#include "torture.h"

int main(int argc, char **words) {
    MUST(argc == 3);
    size_t bytes = strtoull(words[1], NULL, 10) * MIB;
    int count = atoi(words[2]), there[2], go[2];
    MUST(pipe(there) == 0 && pipe(go) == 0);
    unsigned char *at = take(bytes);
    fill(at, bytes, 1);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            close(go[1]);
            char byte;
            CHECK(at, bytes, 1, "child");
            MUST(write(there[1], "x", 1) == 1);
            MUST(read(go[0], &byte, 1) == 0);
            CHECK(at, bytes, 1, "child beside the others");
            _exit(0);
        }
    }
    close(there[1]);
    char byte;
    for (int i = 0; i < count; i++)
        if (read(there[0], &byte, 1) != 1) WRONG("a child is missing\n");
    usleep(300000); // what is counted is what is there now, by one who looks now and then
    CHECK(at, bytes, 1, "parent beside its children");
    close(go[1]);
    for (int i = 0; i < count; i++) {
        int status;
        MUST(wait(&status) > 0);
        if (status != 0) WRONG("a child's status: %x\n", status);
    }
    say("%d children read what their parent wrote\n", count);
}
