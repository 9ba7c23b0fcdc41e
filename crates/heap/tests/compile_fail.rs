//! What safe code must not be able to say does not compile, each case for the reason that it names.
//!
//! A case is a file in `tests/compile_fail`; every line `//~ text` in it is a part of what the
//! compiler must say. Cases are given to the compiler that built this test, with the library that
//! this test is linked with: nothing is built again. One case compiles, so that a broken way of
//! calling the compiler is not taken for success.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest build of the library beside this test.
fn library(folder: &Path) -> PathBuf {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| {
            let hash = name.strip_prefix("libmuninn_heap-");
            hash.is_some_and(|hash| hash.ends_with(".rlib"))
        })
    };
    let found = std::fs::read_dir(folder).unwrap();
    let found = found.map(|entry| entry.unwrap().path()).filter(is_library);
    found
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("this test is linked with the library, so it lies beside it")
}

/// What the compiler says of a file; whether it took it.
fn compile(case: &Path, library: &Path, out: &Path) -> (bool, String) {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut with = std::ffi::OsString::from("muninn_heap=");
    with.push(library);
    let mut folder = std::ffi::OsString::from("dependency=");
    folder.push(library.parent().unwrap());
    let ended = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "lib"])
        .args(["--emit", "metadata", "--out-dir"])
        .arg(out)
        .arg("--extern")
        .arg(with)
        .arg("-L")
        .arg(folder)
        .arg(case)
        .output()
        .expect("cargo runs this test, so rustc is there");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.success(), said)
}

#[test]
fn what_must_not_compile_does_not() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let test = std::env::current_exe().unwrap();
    let library = library(test.parent().unwrap());
    let out = tempfile::tempdir().unwrap();
    let mut files: Vec<PathBuf> = std::fs::read_dir(cases)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() > 20, "the cases are not there: {files:?}");
    let mut wrong = Vec::new();
    for case in files {
        let name = case.file_stem().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&case).unwrap();
        let wanted: Vec<&str> = text
            .lines()
            .filter_map(|l| l.strip_prefix("//~ "))
            .collect();
        let (compiles, said) = compile(&case, &library, out.path());
        match name {
            "compiles" if compiles => {}
            "compiles" => panic!("nothing compiles:\n{said}"),
            _ if wanted.is_empty() => wrong.push(format!("{name} does not say what it expects")),
            _ if compiles => wrong.push(format!("{name} compiles")),
            _ => {
                for text in wanted.iter().filter(|text| !said.contains(**text)) {
                    wrong.push(format!("{name}: '{text}' is not in what was said:\n{said}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
