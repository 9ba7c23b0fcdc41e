//! Plain SVG charts in one style
#![forbid(unsafe_code)]
