//~ a plain enum has no payloads
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
#[derive(Clone, Copy, Plain)]
pub enum Shape {
    Circle(f64),
    Square,
}
