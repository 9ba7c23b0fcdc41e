//~ escapes
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
struct Anywhere<T>(T);
unsafe impl<T> Send for Anywhere<T> {}
impl<T> Anywhere<T> {
    fn get(&self) -> &T {
        &self.0
    }
}
pub fn f(m: &mut Mutator) {
    let _ = m.enter(|s| {
        let here = Anywhere(s.alloc(NodeInit { value: 1, next: None })?);
        s.blocking(move || here.get().value());
        Ok(())
    });
}
