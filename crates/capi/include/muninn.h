/* Muninn: memory on other machines, for C and whatever can call C.
 *
 *   cc program.c -lmuninn
 *
 * Functions return 0, or -1 when they failed: muninn_error() then says what happened, to what, and what to do
 * next. Those that return a pointer return NULL instead. All may be called by several threads at a time, except
 * that nothing may be used while or after it is closed. Nothing here survives fork(): a child must open pools and
 * arenas of its own, and has no part in its parent's. */
#ifndef MUNINN_H
#define MUNINN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the last function that failed in this thread has to say; never NULL, valid until the next that fails. */
const char *muninn_error(void);

/* The version of the library, such as "0.1.0". */
const char *muninn_version(void);

/* ---- A pool: memory at servers, read and written by calls. ---- */

typedef struct muninn_pool muninn_pool;

/* A piece of memory at one server. The fields are for looking at, not for changing. */
typedef struct muninn_grant {
    uint64_t id;
    uint64_t bytes;
    uint32_t server;
    uint32_t reserved;
} muninn_grant;

/* Connects to servers such as "unix:/run/muninn/muninn.sock,10.0.0.5:7000". KEY_FILE is the file with the key
 * that they were started with, or NULL. */
muninn_pool *muninn_pool_open(const char *servers, const char *key_file);
/* Gives back all that was granted. */
void muninn_pool_close(muninn_pool *pool);

/* Asks for memory, zeroed; the grant may be larger than what was asked for. */
int muninn_grant_take(muninn_pool *pool, uint64_t bytes, muninn_grant *grant);
int muninn_grant_release(muninn_pool *pool, const muninn_grant *grant);

int muninn_read(muninn_pool *pool, const muninn_grant *grant, uint64_t offset, void *into, size_t bytes);
int muninn_write(muninn_pool *pool, const muninn_grant *grant, uint64_t offset, const void *from, size_t bytes);

/* On a word of 8 bytes at a multiple of 8; FOUND is what was there before. */
int muninn_compare_swap(muninn_pool *pool, const muninn_grant *grant, uint64_t offset, uint64_t expect,
                        uint64_t desired, uint64_t *found);
int muninn_fetch_add(muninn_pool *pool, const muninn_grant *grant, uint64_t offset, uint64_t add, uint64_t *found);

/* ---- An arena: memory of this process, most of which is far. ----
 *
 * Pointers into it work as any others, in system calls, too. Pages leave when more than LOCAL bytes are near,
 * and come back when they are touched; each that comes back is compared with what left. One that cannot be had
 * back raises SIGBUS when it is touched: never zeros or older contents. Needs /dev/userfaultfd and Linux 6.8
 * ('muninn setup --check'). */

typedef struct muninn_arena muninn_arena;

typedef struct muninn_arena_stats {
    uint64_t near_bytes;   /* here now */
    uint64_t far_bytes;    /* at servers only, now */
    uint64_t fetched;      /* chunks that came back, ever */
    uint64_t evicted;      /* chunks that left, ever */
    uint64_t kept;         /* chunks that could not leave: pinned, or no server had room */
    uint64_t lost;         /* chunks that could not be had back */
} muninn_arena_stats;

/* BYTES of address space, zeroed, of which LOCAL stay here. It makes connections of its own. */
muninn_arena *muninn_arena_open(const char *servers, const char *key_file, uint64_t bytes, uint64_t local);
/* Its memory is gone afterwards, near and far. */
void muninn_arena_close(muninn_arena *arena);

void *muninn_arena_base(const muninn_arena *arena);
uint64_t muninn_arena_size(const muninn_arena *arena);
/* The next BYTES that nobody has, aligned to ALIGN (a power of two up to 4096); NULL when it is full. What is
 * taken so is given back with the arena. */
void *muninn_arena_take(muninn_arena *arena, uint64_t bytes, uint64_t align);
void muninn_arena_look(const muninn_arena *arena, muninn_arena_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
