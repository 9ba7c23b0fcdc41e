// MADV_FREE: each page is as it was, or zeros, and what is written later stays.
#include "torture.h"

int main(void) {
    unsigned char *at = take(MUCH);
    for (uint64_t round = 1; round <= 5; round++) {
        fill(at, MUCH, round);
        MUST(madvise(at, MUCH, MADV_FREE) == 0);
        // Every second page is wanted after all.
        for (size_t page = 0; page < MUCH / PAGE; page += 2)
            for (size_t i = page * 512; i < page * 512 + 512; i++) ((uint64_t *)at)[i] = word_of(round + 100, i);
        push_out();
        for (size_t page = 0; page < MUCH / PAGE; page++) {
            const uint64_t *words = (uint64_t *)at + page * 512;
            if (page % 2 == 0) {
                for (size_t i = 0; i < 512; i++)
                    if (words[i] != word_of(round + 100, page * 512 + i)) WRONG("a page written after MADV_FREE\n");
            } else {
                int zero = words[0] == 0;
                for (size_t i = 0; i < 512; i++)
                    if (words[i] != (zero ? 0 : word_of(round, page * 512 + i))) WRONG("a freed page\n");
            }
        }
    }
    say("as they were, or zeros\n");
}
