//~ is unsafe and requires unsafe
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| {
        let here = s.alloc(NodeInit { value: 1, next: None })?;
        Ok(here.load_plain::<bool>(0))
    });
}
