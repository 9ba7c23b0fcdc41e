//~ escapes
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
thread_local! {
    static KEPT: std::cell::RefCell<Option<Local<'static, Node>>> = const { std::cell::RefCell::new(None) };
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| {
        let here = s.alloc(NodeInit { value: 1, next: None })?;
        KEPT.with(|kept| *kept.borrow_mut() = Some(here));
        Ok(())
    });
}
