//! The part of the managed heap's collector that runs beside the objects.

pub mod agent;
pub mod bitmap;
pub mod bytes;
pub mod command;
pub mod evacuate;
pub mod layout;
pub mod message;
pub mod room;
pub mod termination;
pub mod trace;
pub mod words;
