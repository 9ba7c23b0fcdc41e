//~ Plain` is not satisfied
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Clone, Copy, Plain)]
pub struct Pointer(&'static u8);
