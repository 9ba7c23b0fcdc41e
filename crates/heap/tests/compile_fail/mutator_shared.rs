//~ cannot be shared between threads safely
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &Mutator) {
    std::thread::scope(|t| {
        t.spawn(|| m.allocated_bytes());
    });
}
