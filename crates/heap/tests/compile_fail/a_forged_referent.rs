//~ requires an `unsafe impl` declaration
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub struct Forged;
impl Referent for Forged {
    type Key = [u64];
    fn describe() -> TypeDescriptor {
        TypeDescriptor { name: String::new(), shape: Shape::Values { bytes: 1 } }
    }
    fn size(_: u64) -> u64 {
        16
    }
}
