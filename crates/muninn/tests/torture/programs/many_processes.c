// COUNT processes at once, each with memory of its own; none ends before all are there. HOW: fork, exec.
#include "torture.h"

enum { OWN = 64 * PAGE };

static int run_child(int there, int go) {
    unsigned char *own = take(OWN);
    fill(own, OWN, 2);
    char byte;
    if (write(there, "x", 1) != 1 || read(go, &byte, 1) != 0) return 3;
    return wrong_pages(own, OWN, 2) ? 4 : 0;
}

int main(int argc, char **words) {
    if (argc == 4) return run_child(atoi(words[2]), atoi(words[3]));
    MUST(argc == 3);
    int count = atoi(words[1]), exec = !strcmp(words[2], "exec"), there[2], go[2];
    MUST(pipe(there) == 0 && pipe(go) == 0);
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    pid_t *children = calloc(count, sizeof *children);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        MUST(children[i] >= 0);
        if (children[i] == 0) {
            close(go[1]);
            close(there[0]);
            char a[16], b[16];
            snprintf(a, sizeof a, "%d", there[1]);
            snprintf(b, sizeof b, "%d", go[0]);
            if (exec) execl("/proc/self/exe", "many_processes", "child", a, b, NULL);
            size_t part = (size_t)i % 48 * MIB;
            const uint64_t *seen = (const uint64_t *)(at + part);
            for (int w = 0; w < 512; w++)
                if (seen[w] != word_of(1, part / 8 + w)) _exit(5);
            _exit(run_child(there[1], go[0]));
        }
    }
    close(there[1]);
    int here = 0;
    char byte;
    // An end of the pipe before all are there: some have died.
    while (here < count && read(there[0], &byte, 1) == 1) here++;
    close(go[1]);
    int right = 0;
    for (int i = 0; i < count; i++) {
        int status;
        MUST(waitpid(children[i], &status, 0) == children[i]);
        right += status == 0;
    }
    if (here != count || right != count) WRONG("%d of %d were there, %d right\n", here, count, right);
    CHECK(at, MUCH, 1, "parent");
    say("%d processes at once are right\n", count);
}
