// Executes itself with environments of its own making, in every way the C library has: what is executed finds the
// variables that it was given, no more and no fewer, and its memory is as limited as anybody's.
#include "torture.h"
#include <spawn.h>

extern char **environ;

static char *EMPTY[] = {NULL};
static char *SOME[] = {"ONE=1", "TWO=2", NULL};
static char *OTHER_LIBRARY[] = {"LD_PRELOAD=libm.so.6", "ONE=1", NULL};
static char **GIVEN[] = {EMPTY, SOME, OTHER_LIBRARY};
static const char *WAYS[] = {"execve", "execv", "execvp", "execvpe", "fexecve", "execveat", "vfork", "spawn", "spawnp"};
enum { WAYS_LEN = sizeof WAYS / sizeof *WAYS, GIVEN_LEN = sizeof GIVEN / sizeof *GIVEN };

static void look(char **given) {
    size_t at = 0;
    for (; given[at] && environ[at]; at++) {
        if (strcmp(given[at], environ[at]) != 0) WRONG("%s is %s\n", given[at], environ[at]);
    }
    if (given[at]) WRONG("%s is missing\n", given[at]);
    if (environ[at]) WRONG("%s is too many\n", environ[at]);
    unsigned char *memory = take(MUCH);
    fill(memory, MUCH, 1);
    CHECK(memory, MUCH, 1, "memory");
}

static void execute(int way, char *file, char **words, char **given) {
    switch (way) {
        case 0: execve(file, words, given); break;
        case 1: environ = given; execv(file, words); break;
        case 2: environ = given; execvp(file, words); break;
        case 3: execvpe(file, words, given); break;
        case 4: fexecve(open(file, O_RDONLY | O_CLOEXEC), words, given); break;
        case 5: execveat(open(file, O_PATH | O_CLOEXEC), "", words, given, AT_EMPTY_PATH); break;
    }
    MUST(!"executed");
}

static pid_t begin(int way, char *file, char **words, char **given) {
    pid_t child;
    if (way == 6) {
        child = vfork();
        if (child == 0) {
            execve(file, words, given);
            _exit(97);
        }
    } else if (way == 7) {
        MUST(posix_spawn(&child, file, NULL, NULL, words, given) == 0);
    } else if (way == 8) {
        MUST(posix_spawnp(&child, file, NULL, NULL, words, given) == 0);
    } else {
        child = fork();
        if (child == 0) execute(way, file, words, given);
    }
    MUST(child > 0);
    return child;
}

int main(int count, char **words) {
    if (count == 2) {
        look(GIVEN[atoi(words[1])]);
        return 0;
    }
    char file[4096];
    ssize_t len = readlink("/proc/self/exe", file, sizeof file - 1);
    MUST(len > 0);
    file[len] = 0;
    for (int way = 0; way < WAYS_LEN; way++) {
        for (int which = 0; which < GIVEN_LEN; which++) {
            // Each way once with each of the environments would take long: one of them each time.
            if (way % GIVEN_LEN != which && way != 0) continue;
            char number[] = {(char)('0' + which), 0};
            char *next[] = {words[0], number, NULL};
            wait_right(begin(way, file, next, GIVEN[which]), WAYS[way]);
        }
    }
    say("right\n");
    return 0;
}
