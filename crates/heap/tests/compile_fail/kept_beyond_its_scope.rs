//~ borrowed data escapes
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let mut kept = None;
    let _ = m.enter(|s| {
        kept = Some(s.alloc(NodeInit { value: 1, next: None })?);
        Ok(())
    });
}
