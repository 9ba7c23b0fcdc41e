//~ aligned to 8 or less
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Clone, Copy, Plain)]
#[repr(align(16))]
pub struct Aligned(u64);
#[derive(Managed)]
pub struct Holder {
    it: Aligned,
}
