//! Both state machines of the protocol, client and server, without I/O
#![forbid(unsafe_code)]
