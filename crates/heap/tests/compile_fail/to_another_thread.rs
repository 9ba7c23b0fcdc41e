//~ between threads safely
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| {
        let here = s.alloc(NodeInit { value: 1, next: None })?;
        std::thread::scope(|t| {
            t.spawn(|| here.value());
        });
        Ok(())
    });
}
