//! Programs that were linked with one release work with the next as long as this number stays.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmuninn.so.0");
}
