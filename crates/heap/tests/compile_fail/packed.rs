//~ a packed struct is not plain
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Clone, Copy, Plain)]
#[repr(C, packed)]
pub struct Packed {
    a: u8,
    b: u64,
}
