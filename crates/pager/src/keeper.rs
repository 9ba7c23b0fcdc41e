//! The launcher as a keeper of devices: were we killed, nobody else would have them, and absent pages would
//! read as zeros ([`muninn_job::Porter`]). And as one who sees what is closed to us.
//!
//! Invariant: the device of a ward is left there at once when the kernel hands it out, before anything else
//! is done. Known limit: who is killed between these two calls leaves a child that reads zeros.

use muninn_sys::own;
use muninn_sys::proc::{self, LateWrites};
use muninn_sys::socket::Link;
use muninn_sys::uffd::Userfaultfd;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

#[derive(Debug)]
pub struct Keeper {
    /// The launcher's door.
    door: String,
    link: OnceLock<Link>,
}

impl Keeper {
    pub fn behind(door: &str) -> Keeper {
        Keeper {
            door: door.to_string(),
            link: OnceLock::new(),
        }
    }

    /// The launcher has the program's device.
    pub fn set(&self, link: Link) {
        let _ = self.link.set(link);
    }

    /// Who may still write to the memory of the program, which stands still; the launcher sees more than we may.
    /// `None` if it could not be found out now.
    pub fn late_writes(&self) -> Option<LateWrites> {
        match proc::late_writes(own::listed_pid()).ok()? {
            LateWrites::Hidden => {
                let told = muninn_job::ask_late_writes(&self.door, own::program_pid());
                Some(told.unwrap_or(LateWrites::Hidden))
            }
            seen => Some(seen),
        }
    }

    /// The launcher is to have the device of a ward, too.
    pub fn leave_ward(&self, device: &Userfaultfd) {
        if let Some(link) = self.link.get() {
            muninn_job::leave_ward(link, token(device), device.as_fd());
        }
    }

    /// The ward needs nobody any more. To be called before its device is closed.
    pub fn take_back_ward(&self, device: &Userfaultfd) {
        if let Some(link) = self.link.get() {
            muninn_job::take_back_ward(link, token(device));
        }
    }

    /// The program is gone, and needs nobody any more.
    pub fn take_leave(&self) {
        if let Some(link) = self.link.get() {
            muninn_job::take_back(link);
        }
    }
}

/// Its number among our descriptors: no other device has it while this one is open.
fn token(device: &Userfaultfd) -> u64 {
    device.as_fd().as_raw_fd() as u64
}
