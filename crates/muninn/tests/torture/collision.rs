//! Two pages with one XXH3-128 under its public secret, which `programs/colliding_contents.c` writes in
//! turn: one who decides by that hash whether a page has changed loses every second write.
//!
//! XXH3 takes 64-byte stripes of eight lanes. A lane adds its value to its neighbour's sum, and to its
//! own the product of the two halves of (value xor secret). Where the lower half of the value is that of
//! the secret the product is zero, so of the upper half only the sum over the stripes of a block counts:
//! exchanging two upper halves changes nothing.

use xxhash_rust::xxh3::xxh3_128;

/// The first four bytes of the public secret, with which the first lane of the first stripe is mixed,
/// and those for the same lane of the second stripe.
const SECRETS: [[u8; 4]; 2] = [[0xb8, 0xfe, 0x6c, 0x39], [0x7c, 0x01, 0x81, 0x2c]];

/// As `page_of` in the C program.
fn page(number: u32, second: bool) -> [u8; 4096] {
    let mut page = [0; 4096];
    for (at, byte) in page.iter_mut().enumerate() {
        *byte = (at as u32).wrapping_mul(7).wrapping_add(number) as u8 | 1;
    }
    for (stripe, secret) in SECRETS.iter().enumerate() {
        let upper = if (stripe == 1) == second { 1u32 } else { 2 };
        page[stripe * 64..][..4].copy_from_slice(secret);
        page[stripe * 64 + 4..][..4].copy_from_slice(&upper.to_le_bytes());
    }
    page
}

#[test]
fn the_two_contents_collide() {
    for number in 0..64 {
        let (one, other) = (page(number, false), page(number, true));
        assert_ne!(one, other);
        assert_eq!(xxh3_128(&one), xxh3_128(&other), "page {number}");
    }
}
