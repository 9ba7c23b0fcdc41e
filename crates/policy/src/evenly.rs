//! Who gives extents to a server that joined.
//!
//! A pool that grows has servers that are full beside one that is empty. The fullest one that may gives an
//! extent to the new one, one at a time and with a pause in between, until there is nothing to be gained: so
//! programs hardly notice, and whoever wants it to stop loses no more than one extent's copy.
//!
//! Invariant: each move brings the two nearer to each other, so it ends, and nothing goes back and forth.
//! Known limit: a program counts what it holds itself; others do the same for theirs.

use muninn_types::{Nanos, ServerId};

/// Between two moves. With extents of 16 MiB that is 64 MiB each second.
pub const PAUSE: Nanos = Nanos::millis(250);

/// Of those that could give an extent to a server that has `there`: who does, if anybody should. Extents that
/// each holds come with it.
pub fn giver(there: usize, others: impl Iterator<Item = (ServerId, usize)>) -> Option<ServerId> {
    let fullest = others.max_by_key(|(server, held)| (*held, std::cmp::Reverse(*server)))?;
    (fullest.1 >= there + 2).then_some(fullest.0)
}

/// How many of the extents that a server holds, each so large, are to be moved away so that it has this much
/// back. Some may be on their way already: those come first.
pub fn enough(asked: u64, sizes: impl Iterator<Item = u64>) -> usize {
    let mut sum = 0;
    let short = |bytes: &u64| {
        let more = sum < asked;
        sum += bytes;
        more
    };
    sizes.take_while(short).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_many_as_are_asked_for_and_no_more() {
        assert_eq!(enough(0, [4, 4].into_iter()), 0);
        assert_eq!(enough(1, [4, 4].into_iter()), 1);
        assert_eq!(enough(4, [4, 4].into_iter()), 1);
        assert_eq!(enough(5, [4, 4].into_iter()), 2);
        assert_eq!(enough(50, [4, 4].into_iter()), 2);
    }

    proptest! {
        #[test]
        fn it_ends_and_is_even_then(mut held in prop::collection::vec(0usize..50, 1..8)) {
            let total: usize = held.iter().sum();
            let mut there = 0;
            for _ in 0..=total {
                let others = held.iter().enumerate().map(|(at, held)| (ServerId(at as u32), *held));
                let Some(from) = giver(there, others) else { break };
                held[from.0 as usize] -= 1;
                there += 1;
            }
            let most = held.iter().max().unwrap();
            prop_assert!(*most <= there + 1);
            // Nor did it take more than its share.
            let before = held.iter().max().unwrap() + 1;
            prop_assert!(there <= before);
        }
    }
}
