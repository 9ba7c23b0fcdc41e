/* fork in a thread that is not the first; in the child it returns from its function, and with its last
 * thread the program should end. Found by CPython's test_3_join_in_forked_from_thread.
 * Plain: "child ended with 0". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
static void *run(void *x) {
    pid_t pid = fork();
    if (pid) { int s; waitpid(pid, &s, 0); printf("child ended with %d\n", s); }
    return 0; /* in the child: the last thread of the program ends */
}
int main(int c, char **v) {
    size_t n = c > 1 ? atoi(v[1]) * 1048576UL : 4096; char *p = malloc(n); memset(p, 7, n);
    pthread_t t; pthread_create(&t, 0, run, 0); pthread_join(t, 0); return 0;
}
