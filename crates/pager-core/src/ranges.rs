//! A set of pages as sorted ranges that do not touch.

use muninn_types::{Nanos, PageNo, PageRange};

#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// First page and the page after the last, in order.
    spans: Vec<(u64, u64)>,
}

impl Ranges {
    pub fn iter(&self) -> impl Iterator<Item = PageRange> {
        let range = |&(first, end): &(u64, u64)| PageRange::new(PageNo(first), end - first);
        self.spans.iter().map(range)
    }

    pub fn pages(&self) -> u64 {
        self.spans.iter().map(|(first, end)| end - first).sum()
    }

    pub fn insert(&mut self, range: PageRange) {
        if range.is_empty() {
            return;
        }
        let (mut first, mut end) = (range.first().0, range.end().0);
        let from = self.spans.partition_point(|span| span.1 < first);
        let to = self.spans.partition_point(|span| span.0 <= end);
        if let Some(touched) = self.spans.get(from..to).filter(|spans| !spans.is_empty()) {
            first = first.min(touched[0].0);
            end = end.max(touched[touched.len() - 1].1);
        }
        self.spans.splice(from..to, [(first, end)]);
    }

    pub fn remove(&mut self, range: PageRange) {
        let (first, end) = (range.first().0, range.end().0);
        let from = self.spans.partition_point(|span| span.1 <= first);
        let to = self.spans.partition_point(|span| span.0 < end);
        if from >= to {
            return;
        }
        let before = (self.spans[from].0, first);
        let after = (end, self.spans[to - 1].1);
        let rest = [before, after].into_iter().filter(|span| span.0 < span.1);
        self.spans.splice(from..to, rest);
    }

    /// The first part of a range that is not in the set.
    pub fn first_gap(&self, range: PageRange) -> Option<PageRange> {
        let mut first = range.first().0;
        let end = range.end().0;
        let from = self.spans.partition_point(|span| span.1 <= first);
        for span in &self.spans[from..] {
            if span.0 > first {
                break;
            }
            first = span.1;
        }
        let next = self.spans[from..].iter().find(|span| span.0 > first);
        let until = next.map_or(end, |span| span.0.min(end));
        (first < until).then(|| PageRange::new(PageNo(first), until - first))
    }
}

/// Ranges of the last moments.
#[derive(Debug, Default)]
pub struct Recently {
    now: Ranges,
    before: Ranges,
    since: Nanos,
}

impl Recently {
    /// How long a range is remembered, at least.
    const MEMORY: Nanos = Nanos::millis(50);

    pub fn insert(&mut self, range: PageRange, now: Nanos) {
        self.forget_old(now);
        self.now.insert(range);
    }

    pub fn forget_old(&mut self, now: Nanos) {
        if now.saturating_sub(self.since) > Recently::MEMORY {
            self.before = std::mem::take(&mut self.now);
            self.since = now;
        }
    }

    pub fn meets(&self, range: PageRange) -> bool {
        let outside = |ranges: &Ranges| ranges.first_gap(range) == Some(range);
        !outside(&self.now) || !outside(&self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0u64..200, 1u64..40), 1..100)) {
            let mut ranges = Ranges::default();
            let mut model = BTreeSet::new();
            for (add, first, len) in steps {
                let range = PageRange::new(PageNo(first), len);
                let gap = ranges.first_gap(range).map(|gap| gap.first().0);
                prop_assert_eq!(gap, (first..first + len).find(|page| !model.contains(page)));
                if add {
                    ranges.insert(range);
                    model.extend(first..first + len);
                } else {
                    ranges.remove(range);
                    model.retain(|page| !range.contains(PageNo(*page)));
                }
                let pages: Vec<u64> = ranges.iter().flat_map(|r| r.iter()).map(|p| p.0).collect();
                prop_assert_eq!(pages, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
