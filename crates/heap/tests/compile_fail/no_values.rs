//~ a plain enum has at least one variant
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Clone, Copy, Plain)]
pub enum Never {}
