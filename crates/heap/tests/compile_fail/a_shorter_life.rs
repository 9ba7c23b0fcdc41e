//~ lifetime may not live long enough
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn shorter<'a, 'b: 'a>(x: Local<'b, Node>) -> Local<'a, Node> {
    x
}
