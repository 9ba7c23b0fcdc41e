//~ the trait bound `String: Plain` is not satisfied
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Managed)]
pub struct Holder {
    text: String,
}
