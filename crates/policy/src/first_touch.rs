//! How many pages a first touch brings.
//!
//! A program that fills memory touches page after page, and each fault costs as much as filling
//! several. So pages come in batches that double while touches follow one another, upwards or
//! downwards: `sort` fills its buffer from both ends. A few streams are followed at a time, the one
//! that was quiet longest makes room. A touch that continues nothing brings its own page only, since
//! memory that is filled and never used is memory taken from somebody else.
//!
//! Invariant: the page that was touched is in the batch, at its end where the stream comes from.

/// Streams followed at a time.
const STREAMS: usize = 8;
/// No page: nothing continues here.
const NOWHERE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The pages that would continue it.
    above: u64,
    below: u64,
    /// The last batch.
    pages: u64,
}

/// Pages to be filled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub first: u64,
    pub pages: u64,
}

#[derive(Debug)]
pub struct FirstTouch {
    /// The one that was continued last comes first.
    streams: [Stream; STREAMS],
}

impl Default for FirstTouch {
    fn default() -> FirstTouch {
        let none = Stream {
            above: NOWHERE,
            below: NOWHERE,
            pages: 0,
        };
        FirstTouch {
            streams: [none; STREAMS],
        }
    }
}

impl FirstTouch {
    /// A page was touched for the first time: what to fill, at most `most` pages. `is_untouched` says
    /// of others whether they could come along.
    pub fn handle_touch(
        &mut self,
        page: u64,
        most: u64,
        is_untouched: impl Fn(u64) -> bool,
    ) -> Fill {
        let continues = |stream: &Stream| stream.above == page || stream.below == page;
        let at = self.streams.iter().position(continues);
        let mut stream = self.streams[at.unwrap_or(STREAMS - 1)];
        let filled;
        if at.is_none() {
            filled = Fill {
                first: page,
                pages: 1,
            };
            stream.above = page.wrapping_add(1);
            stream.below = page.wrapping_sub(1);
        } else {
            let wanted = (stream.pages * 2).clamp(1, most);
            let upwards = stream.above == page;
            let step = |n: u64| match upwards {
                true => page.checked_add(n),
                false => page.checked_sub(n),
            };
            let along = (1..wanted).map_while(|n| step(n).filter(|&next| is_untouched(next)));
            let pages = 1 + along.count() as u64;
            if upwards {
                filled = Fill { first: page, pages };
                stream.above = page.wrapping_add(pages);
                stream.below = NOWHERE;
            } else {
                let first = page - (pages - 1);
                filled = Fill { first, pages };
                stream.below = first.wrapping_sub(1);
                stream.above = NOWHERE;
            }
        }
        stream.pages = filled.pages;
        self.streams[..=at.unwrap_or(STREAMS - 1)].rotate_right(1);
        self.streams[0] = stream;
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fills(touch: &mut FirstTouch, pages: &[u64]) -> Vec<(u64, u64)> {
        let fill = |&page: &u64| touch.handle_touch(page, 64, |_| true);
        let fills = pages.iter().map(fill);
        fills.map(|fill| (fill.first, fill.pages)).collect()
    }

    #[test]
    fn batches_double_upwards_and_downwards() {
        let mut touch = FirstTouch::default();
        let up = fills(&mut touch, &[100, 101, 103, 107]);
        assert_eq!(up, [(100, 1), (101, 2), (103, 4), (107, 8)]);
        let down = fills(&mut touch, &[900, 899, 897, 893]);
        assert_eq!(down, [(900, 1), (898, 2), (894, 4), (886, 8)]);
    }

    #[test]
    fn streams_do_not_disturb_each_other() {
        let mut touch = FirstTouch::default();
        let both = fills(&mut touch, &[100, 900, 101, 899, 103, 897]);
        assert_eq!(both[4..], [(103, 4), (894, 4)]);
    }

    #[test]
    fn touches_here_and_there_bring_one_page_each() {
        let mut touch = FirstTouch::default();
        for page in (0..1000).map(|n| n * 7919 % 100_000) {
            assert_eq!(touch.handle_touch(page, 64, |_| true).pages, 1);
        }
    }

    #[test]
    fn nothing_is_filled_twice_or_beyond_the_ends() {
        let mut touch = FirstTouch::default();
        fills(&mut touch, &[100, 101]);
        let fill = touch.handle_touch(103, 64, |page| page < 105);
        assert_eq!((fill.first, fill.pages), (103, 2));
        let mut touch = FirstTouch::default();
        let low = fills(&mut touch, &[4, 3, 1]);
        assert_eq!(low[2], (0, 2));
    }
}
