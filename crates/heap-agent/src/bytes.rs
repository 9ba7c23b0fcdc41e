//! Numbers and texts in a row of bytes, little-endian, as commands and bulk data carry them.
//!
//! Invariant: reading never panics and never allocates from a length that the bytes do not have.

/// The bytes ended too early or mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a command to the heap's agent is cut short or means nothing")]
pub struct Short;

#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, n: u8) {
        self.0.push(n);
    }
    pub fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    pub fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    pub fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend_from_slice(text.as_bytes());
    }
    pub fn words(&mut self, words: &[u64]) {
        self.u32(words.len() as u32);
        words.iter().for_each(|word| self.u64(*word));
    }
}

#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Short)?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        self.take(N)?.try_into().map_err(|_| Short)
    }
    pub fn u8(&mut self) -> Result<u8, Short> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub fn text(&mut self) -> Result<String, Short> {
        let len = self.u32()? as usize;
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| Short)
    }
    pub fn words(&mut self) -> Result<Vec<u64>, Short> {
        let len = self.u32()? as usize;
        let bytes = self.take(len.checked_mul(8).ok_or(Short)?)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
