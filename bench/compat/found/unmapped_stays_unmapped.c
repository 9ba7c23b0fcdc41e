/* A child with one thread unmaps a page and finds something else there: the runtime of the child maps its
 * own memory while the child already runs. Found by stress-ng --mincore 1. Plain: "0 of 50 children". */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/wait.h>
int main(void) {
    int bad = 0;
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        if (!pid) { /* a single-threaded child: what it unmapped stays unmapped */
            unsigned char v[1]; char *p = mmap(0, 4096, 3, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0); munmap(p, 4096);
            for (int k = 0; k < 20000; k++) if (mincore(p, 4096, v) == 0) {
                char c[200]; FILE *f = fopen("/proc/self/maps", "r");
                while (fgets(c, 200, f)) { unsigned long a, b; sscanf(c, "%lx-%lx", &a, &b); if ((unsigned long)p >= a && (unsigned long)p < b) printf("%p in %s", p, c); }
                fflush(stdout); _exit(1); }
            _exit(0);
        }
        int s; waitpid(pid, &s, 0); bad += s != 0;
    }
    printf("%d of 50 children\n", bad); return bad != 0;
}
