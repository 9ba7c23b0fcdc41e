//~ requires an `unsafe impl` declaration
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub struct Forged;
impl Managed for Forged {
    const BYTES: u64 = 8;
    fn descriptor() -> TypeDescriptor {
        TypeDescriptor { name: String::new(), shape: Shape::Refs }
    }
}
