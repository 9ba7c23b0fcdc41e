//! What a runtime should be told about the limit, where its user left it open.
//!
//! A program that manages its memory itself often can do with little of it near, if it is told so: a
//! collector that copies what is young inside of a small nursery keeps that nursery near, one that walks
//! the whole heap in the order of addresses brings everything back each time. Invariant: what the user
//! said, wherever he said it, is never changed, and nothing is set that makes a program fail that ran
//! without. What cannot be known for sure counts as said by the user. Why these runtimes and no others,
//! with figures: `docs/JAVA.md`.

pub mod jvm;
pub mod words;

/// What to say to a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// What it wants fits: nothing is to be gained.
    Fits,
    /// These options, for this reason.
    Set {
        options: Vec<String>,
        reason: String,
    },
    /// Nothing, for this reason.
    Leave(String),
}

impl Advice {
    /// The line for people. `set`: it was done; else it would have been.
    pub fn line(&self, runtime: &str, set: bool) -> Option<String> {
        match self {
            Advice::Fits => None,
            Advice::Set { options, reason } => {
                let options = options.join(" ");
                Some(match set {
                    true => format!("{runtime} was given {options}: {reason}"),
                    false => format!("with --tune, {runtime} would be given {options}: {reason}"),
                })
            }
            Advice::Leave(reason) => set.then(|| format!("{runtime} is left as it is: {reason}")),
        }
    }
}
