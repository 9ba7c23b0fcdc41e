// Executes itself, with an empty environment, in the ways that are not those of `exec_elsewhere`: words one by one, by
// the number of the system call, through shells and scripts, from a thread, and with hardly any stack.
#include "torture.h"
#include <elf.h>
#include <spawn.h>

extern char **environ;

static char *EMPTY[] = {NULL};
static char *LOOK[] = {"x", "look", NULL};
static char self[4096], shell[sizeof self + 64], script[sizeof self + 4];

// Behind the environment are the values of the kernel, and some look for them there.
static void look_behind(char **words, int count) {
    char **at = words + count + 1;
    while (*at) at++;
    const Elf64_auxv_t *value = (void *)(at + 1);
    for (int i = 0; value[i].a_type != AT_NULL; i++) {
        if (value[i].a_type == AT_PAGESZ && value[i].a_un.a_val == PAGE) return;
    }
    WRONG("what is behind the environment is not to be found\n");
}

static int look(int count, char **words) {
    for (char **entry = environ; *entry; entry++) {
        if (!strncmp(*entry, "MUNINN", 6) || !strncmp(*entry, "LD_PRELOAD", 10)) WRONG("it sees %s\n", *entry);
    }
    look_behind(words, count);
    unsigned char *memory = take(MUCH);
    fill(memory, MUCH, 1);
    CHECK(memory, MUCH, 1, "memory");
    return 0;
}

static void *spawn(void *environment) {
    pid_t child;
    MUST(posix_spawn(&child, self, NULL, NULL, LOOK, environment) == 0);
    wait_right(child, "with little stack");
    return NULL;
}

static void spawn_with_little_stack(int variables) {
    char **environment = calloc(variables + 1, sizeof *environment);
    for (int i = 0; i < variables; i++) MUST(asprintf(&environment[i], "V%d=x", i) > 0);
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    MUST(pthread_attr_setstacksize(&attr, 16384) == 0);
    MUST(pthread_create(&thread, &attr, spawn, environment) == 0);
    MUST(pthread_join(thread, NULL) == 0);
}

static void *execute_in_thread(void *unused) {
    execve(self, LOOK, EMPTY);
    MUST(!"exec");
    return unused;
}

static void execute(int way) {
    pthread_t thread;
    switch (way) {
        case 0: environ = EMPTY; execl(self, "x", "look", NULL); break;
        case 1: execle(self, "x", "look", NULL, EMPTY); break;
        case 2: environ = EMPTY; execlp(self, "x", "look", "3", "4", "5", "6", "7", "8", "9", NULL); break;
        case 3: syscall(SYS_execve, self, LOOK, EMPTY); break;
        case 4: syscall(SYS_execveat, AT_FDCWD, self, LOOK, EMPTY, 0); break;
        case 5: execve("/bin/sh", (char *[]){"sh", "-c", shell, NULL}, EMPTY); break;
        case 6: execve(script, (char *[]){script, NULL}, EMPTY); break;
        case 7:
            MUST(pthread_create(&thread, NULL, execute_in_thread, NULL) == 0);
            for (unsigned char *at = take(MIB);;) fill(at, MIB, 3);
        case 8: environ = EMPTY; _exit(system(shell) ? 1 : 0);
        case 9: environ = EMPTY; _exit(pclose(popen(shell, "w")) ? 1 : 0);
    }
    MUST(!"executed");
}

int main(int count, char **words) {
    if (count > 1) return look(count, words);
    MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(shell, sizeof shell, "%s look; exit $?", self);
    snprintf(script, sizeof script, "%s.%d", self, getpid());
    FILE *file = fopen(script, "w");
    MUST(file && fprintf(file, "#!/bin/sh\nexec %s look\n", self) > 0 && fclose(file) == 0);
    MUST(chmod(script, 0755) == 0);
    for (int way = 0; way < 10; way++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) execute(way);
        char name[32];
        snprintf(name, sizeof name, "way %d", way);
        wait_right(child, name);
    }
    MUST(unlink(script) == 0);
    int variables[] = {300, 1500};
    for (int i = 0; i < 2; i++) spawn_with_little_stack(variables[i]);
    say("right\n");
}
