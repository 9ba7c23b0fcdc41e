//! A random program: memory calls, threads, forks, signals and transfers by reference, made from a
//! seed, that knows what its memory must hold.
//!
//! `fuzz-run play --seed N` takes the steps and prints the digest of all that it read, or the step at
//! which a byte was wrong. It knows nothing of Muninn: run plainly and under `muninn run` it must
//! print the same, every time. `fuzz-run list --seed N` prints the steps in words. `--skip` leaves
//! steps out, by the numbers that `list` prints, so that what does not matter for a failure can be
//! taken away: `tests/differential` does.
//!
//! Known limit: a step that finds nothing to work on does nothing, so not all of a list happens.

mod actor;
mod byref;
#[allow(dead_code)] // shared with the checker, which needs more of it
#[path = "../checker/calls.rs"]
mod calls;
mod dice;
mod forks;
mod generate;
mod heap;
mod memory;
mod model;
mod signals;
mod step;
mod threads;
mod transfer;
mod uring;

use actor::{Actor, Role, Rules, wrong};
use std::process::ExitCode;
use std::sync::Arc;
use step::Step;

const USAGE: &str = "usage: fuzz-run play|list --seed N [--steps M] [--skip 1,4-9,12.3] \
                     [--without rawfork,procmem] [--trace]
  play  takes the steps; prints the digest of what was read, or what was wrong
  list  prints the steps in words
  size  prints how many MiB the program has at most, apart from its threads and children
";

struct Args {
    command: String,
    seed: u64,
    steps: usize,
    rules: Rules,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Args> {
    let command = words.next()?;
    let mut rules = Rules::default();
    let (mut seed, mut steps) = (None, generate::STEPS);
    while let Some(name) = words.next() {
        if name == "--trace" {
            rules.trace = true;
            continue;
        }
        let value = words.next()?;
        match name.as_str() {
            "--seed" => seed = Some(value.parse().ok()?),
            "--steps" => steps = value.parse().ok()?,
            "--without" => rules.without = value.split(',').map(str::to_string).collect(),
            "--skip" => {
                for item in value.split(',').filter(|item| !item.is_empty()) {
                    match item.split_once('-') {
                        Some((from, to)) => {
                            let all = from.parse::<usize>().ok()?..=to.parse().ok()?;
                            rules.skipped.extend(all.map(|n| n.to_string()));
                        }
                        None => _ = rules.skipped.insert(item.to_string()),
                    }
                }
            }
            _ => return None,
        }
    }
    let seed = seed?;
    Some(Args {
        command,
        seed,
        steps,
        rules,
    })
}

fn main() -> ExitCode {
    let Some(args) = parse(std::env::args().skip(1)) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let steps = generate::steps(args.seed, args.steps);
    match args.command.as_str() {
        "list" => list(&steps, &args.rules, 0),
        "size" => println!("{}", generate::shape(args.seed).pages / 256),
        "play" => play(args, &steps),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn list(steps: &[Step], rules: &Rules, depth: usize) {
    for step in steps.iter().filter(|step| !rules.skip(step)) {
        println!(
            "{:indent$}{}: {}",
            "",
            step.id,
            step.act,
            indent = depth * 4
        );
        list(step.act.inner(), rules, depth + 1);
    }
}

fn play(args: Args, steps: &[Step]) {
    // Memory that is wrong can make anything panic: that is a result as well.
    std::panic::set_hook(Box::new(|panic| {
        wrong(&format!("{panic}").replace('\n', " "))
    }));
    let pages = generate::shape(args.seed).pages;
    let mut actor = Actor::new(Role::Process, pages, Arc::new(args.rules));
    actor.areas[15] = Some(heap::static_area());
    let played = signals::prepare().and_then(|()| actor.play(steps));
    match played {
        Ok(sum) => println!("digest {:016x}", sum.0),
        Err(text) => wrong(&text),
    }
}
