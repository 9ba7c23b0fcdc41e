/* Ordinary memory, most of which is far: 64 MiB of numbers of which 8 MiB are here.
 *
 *   cc arena.c -lmuninn && ./a.out unix:/run/muninn/muninn.sock */
#include <fcntl.h>
#include <muninn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const size_t count = 8 << 20;
    muninn_arena *arena = muninn_arena_open(argc > 1 ? argv[1] : "unix:/run/muninn/muninn.sock", NULL,
                                            count * sizeof(uint64_t), 8 << 20);
    uint64_t *numbers = arena ? muninn_arena_take(arena, count * sizeof *numbers, 64) : NULL;
    if (numbers == NULL) {
        fprintf(stderr, "%s\n", muninn_error());
        return 1;
    }
    for (size_t i = 0; i < count; i++) numbers[i] = i * i;
    /* Everywhere, in another order than it was written in: blocks of 4096 numbers, 769 blocks apart. */
    uint64_t wrong = 0;
    const size_t block = 4096, blocks = count / block;
    for (size_t step = 0; step < blocks; step++)
        for (size_t i = step * 769 % blocks * block, end = i + block; i < end; i++) wrong += numbers[i] != i * i;
    /* The kernel reads it, too. */
    int null = open("/dev/null", O_WRONLY), written = 0;
    for (size_t i = 0; i < count; i += 1 << 17) written += write(null, &numbers[i], 1 << 20) == 1 << 20;

    muninn_arena_stats stats;
    muninn_arena_look(arena, &stats);
    printf("wrong %llu, written %d of 64\n", (unsigned long long)wrong, written);
    printf("here at most 8 MiB: %s; far: %s; lost %llu\n", stats.near_bytes <= 8 << 20 ? "yes" : "no",
           stats.far_bytes >= 48 << 20 ? "the rest" : "too little", (unsigned long long)stats.lost);
    muninn_arena_close(arena);
    return wrong != 0;
}
