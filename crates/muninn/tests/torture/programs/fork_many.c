// COUNT children in a row, at most ALIVE at a time. Each does as HOW says: exit at once, exec something
// at once, check (look at a part of its memory and change it), kill (is killed by its parent at once). With a fourth word,
// it says when it begins and when all have ended, and waits for SIGUSR1 each time.
#include "torture.h"

static size_t done;

static void wait_one(int killed) {
    int status;
    MUST(wait(&status) > 0);
    done++;
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    if (WIFSIGNALED(status)) WRONG("a child was ended by signal %d\n", WTERMSIG(status));
    if (WEXITSTATUS(status)) WRONG("a child's exit code: %d\n", WEXITSTATUS(status));
}

static sigset_t go;

static void pause_at(const char *where) {
    int signal;
    say("%s\n", where);
    MUST(sigwait(&go, &signal) == 0);
}

int main(int argc, char **words) {
    MUST(argc == 4 || argc == 5);
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    if (argc == 5) MUST(sigprocmask(SIG_BLOCK, &go, NULL) == 0);
    size_t count = atoi(words[1]), alive = atoi(words[2]);
    char *how = words[3];
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    if (argc == 5) pause_at("filled");
    for (size_t i = 0; i < count; i++) {
        if (i - done >= alive) wait_one(*how == 'k');
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            if (!strcmp(how, "exec")) execl("/bin/true", "true", NULL);
            if (!strcmp(how, "kill")) pause();
            if (!strcmp(how, "check")) {
                // A whole number of MiB at another place for each.
                size_t part = i % 24 * 2 * MIB;
                const uint64_t *words = (const uint64_t *)(at + part);
                for (size_t w = 0; w < 2 * MIB / 8; w++)
                    if (words[w] != word_of(1, part / 8 + w)) WRONG("a child's memory\n");
                fill(at + part, 2 * MIB, 2);
                CHECK(at + part, 2 * MIB, 2, "a child's own memory");
            }
            _exit(0);
        }
        if (*how == 'k') kill(child, SIGKILL);
    }
    while (done < count) wait_one(*how == 'k');
    CHECK(at, MUCH, 1, "parent");
    if (argc == 5) pause_at("all have ended");
    say("%zu children, and the parent is right\n", count);
}
