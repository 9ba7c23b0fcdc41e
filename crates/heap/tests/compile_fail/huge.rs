//~ is too large
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Managed)]
pub struct Huge {
    bytes: [u8; (1 << 32) + 16],
}
