//~ lifetime may not live long enough
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _: Result<(), _> = m.enter(|s| {
        let here = s.alloc(NodeInit { value: 1, next: None })?;
        let kept: Box<dyn std::any::Any> = Box::new(here);
        std::mem::forget(kept);
        Ok(())
    });
}
