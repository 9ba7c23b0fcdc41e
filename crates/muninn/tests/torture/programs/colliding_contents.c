// Writes two contents in turn that have one XXH3-128 under its public secret (see collision.rs): one who
// decides by that hash whether a page was changed loses every second write.
#include "torture.h"

enum { PAGES = 64 };

static void page_of(unsigned char *page, unsigned number, int second) {
    static const unsigned char secrets[2][4] = {{0xb8, 0xfe, 0x6c, 0x39}, {0x7c, 0x01, 0x81, 0x2c}};
    for (unsigned at = 0; at < PAGE; at++) page[at] = (unsigned char)(at * 7 + number) | 1;
    for (int stripe = 0; stripe < 2; stripe++) {
        uint32_t upper = stripe == second ? 1 : 2;
        memcpy(page + stripe * 64, secrets[stripe], 4);
        memcpy(page + stripe * 64 + 4, &upper, 4);
    }
}

int main(void) {
    unsigned char *at = take(PAGES * PAGE), expected[PAGE];
    for (int turn = 0; turn < 4; turn++) {
        for (unsigned i = 0; i < PAGES; i++) page_of(at + i * PAGE, i, turn % 2);
        push_out();
        push_out();
        unsigned lost = 0;
        for (unsigned i = 0; i < PAGES; i++) {
            page_of(expected, i, turn % 2);
            lost += memcmp(at + i * PAGE, expected, PAGE) != 0;
        }
        if (lost) WRONG("%u of %d writes were lost\n", lost, PAGES);
    }
    say("all writes are there\n");
}
