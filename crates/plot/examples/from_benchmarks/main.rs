//! Draws the charts of the README and the guide from the tables of `docs/benchmarks`, so that a figure stands in
//! one place:
//!
//! ```console
//! $ cargo run -p muninn-plot --example from_benchmarks
//! ```
//!
//! A test draws them again and compares.

mod tables;

use std::path::Path;

fn main() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let paging = std::fs::read_to_string(docs.join("benchmarks/paging.md"))
        .expect("the benchmarks are in the tree");
    for (name, svg) in tables::charts(&paging) {
        let path = docs.join("images").join(name);
        std::fs::write(&path, svg).expect("docs/images can be written");
        println!("wrote docs/images/{name}");
    }
}
