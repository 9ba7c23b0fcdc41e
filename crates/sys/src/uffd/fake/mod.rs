//! A userfaultfd without a kernel, on which races can be played back.
//!
//! A [`FakeSpace`] is an address space: real memory of this process, so that addresses can be read,
//! with a table of pages beside it that says what the kernel would. Tests act as the program on it
//! ([`FakeSpace::touch`], [`FakeSpace::remove`], …) and the code under test uses a
//! [`FakeFaultDevice`]. Requests follow the rules of the kernel as the tests against the real one
//! show them; on top, a [`Script`] makes the next requests fail or stop half-way, and events can be
//! reordered. Known limit: threads are numbers that wait in a list, not real threads.

mod device;
mod space;
mod state;

pub use device::{Call, FakeFaultDevice, Script};
pub use space::{FakeSpace, Touch};
