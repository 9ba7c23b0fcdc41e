//! The launcher as a keeper of devices: were we killed, nobody else would have them, and absent pages would
//! read as zeros ([`muninn_job::Porter`]).
//!
//! Invariant: the device of a ward is left there at once when the kernel hands it out, before anything else
//! is done. Known limit: who is killed between these two calls leaves a child that reads zeros.

use muninn_sys::socket::Link;
use muninn_sys::uffd::Userfaultfd;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

#[derive(Debug, Default)]
pub struct Keeper(OnceLock<Link>);

impl Keeper {
    /// The launcher has the program's device.
    pub fn set(&self, link: Link) {
        let _ = self.0.set(link);
    }

    /// The launcher is to have the device of a ward, too.
    pub fn leave_ward(&self, device: &Userfaultfd) {
        if let Some(link) = self.0.get() {
            muninn_job::leave_ward(link, token(device), device.as_fd());
        }
    }

    /// The ward needs nobody any more. To be called before its device is closed.
    pub fn take_back_ward(&self, device: &Userfaultfd) {
        if let Some(link) = self.0.get() {
            muninn_job::take_back_ward(link, token(device));
        }
    }

    /// The program is gone, and needs nobody any more.
    pub fn take_leave(&self) {
        if let Some(link) = self.0.get() {
            muninn_job::take_back(link);
        }
    }
}

/// Its number among our descriptors: no other device has it while this one is open.
fn token(device: &Userfaultfd) -> u64 {
    device.as_fd().as_raw_fd() as u64
}
