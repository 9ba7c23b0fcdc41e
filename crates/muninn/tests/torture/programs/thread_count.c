// What a process can see of who is in it: its threads, whether libc thinks that it is alone, whether it
// may do what only a process with one thread may.
#include "torture.h"
#include <dirent.h>
#include <sys/single_threaded.h>

static int entries(const char *path) {
    DIR *folder = opendir(path);
    MUST(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static int threads_of_status(void) {
    char line[256];
    int threads = -1;
    FILE *file = fopen("/proc/self/status", "r");
    MUST(file);
    while (fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &threads);
    fclose(file);
    return threads;
}

static void look(const char *when) {
    say("%s: %d threads, status says %d, libc thinks %s\n", when, entries("/proc/self/task"), threads_of_status(),
        __libc_single_threaded ? "one" : "several");
}

static void *nothing(void *unused) { return unused; }

int main(void) {
    look("at first");
    unsigned char *at = take(MUCH);
    fill(at, MUCH, 1);
    look("with far memory");
    for (int how = 0; how < 2; how++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            look("in a child");
            CHECK(at, MUCH, 1, "child");
            // Only a process with one thread may have a new user namespace, or leave a shared folder.
            int error = unshare(how ? CLONE_NEWUSER : CLONE_FS) ? errno : 0;
            say("unshare: %s\n", error == EINVAL ? "refused" : "as ever");
            CHECK(at, MUCH, 1, "after unshare");
            _exit(0);
        }
        wait_right(child, "child");
    }
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK(at, MUCH, 1, "parent");
    say("right\n");
}
