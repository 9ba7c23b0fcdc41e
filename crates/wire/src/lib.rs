//! Messages of the Muninn protocol, versioned, with a decoder that never panics
#![forbid(unsafe_code)]
