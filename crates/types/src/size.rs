//! Sizes in bytes and shares in percent, as people write and read them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

/// Bytes in a page. Muninn moves memory in pages of this size only.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// A number of bytes. Parses `4096`, `64KiB`, `1.5GiB`, `10MB`; prints the largest exact binary unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);
    pub const PAGE: Bytes = Bytes(PAGE_SIZE as u64);

    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }
    pub const fn pages(n: u64) -> Bytes {
        Bytes(n << PAGE_SHIFT)
    }
    pub const fn get(self) -> u64 {
        self.0
    }
    /// Whole pages in this size; a part of a page does not count.
    pub const fn whole_pages(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }
    /// Pages needed to hold this size; a part of a page counts as one.
    pub const fn pages_up(self) -> u64 {
        self.0.div_ceil(PAGE_SIZE as u64)
    }
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
    pub const fn checked_add(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }
    /// A short form for tables: three digits and a unit (`1.46GiB`), rounded.
    pub fn rounded(self) -> String {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = match (unit, value) {
            (0, _) => 0,
            (_, v) if v < 10.0 => 2,
            (_, v) if v < 100.0 => 1,
            _ => 0,
        };
        format!("{value:.digits$}{}", units[unit])
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}
impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}
impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}
impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}
impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(parts: I) -> Bytes {
        Bytes(parts.map(|b| b.0).sum())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("PiB", 50),
            ("TiB", 40),
            ("GiB", 30),
            ("MiB", 20),
            ("KiB", 10),
        ];
        for (unit, shift) in units {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return f.pad(&format!("{}{unit}", self.0 >> shift));
            }
        }
        f.pad(&format!("{}B", self.0))
    }
}

/// Why a text is not a size or a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    #[error("'{0}' is not a size: write a number and a unit, such as 512MiB or 4GiB")]
    NotASize(String),
    #[error("'{0}' has no unit that is known here: use B, KiB, MiB, GiB, TiB (or KB, MB, GB, TB)")]
    UnknownUnit(String),
    #[error("'{0}' is larger than this machine can count (16 EiB)")]
    TooLarge(String),
    #[error("'{0}' is not a whole number of bytes")]
    Fraction(String),
    #[error("'{0}' is not a percentage: write a number from 0 to 100 and a % sign, such as 50%")]
    NotAPercentage(String),
}

impl FromStr for Bytes {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Bytes, ParseSizeError> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'));
        let (number, unit) = trimmed.split_at(split.unwrap_or(trimmed.len()));
        let number = number.replace('_', "");
        if !number.starts_with(|c: char| c.is_ascii_digit()) || number.ends_with('.') {
            return Err(ParseSizeError::NotASize(text.to_string()));
        }
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "p" | "pib" => 1 << 50,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(ParseSizeError::UnknownUnit(text.to_string())),
        };
        let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
        if part.contains('.') {
            return Err(ParseSizeError::NotASize(text.to_string()));
        }
        let too_large = || ParseSizeError::TooLarge(text.to_string());
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let bytes = whole.checked_mul(scale).ok_or_else(too_large)?;
        let part = part.trim_end_matches('0');
        if part.is_empty() {
            return Ok(Bytes(bytes));
        }
        // Exact, in integers: 0.1GiB is not a whole number of bytes and is rounded down only
        // because a unit was named; a bare number of bytes must be whole.
        if scale == 1 || part.len() > 18 {
            return Err(ParseSizeError::Fraction(text.to_string()));
        }
        let numerator: u128 = part.parse().map_err(|_| too_large())?;
        let rest = numerator * u128::from(scale) / 10u128.pow(part.len() as u32);
        bytes
            .checked_add(rest as u64)
            .map(Bytes)
            .ok_or_else(too_large)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    /// A number of bytes, or a text such as `512MiB`.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(n) => Ok(Bytes(n)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A share from 0 % to 100 %, held in millionths so that equal texts are equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent {
    millionths: u32,
}

impl Percent {
    pub const FULL: Percent = Percent {
        millionths: 1_000_000,
    };

    pub fn from_ratio(ratio: f64) -> Option<Percent> {
        (0.0..=1.0).contains(&ratio).then(|| Percent {
            millionths: (ratio * 1e6).round() as u32,
        })
    }
    pub fn ratio(self) -> f64 {
        f64::from(self.millionths) / 1e6
    }
    pub fn of(self, whole: Bytes) -> Bytes {
        Bytes((u128::from(whole.0) * u128::from(self.millionths) / 1_000_000) as u64)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", f64::from(self.millionths) / 1e4))
    }
}

impl FromStr for Percent {
    type Err = ParseSizeError;
    fn from_str(text: &str) -> Result<Percent, ParseSizeError> {
        text.trim()
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .and_then(|number| Percent::from_ratio(number / 100.0))
            .ok_or_else(|| ParseSizeError::NotAPercentage(text.to_string()))
    }
}

/// How much of a program stays local: a size, or a share of its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalSize {
    Absolute(Bytes),
    OfPeak(Percent),
}

impl FromStr for LocalSize {
    type Err = ParseSizeError;
    fn from_str(text: &str) -> Result<LocalSize, ParseSizeError> {
        if text.contains('%') {
            text.parse().map(LocalSize::OfPeak)
        } else {
            text.parse().map(LocalSize::Absolute)
        }
    }
}

impl fmt::Display for LocalSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalSize::Absolute(bytes) => bytes.fmt(f),
            LocalSize::OfPeak(percent) => percent.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let cases: &[(&str, u64)] = &[
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 64 << 10),
            ("64 kib", 64 << 10),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2g", 2 << 30),
            ("10MB", 10_000_000),
            ("1_000", 1000),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(*bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_sizes_say_what_to_write() {
        let message = |text: &str| text.parse::<Bytes>().unwrap_err().to_string();
        assert_eq!(
            message("lots"),
            "'lots' is not a size: write a number and a unit, such as 512MiB or 4GiB"
        );
        assert_eq!(
            message("5parsecs"),
            "'5parsecs' has no unit that is known here: use B, KiB, MiB, GiB, TiB (or KB, MB, GB, TB)"
        );
        assert_eq!(
            message("99999999999TiB"),
            "'99999999999TiB' is larger than this machine can count (16 EiB)"
        );
        assert_eq!(message("1.5"), "'1.5' is not a whole number of bytes");
        for bad in [
            "", "-1", "-1GiB", ".5GiB", "1..5GiB", "1.2.3MiB", "GiB", "∞", "1e9", "5.",
        ] {
            assert!(
                bad.parse::<Bytes>().is_err(),
                "{bad:?} was taken for a size"
            );
        }
    }

    #[test]
    fn percentages() {
        assert_eq!(
            "50%".parse::<Percent>().unwrap().of(Bytes::gib(1)),
            Bytes::mib(512)
        );
        assert_eq!("12.5 %".parse::<Percent>().unwrap().to_string(), "12.5%");
        for bad in ["50", "101%", "-1%", "%", "NaN%", "inf%"] {
            assert!(
                bad.parse::<Percent>().is_err(),
                "{bad:?} was taken for a percentage"
            );
        }
        assert_eq!("25%".parse::<LocalSize>().unwrap().to_string(), "25%");
        assert_eq!(
            "1GiB".parse::<LocalSize>().unwrap(),
            LocalSize::Absolute(Bytes::gib(1))
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(n: u64) {
            prop_assert_eq!(Bytes(n).to_string().parse::<Bytes>().unwrap(), Bytes(n));
        }

        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in ".{0,40}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Percent>();
            let _ = text.parse::<LocalSize>();
        }
    }
}
