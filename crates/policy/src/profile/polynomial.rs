//! Polynomials of low degree, and the least-squares fit that cannot rise.
//!
//! The fit is written in the Bernstein basis over the measured ratios: a polynomial whose Bernstein
//! coefficients fall never rises. So the coefficients are a base plus sums of steps ≥ 0, and the fit
//! is a non-negative least-squares problem of at most six unknowns, solved by coordinate descent.
//!
//! Known limit: falling coefficients are sufficient, not necessary, so a very sharp knee is fitted a
//! little rounder than the best falling polynomial would.

/// Degree of a fit, unless there are fewer points.
const FIT_DEGREE: usize = 4;
/// Sweeps of the coordinate descent; a fit of six unknowns has settled long before.
const FIT_SWEEPS: usize = 20_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Polynomial {
    /// Highest power first, as Horner's rule wants them.
    coefficients: Vec<f64>,
}

impl Polynomial {
    pub fn highest_first(coefficients: &[f64]) -> Polynomial {
        Polynomial {
            coefficients: coefficients.to_vec(),
        }
    }

    #[inline]
    pub fn at(&self, x: f64) -> f64 {
        self.coefficients.iter().fold(0.0, |sum, c| sum * x + c)
    }

    pub fn slope(&self, x: f64) -> f64 {
        let degree = self.coefficients.len().saturating_sub(1);
        let powers = (1..=degree).rev();
        let terms = self.coefficients.iter().zip(powers);
        terms.fold(0.0, |sum, (c, power)| sum * x + c * power as f64)
    }

    /// The falling polynomial nearest to the points; `x` falls from its first to its last value.
    pub(super) fn fit_falling(x: &[f64], y: &[f64]) -> Polynomial {
        let degree = FIT_DEGREE.min(x.len() - 1);
        let (low, high) = (x[x.len() - 1], x[0]);
        // Row of the design matrix at t: column 0 is the base, column k the sum of the Bernstein
        // polynomials 0..k, so that step k raises the coefficients left of it.
        let row = |x: f64| {
            let bernstein = bernstein(degree, (x - low) / (high - low));
            let mut row = vec![1.0; degree + 1];
            for k in 1..=degree {
                row[k] = bernstein[..k].iter().sum();
            }
            row
        };
        let rows: Vec<Vec<f64>> = x.iter().map(|&x| row(x)).collect();
        let steps = non_negative_least_squares(&rows, y);
        let mut in_t = vec![0.0; degree + 1];
        for k in 0..=degree {
            let coefficient: f64 = steps[0] + steps[k + 1..].iter().sum::<f64>();
            for (power, part) in bernstein_powers(degree, k).into_iter().enumerate() {
                in_t[power] += coefficient * part;
            }
        }
        Polynomial::highest_first(&shifted(&in_t, low, high - low))
    }
}

/// All Bernstein polynomials of a degree at t.
fn bernstein(degree: usize, t: f64) -> Vec<f64> {
    (0..=degree)
        .map(|k| binomial(degree, k) * t.powi(k as i32) * (1.0 - t).powi((degree - k) as i32))
        .collect()
}

/// Bernstein polynomial k in powers of t, lowest first.
fn bernstein_powers(degree: usize, k: usize) -> Vec<f64> {
    let mut powers = vec![0.0; degree + 1];
    for j in 0..=degree - k {
        let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
        powers[k + j] = sign * binomial(degree, k) * binomial(degree - k, j);
    }
    powers
}

fn binomial(n: usize, k: usize) -> f64 {
    (0..k).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64)
}

/// Σ cₚ·tᵖ with t = (x − low) ÷ span, as coefficients in x, highest first.
fn shifted(in_t: &[f64], low: f64, span: f64) -> Vec<f64> {
    let mut in_x = vec![0.0; in_t.len()];
    for &c in in_t.iter().rev() {
        // in_x ← in_x · (x − low) ÷ span + c, lowest power first.
        for i in (0..in_x.len()).rev() {
            let lower = if i == 0 { 0.0 } else { in_x[i - 1] };
            in_x[i] = (lower - low * in_x[i]) / span;
        }
        in_x[0] += c;
    }
    in_x.reverse();
    in_x
}

fn non_negative_least_squares(rows: &[Vec<f64>], y: &[f64]) -> Vec<f64> {
    let unknowns = rows[0].len();
    let mut x = vec![0.0; unknowns];
    let mut rest: Vec<f64> = y.to_vec();
    for _ in 0..FIT_SWEEPS {
        for k in 0..unknowns {
            let square: f64 = rows.iter().map(|row| row[k] * row[k]).sum();
            let pull: f64 = rows.iter().zip(&rest).map(|(row, r)| row[k] * r).sum();
            if square <= 0.0 {
                continue;
            }
            let moved = (x[k] + pull / square).max(0.0);
            let step = moved - x[k];
            x[k] = moved;
            for (row, r) in rows.iter().zip(&mut rest) {
                *r -= step * row[k];
            }
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_is_the_derivative() {
        let p = Polynomial::highest_first(&[2.0, -3.0, 0.5, 7.0]);
        assert_eq!(p.at(2.0), 16.0 - 12.0 + 1.0 + 7.0);
        assert_eq!(p.slope(2.0), 24.0 - 12.0 + 0.5);
        assert_eq!(Polynomial::highest_first(&[4.0]).slope(0.3), 0.0);
    }

    #[test]
    fn a_falling_polynomial_is_found_again() {
        let truth = |x: f64| 10.0 + 5.0 * (1.0 - x) + 20.0 * (1.0 - x).powi(2);
        let x = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5];
        let y = x.map(truth);
        let fit = Polynomial::fit_falling(&x, &y);
        for x in [0.5, 0.55, 0.72, 0.95, 1.0] {
            assert!((fit.at(x) - truth(x)).abs() < 0.02, "{} at {x}", fit.at(x));
        }
    }
}
