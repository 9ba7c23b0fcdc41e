//~ Plain` is not satisfied
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| s.alloc_values::<*const u8>(&[]).map(|_| ()));
}
