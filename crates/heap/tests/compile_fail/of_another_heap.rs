//~ escapes
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(a: &mut Mutator, b: &mut Mutator) {
    let _ = a.enter(|s| {
        let here = s.alloc(NodeInit { value: 1, next: None })?;
        b.enter(|t| {
            t.alloc(NodeInit { value: 2, next: Some(here) })?;
            Ok(())
        })
    });
}
