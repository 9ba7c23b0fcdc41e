//~ requires an `unsafe impl` declaration
use muninn_heap::*;
#[derive(Managed)]
pub struct Node {
    value: u64,
    next: Ref<Node>,
}
pub struct Empty;
impl<'s> Init<'s> for Empty {
    type Object = Node;
    fn write(self, _: &Fresh<'s>) {}
}
