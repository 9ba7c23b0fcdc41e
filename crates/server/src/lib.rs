//! The memory server
