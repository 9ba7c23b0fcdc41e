//! One axis: from numbers to pixels, and which numbers get a label.

/// About this many labels on a linear axis.
const TICKS_WANTED: f64 = 7.0;

#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    start_px: f64,
    end_px: f64,
}

impl Axis {
    /// An axis over `values`, or over `range` where the caller fixed one. `None` when there is
    /// nothing that can be drawn. Without a fixed range a linear axis is widened to its outer ticks.
    pub fn fit(
        values: impl Iterator<Item = f64>,
        range: Option<(f64, f64)>,
        log: bool,
        (start_px, end_px): (f64, f64),
    ) -> Option<Axis> {
        let drawable = |v: &f64| v.is_finite() && (!log || *v > 0.0);
        let fixed = range.filter(|(a, b)| drawable(a) && drawable(b) && a != b);
        let (low, high) = match fixed {
            Some((a, b)) => (a.min(b), a.max(b)),
            None => values
                .filter(drawable)
                .fold(None, |seen: Option<(f64, f64)>, v| {
                    Some(seen.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
                })?,
        };
        let mut axis = Axis {
            low,
            high,
            log,
            start_px,
            end_px,
        };
        if fixed.is_none() {
            axis.widen();
        }
        Some(axis)
    }

    fn widen(&mut self) {
        if self.log {
            if self.low == self.high {
                (self.low, self.high) = (self.low / 2.0, self.high * 2.0);
            }
            return;
        }
        if self.low == self.high {
            let margin = if self.low == 0.0 {
                1.0
            } else {
                self.low.abs() / 2.0
            };
            (self.low, self.high) = (self.low - margin, self.high + margin);
        }
        let step = self.step();
        self.low = (self.low / step).floor() * step;
        self.high = (self.high / step).ceil() * step;
    }

    /// Where a number lies; `None` when it cannot be drawn. Numbers beyond a fixed range are held at
    /// a distance where the frame cuts them off.
    pub fn px(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        Some(self.start_px + share.clamp(-10.0, 10.0) * (self.end_px - self.start_px))
    }

    /// Numbers that get a grid line and a label, in rising order.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.log {
            self.log_ticks()
        } else {
            self.linear_ticks()
        };
        let digits = if self.log {
            None
        } else {
            Some((-self.step().log10().floor()).clamp(0.0, 12.0) as usize)
        };
        values.into_iter().map(|v| (v, label(v, digits))).collect()
    }

    fn step(&self) -> f64 {
        let rough = (self.high - self.low) / TICKS_WANTED;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|nice| nice * power >= rough * 0.999);
        step.unwrap_or(10.0) * power
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let step = self.step();
        let slack = step * 1e-6;
        let first = ((self.low - slack) / step).ceil();
        let last = ((self.high + slack) / step).floor();
        // Counted in whole steps, so that no rounding error grows along the axis.
        (0..=(last - first).clamp(0.0, 50.0) as i64)
            .map(|i| (first + i as f64) * step)
            .map(|v| if v.abs() < slack { 0.0 } else { v })
            .collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let (first, last) = (
            self.low.log10().floor() as i32,
            self.high.log10().ceil() as i32,
        );
        let decades = last - first;
        let multiples: &[f64] = match decades {
            ..=1 => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
            2..=3 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let stride = (decades / 10).max(1);
        (first..=last)
            .filter(|power| (power - first) % stride == 0)
            .flat_map(|power| multiples.iter().map(move |m| m * 10f64.powi(power)))
            .filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v))
            .collect()
    }
}

/// A short label: `0.25`, `1500`, `20k`, `3M`, `1e-7`.
pub fn label(value: f64, digits: Option<usize>) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_string();
    }
    if !(1e-4..1e15).contains(&size) {
        return format!("{value:e}");
    }
    let (scale, unit) = match size {
        s if s >= 1e12 => (1e12, "T"),
        s if s >= 1e9 => (1e9, "G"),
        s if s >= 1e6 => (1e6, "M"),
        s if s >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    match (unit, digits) {
        ("", Some(digits)) => format!("{value:.digits$}"),
        _ => {
            let text = format!("{:.3}", value / scale);
            let text = text.trim_end_matches('0').trim_end_matches('.');
            // Below a thousandth three digits are too few.
            if text == "0" || text == "-0" {
                format!("{value:e}")
            } else {
                format!("{text}{unit}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(low: f64, high: f64) -> Axis {
        Axis::fit([low, high].into_iter(), None, false, (0.0, 100.0)).unwrap()
    }

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(
            labels(&linear(0.0, 1.0)),
            ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(
            labels(&linear(-6.0, 47.0)),
            ["-10", "0", "10", "20", "30", "40", "50"]
        );
        assert_eq!(
            labels(&linear(0.0, 23_000.0)),
            ["0", "5000", "10k", "15k", "20k", "25k"]
        );
        let log = Axis::fit([1.0, 1e6].into_iter(), None, true, (0.0, 100.0)).unwrap();
        assert_eq!(
            labels(&log),
            ["1", "10", "100", "1000", "10k", "100k", "1M"]
        );
    }

    #[test]
    fn ends_lie_at_the_ends() {
        let axis = linear(0.0, 10.0);
        assert_eq!(axis.px(0.0), Some(0.0));
        assert_eq!(axis.px(10.0), Some(100.0));
        assert_eq!(axis.px(f64::NAN), None);
        let log = Axis::fit([1.0, 100.0].into_iter(), None, true, (0.0, 100.0)).unwrap();
        assert!((log.px(10.0).unwrap() - 50.0).abs() < 1e-9);
        assert_eq!(log.px(0.0), None);
    }

    #[test]
    fn odd_data_still_makes_an_axis() {
        assert!(Axis::fit(std::iter::empty(), None, false, (0.0, 1.0)).is_none());
        assert!(Axis::fit([f64::NAN].into_iter(), None, false, (0.0, 1.0)).is_none());
        for lone in [0.0, 5.0, -3.0, 1e-9, 1e300] {
            let axis = linear(lone, lone);
            assert!(axis.px(lone).unwrap().is_finite(), "{lone}");
            assert!(!axis.ticks().is_empty(), "{lone}");
        }
    }
}
