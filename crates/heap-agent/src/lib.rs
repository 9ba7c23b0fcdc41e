//! The part of the managed heap's collector that runs beside the objects.

pub mod bitmap;
pub mod bytes;
pub mod evacuate;
pub mod layout;
pub mod trace;
pub mod words;
