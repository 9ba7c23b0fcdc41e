//~ cannot be shared between threads safely
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| {
        std::thread::scope(|t| {
            t.spawn(|| s.safepoint());
        });
        Ok(())
    });
}
