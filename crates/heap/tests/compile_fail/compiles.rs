use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub fn f(m: &mut Mutator) -> Result<u64, HeapError> {
    m.enter(|s| {
        let first = s.alloc(NodeInit { value: 1, next: None })?;
        let waited = s.blocking(|| 5);
        Ok(first.value() + waited)
    })
}
