//! A bit for each granule of a region, or for each entry of a tablet.

/// Bits of fixed number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitmap(Vec<u64>);

impl Bitmap {
    pub fn new(bits: u32) -> Bitmap {
        Bitmap(vec![0; bits.div_ceil(64) as usize])
    }
    pub fn from_words(words: Vec<u64>) -> Bitmap {
        Bitmap(words)
    }
    pub fn words(&self) -> &[u64] {
        &self.0
    }
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
    pub fn get(&self, bit: u32) -> bool {
        self.0[bit as usize / 64] >> (bit % 64) & 1 != 0
    }
    /// Sets a bit; whether it was clear.
    pub fn set(&mut self, bit: u32) -> bool {
        let word = &mut self.0[bit as usize / 64];
        let mask = 1 << (bit % 64);
        let was_clear = *word & mask == 0;
        *word |= mask;
        was_clear
    }
    pub fn clear(&mut self, bit: u32) {
        self.0[bit as usize / 64] &= !(1 << (bit % 64));
    }
    pub fn clear_all(&mut self) {
        self.0.fill(0);
    }
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
    pub fn is_clear(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
    /// The set bits, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(at as u32 * 64 + bit)
            })
        })
    }
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_again_in_order() {
        let mut bits = Bitmap::new(200);
        for bit in [199, 0, 63, 64, 130] {
            assert!(bits.set(bit));
            assert!(!bits.set(bit));
        }
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 63, 64, 130, 199]);
        bits.clear(63);
        assert_eq!((bits.count(), bits.get(63), bits.get(64)), (4, false, true));
    }
}
