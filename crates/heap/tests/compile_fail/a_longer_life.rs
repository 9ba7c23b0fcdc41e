//~ lifetime may not live long enough
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn longer<'a, 'b: 'a>(x: Local<'a, Node>) -> Local<'b, Node> {
    x
}
