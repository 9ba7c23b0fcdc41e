//~ cannot borrow
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|_| m.enter(|_| Ok(())));
}
