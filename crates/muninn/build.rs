//! Sees to it that the library that goes into programs lies where it is looked for when the command line is compiled.
//!
//! The command line carries that library in itself (`cmd::run::library`), and cargo has no stable way to
//! name the file that a dependency of kind cdylib becomes. Two things that cargo does are used instead: it
//! links such a dependency to the end before it begins with who depends on it, and puts it into `deps/`,
//! by a name without a hash.
//!
//! Where things are only checked (`cargo check`, clippy, documentation) nothing is linked, and an empty
//! file takes its place; a build that follows puts the library there, since it knows of none yet. A binary
//! can so never hold the empty one.
//!
//! Its path is not said here but made of `OUT_DIR` where it is used: what a script has said stays as it was when the
//! folder is copied or moved, and the library of the old place went into the binary.

use std::fs::File;
use std::path::{Path, PathBuf};

const NAME: &str = "libmuninn_preload.so";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    // PROFILE/build/muninn-HASH/out, and PROFILE/deps.
    let profile = out.ancestors().nth(3).unwrap_or(Path::new("/"));
    let deps = profile.join("deps");
    std::fs::create_dir_all(&deps).expect("the folder of dependencies can be made");
    let library = deps.join(NAME);
    // Fails where the library is there already, as it should.
    let _ = File::create_new(&library);
}
