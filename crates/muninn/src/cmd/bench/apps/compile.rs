//! `gcc` over one large source: a driver, a compiler and an assembler, one after the other.

use super::program::{Measured, Program, digest, quoted, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::{Bytes, SplitMix64};
use std::fmt::Write;
use std::time::Duration;

/// What the compiler holds for a row of the generated table, about.
const ROW: u64 = 1200;
/// Rows for each function that looks things up in the table.
const ROWS_PER_FUNCTION: u64 = 2000;

#[derive(Debug, Default)]
pub struct Compile {
    words: Vec<String>,
}

/// A table of constants, as generators of parsers and of drivers write them, and functions over it.
fn source(rows: u64) -> String {
    let mut dice = SplitMix64::new(3);
    let mut text = String::from(
        "struct row { unsigned id; double weight; const char *name; unsigned links[4]; };\n\
         const struct row rows[] = {\n",
    );
    for n in 0..rows {
        let weight = dice.below(1_000_000);
        let links: Vec<String> = (0..4).map(|_| format!("{}u", dice.below(rows))).collect();
        let links = links.join(", ");
        let _ = writeln!(text, "{{{n}u, {weight}e-3, \"row{n}\", {{{links}}}}},");
    }
    text += "};\n";
    for n in 0..rows / ROWS_PER_FUNCTION {
        let _ = writeln!(text, "unsigned f{n}(unsigned a) {{ switch (a % 16) {{");
        for case in 0..16 {
            let (link, factor) = (dice.below(4), dice.below(1 << 30));
            let _ = writeln!(
                text,
                "case {case}: a += rows[a % {rows}u].links[{link}] * {factor}u; break;"
            );
        }
        text += "} return a; }\n";
    }
    text
}

impl Program for Compile {
    fn name(&self) -> &'static str {
        "compile"
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        works("gcc", &["--version"]).map_err(|error| format!("{error} (Debian: gcc)"))?;
        let input = arena.dir().join("large.c");
        let text = source(size.0 / ROW);
        std::fs::write(&input, text).map_err(|error| format!("no source file: {error}"))?;
        let output = arena.dir().join("large.o");
        self.words = ["gcc", "-O1", "-c", "-o"]
            .map(str::to_string)
            .into_iter()
            .chain([output, input].map(|path| path.to_string_lossy().into_owned()))
            .collect();
        Ok(())
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        let output = arena.dir().join("large.o");
        let _ = std::fs::remove_file(&output);
        let job = Job {
            patience,
            ..Job::new(self.words.clone())
        };
        let ran = arena.run(backend, limit, &job)?;
        let sum = |_: &_| digest(&output).ok();
        Ok(vec![Measured::of_run("compile", &ran, sum)])
    }

    fn script(&self) -> Option<String> {
        let input = self.words.last()?;
        let input = quoted(&[input]);
        let object = r#""$PLACE/large.o""#;
        Some(format!(
            "gcc -O1 -c -o {object} {input} && cksum < {object}"
        ))
    }
}
