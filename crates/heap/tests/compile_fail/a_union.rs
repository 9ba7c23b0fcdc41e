//~ a union is not plain
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Clone, Copy, Plain)]
pub union Either {
    a: u64,
    b: bool,
}
