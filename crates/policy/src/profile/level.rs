//! Makes measured run times fall with memory, changing them as little as possible.
//!
//! Runs are noisy, and a profile must not say that a job becomes slower with more memory. Points
//! that do are averaged with their neighbours until none is left (isotonic regression by pooling
//! adjacent violators): the rising-free values with the least squared change.
//!
//! Invariant: the sum of all values is kept. Source: Barlow et al., Statistical Inference under Order
//! Restrictions, 1972.

/// Run times in the order of falling memory, made to never fall.
pub fn level(runtime_s: &[f64]) -> Vec<f64> {
    // Blocks of neighbours that share their mean: (mean, how many).
    let mut blocks: Vec<(f64, usize)> = Vec::with_capacity(runtime_s.len());
    for &value in runtime_s {
        let mut block = (value, 1);
        while let Some(&(mean, count)) = blocks.last() {
            if mean <= block.0 {
                break;
            }
            blocks.pop();
            let all = count + block.1;
            let sum = mean * count as f64 + block.0 * block.1 as f64;
            block = (sum / all as f64, all);
        }
        blocks.push(block);
    }
    let values = blocks
        .iter()
        .flat_map(|&(mean, count)| std::iter::repeat_n(mean, count));
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_is_out_of_order_changes() {
        assert_eq!(level(&[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]);
        assert_eq!(level(&[1.0, 4.0, 2.0, 5.0]), [1.0, 3.0, 3.0, 5.0]);
        assert_eq!(level(&[3.0, 2.0, 1.0]), [2.0, 2.0, 2.0]);
        assert_eq!(level(&[]), [] as [f64; 0]);
    }

    proptest! {
        #[test]
        fn never_falls_and_keeps_the_sum(values in proptest::collection::vec(0.1f64..1e4, 0..30)) {
            let levelled = level(&values);
            prop_assert_eq!(levelled.len(), values.len());
            prop_assert!(levelled.is_sorted());
            let (before, after) = (values.iter().sum::<f64>(), levelled.iter().sum::<f64>());
            prop_assert!((before - after).abs() <= 1e-6 * before.max(1.0));
            prop_assert_eq!(level(&levelled), levelled);
        }
    }
}
