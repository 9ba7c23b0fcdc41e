//~ incompatible types
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| {
        let here = s.alloc(NodeInit { value: 1, next: None })?;
        here.set_next(Some(&s.alloc_str("a node?")?));
        Ok(())
    });
}
