//! Polynomials of low degree, as published profiles are given.

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
}
