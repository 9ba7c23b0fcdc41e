/* Memory at a server, by calls: a buffer, a counter, and what a mistake looks like.
 *
 *   cc pool.c -lmuninn && ./a.out unix:/run/muninn/muninn.sock */
#include <muninn.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(void) {
    fprintf(stderr, "%s\n", muninn_error());
    exit(1);
}

int main(int argc, char **argv) {
    muninn_pool *pool = muninn_pool_open(argc > 1 ? argv[1] : "unix:/run/muninn/muninn.sock", NULL);
    if (pool == NULL) fail();
    muninn_grant grant;
    if (muninn_grant_take(pool, 1 << 20, &grant) != 0) fail();

    char back[14] = {0};
    if (muninn_write(pool, &grant, 4096, "kept far away", 13) != 0) fail();
    if (muninn_read(pool, &grant, 4096, back, 13) != 0) fail();
    printf("%s\n", back);

    uint64_t found = 0;
    for (int i = 0; i < 3; i++)
        if (muninn_fetch_add(pool, &grant, 0, 14, &found) != 0) fail();
    if (muninn_compare_swap(pool, &grant, 0, 42, 7, &found) != 0) fail();
    printf("the counter stood at %llu\n", (unsigned long long)found);

    if (muninn_read(pool, &grant, grant.bytes, back, 13) != 0) printf("refused: %s\n", muninn_error());
    if (muninn_grant_release(pool, &grant) != 0) fail();
    muninn_pool_close(pool);
    return 0;
}
