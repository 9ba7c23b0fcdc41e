//! Three applications of where-independent code, as WICKit evaluates it.

pub mod list;
