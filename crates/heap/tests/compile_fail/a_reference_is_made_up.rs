//~ mismatched types
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(r: &Ref<Node>) {
    let _again: Ref<Node> = r.clone();
}
