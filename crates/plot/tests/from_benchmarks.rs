//! The charts in the tree are those of the figures in the tree.

#[path = "../examples/from_benchmarks/tables.rs"]
mod tables;

#[test]
fn charts_say_what_the_tables_say() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let paging = std::fs::read_to_string(docs.join("benchmarks/paging.md")).unwrap();
    for (name, svg) in tables::charts(&paging) {
        let path = docs.join("images").join(name);
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == svg,
            "{} is not what the tables say: cargo run -p muninn-plot --example from_benchmarks",
            path.display()
        );
        assert!(
            !svg.contains("no data") && svg.matches("<rect").count() > 8,
            "{name}"
        );
    }
}
