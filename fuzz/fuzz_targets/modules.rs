//! Any bytes are a module that can be run or are refused; and whatever a module does with what it imports, it
//! ends with a reply or an error, and nothing outside of its service's memory is touched.
//!
//! The first byte says what the rest is: a module as it came, or the body of a function, put into a module that
//! is valid but for it and imports all there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muninn_wic::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    match first & 1 {
        0 => {
            fuzzing::module(rest);
        }
        _ => fuzzing::body(rest),
    }
});
