//! All of Linux that Muninn touches, each part with a fake beside it
