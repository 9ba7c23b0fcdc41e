//! Children.
use muninn_sys::uffd::Userfaultfd;

#[derive(Debug, Default)]
pub struct Births {
    strangers: Vec<Userfaultfd>,
}

impl Births {
    pub fn is_empty(&self) -> bool {
        self.strangers.is_empty()
    }
    pub fn wait(&self, _program: &Userfaultfd) {}
    pub fn add_stranger(&mut self, device: Userfaultfd) {
        self.strangers.push(device);
    }
}

impl crate::actor::Actor {
    pub(crate) fn handle_fork(&mut self, device: Userfaultfd) -> Result<(), crate::Fatal> {
        self.births.add_stranger(device);
        Ok(())
    }
    pub(crate) fn attend_births(&mut self) -> Result<(), crate::Fatal> {
        Ok(())
    }
}
