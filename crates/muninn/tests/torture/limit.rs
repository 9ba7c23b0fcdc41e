//! The limit: never more than 8 MiB above it for longer than a millisecond, whatever the program does,
//! from the first instruction of `main` on. Where that does not hold (`known.rs`), what is above is given back:
//! within a second, or on a busy machine once it had its turn.

use crate::both::{Case, Plain, cannot_run, finish, open_place, program};
use crate::harness::start;
use crate::known;
use crate::watcher::{Count, watch};
use muninn_types::Bytes;
use std::time::Duration;

/// What may be above the limit.
const ABOVE: Bytes = Bytes::mib(8);
/// For so long, where the narrow bound does not hold, and so many times as long as this machine lets one wait
/// who wants to do something now.
const WHILE: Duration = Duration::from_secs(1);
const TURNS: u32 = 100;

fn keeps(words: &[&str], local: &str, count: Count, no_move: bool) {
    if cannot_run() {
        return;
    }
    let program = program(words[0]);
    let words = [&[program.as_str()], &words[1..]].concat();
    let mut case = Case::new(&words);
    case.local = local;
    let plain: Plain = case.plainly();
    let place = open_place();
    let mut options = vec!["--local", local];
    options.extend(no_move.then_some("--no-move"));
    let run = start(&place, &options, &words);
    let limit: Bytes = local.parse().unwrap();
    let allowed = Bytes(limit.0 + ABOVE.0);
    let seen = watch(&run, count, allowed, case.patience);
    let ran = finish(run, case.patience);
    println!("{words:?} at {local}: {seen:?}");
    if let Some(why) = known::wider() {
        case.compare_words(&plain, &ran);
        assert!(
            seen.above <= WHILE + seen.late * TURNS,
            "{words:?} at {local}: above the limit for too long, although {why}: {seen:?}"
        );
        assert!(seen.most > Bytes::ZERO && seen.looks > 1, "{seen:?}");
        return;
    }
    case.compare(&plain, &ran);
    assert!(
        seen.lasting <= allowed,
        "{words:?} at {local}: {} were resident for longer than a moment: {seen:?}",
        seen.lasting
    );
    // One who has seen nothing has shown nothing.
    let least = Bytes(limit.0 / 4);
    assert!(seen.most >= least, "{words:?} at {local}: {seen:?}");
}

macro_rules! keeps {
    ($($(#[$note:meta])* $name:ident: $words:expr, $local:expr, $count:ident;)+) => {
        $($(#[$note])* mod $name {
            use super::*;
            #[test]
            fn shm() {
                keeps(&$words, $local, Count::$count, false);
            }
            #[test]
            fn no_move() {
                keeps(&$words, $local, Count::$count, true);
            }
        })+
    };
}

keeps! {
    filled_at_once: ["fill_at_once", "256", "plain"], "64MiB", Private;
    /// Done in a few hundredths of a second: there is no time for a first look.
    filled_and_gone: ["fill_at_once", "48", "plain"], "16MiB", Private;
    filled_by_threads: ["fill_at_once", "96", "threads"], "32MiB", Private;
    populated: ["fill_at_once", "64", "populate"], "16MiB", Private;
    locked: ["fill_at_once", "48", "locked"], "16MiB", Private;
    locked_later: ["fill_at_once", "48", "lock-later"], "16MiB", Private;
    huge_pages: ["fill_at_once", "64", "huge"], "16MiB", Private;
    a_heap: ["fill_at_once", "64", "heap"], "16MiB", Private;
    /// A new process is seen within milliseconds, and the child reads what its parent has.
    many_mappings: ["many_mappings"], "32MiB", Shares;
    advised_free: ["advise_free"], "16MiB", Private;
    in_another_root: ["chroot_self", "before"], "16MiB", Shares;
    after_a_fork: ["fork_far", "48", "same"], "24MiB", Shares;
    many_children: ["fork_many", "100", "4", "check"], "24MiB", Shares;
}
