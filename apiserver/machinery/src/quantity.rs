//! `resource.Quantity`: a number with a suffix, such as `5`, `100m`, `2k`, `1Mi`, `3e6`.
//!
//! Exact down to a billionth, beyond which it is rounded up, and up to about 10^29, beyond which it stays there. Equal
//! numbers of one style have one text, the one with the shortest number: `1000` is written `1k`, as upstream does.

use std::{fmt, str::FromStr};

/// Billionths in one.
const NANO: i128 = 1_000_000_000;
/// Larger numbers are this one: no sum of a few of them overflows.
const MAX: i128 = i128::MAX / 1024;

/// How the suffix is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// `n u m k M G T P E`, or none.
    Decimal,
    /// `Ki Mi Gi Ti Pi Ei`.
    Binary,
    /// `e3`.
    Exponent,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    nano: i128,
    style: Style,
}

/// A text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
pub struct QuantityError;

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// A whole number.
    pub fn whole(value: u64) -> Self {
        Self { nano: (i128::from(value) * NANO).min(MAX), style: Style::Decimal }
    }

    /// Whether it is below zero.
    pub fn is_negative(&self) -> bool {
        self.nano < 0
    }

    /// Whether it is a whole number.
    pub fn is_whole(&self) -> bool {
        self.nano % NANO == 0
    }

    /// Whether it is more than the other.
    pub fn exceeds(&self, other: &Self) -> bool {
        self.nano > other.nano
    }

    /// The next whole number, at least 0.
    pub fn ceil(&self) -> u64 {
        let up = self.nano / NANO + i128::from(self.nano > 0 && !self.is_whole());
        u64::try_from(up.max(0)).unwrap_or(u64::MAX)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (sign, rest) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError);
        }
        let (style, base, exponent) = scale(suffix)?;
        // Digits are read as if the point stood behind the last; it is moved by the exponent.
        let mut digits: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            digits = digits.saturating_mul(10).saturating_add(i128::from(digit - b'0')).min(MAX);
        }
        let point = i32::try_from(fraction.len()).map_err(|_| QuantityError)?;
        let (ten, two) = if base == 2 { (9 - point, exponent) } else { (9 - point + exponent, 0) };
        let grown = scaled(digits.saturating_mul(1_i128 << two.clamp(0, 60)).min(MAX), ten);
        Ok(Self { nano: sign * grown.min(MAX), style })
    }
}

/// What a suffix stands for: its style, and a power of two or ten.
fn scale(suffix: &str) -> Result<(Style, i32, i32), QuantityError> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Ok((Style::Decimal, 10, *exponent));
    }
    if let Some(step) = (1..).zip(BINARY).find(|(_, name)| *name == suffix).map(|(step, _)| step) {
        return Ok((Style::Binary, 2, 10 * step));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError)?;
    let exponent: i32 = exponent.parse().map_err(|_| QuantityError)?;
    Ok((Style::Exponent, 10, exponent.clamp(-1000, 1000)))
}

/// `digits` times a power of ten, rounded up.
fn scaled(digits: i128, power: i32) -> i128 {
    let step = 10_i128.checked_pow(power.unsigned_abs());
    match (step, power >= 0) {
        (Some(step), true) => digits.saturating_mul(step),
        (Some(step), false) => digits / step + i128::from(digits % step != 0),
        (None, true) if digits > 0 => MAX,
        (None, _) => i128::from(digits > 0),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Small or broken numbers are clearer with decimal suffixes.
        if self.style == Style::Binary && self.is_whole() && self.nano.abs() >= 1024 * NANO {
            let (mut number, mut steps) = (self.nano / NANO, 0);
            while number % 1024 == 0 && steps < BINARY.len() {
                number /= 1024;
                steps += 1;
            }
            let suffix = steps.checked_sub(1).and_then(|at| BINARY.get(at)).unwrap_or(&"");
            return write!(f, "{number}{suffix}");
        }
        let (mut number, mut exponent) = (self.nano, -9);
        while number != 0 && number % 1000 == 0 && exponent < 18 {
            number /= 1000;
            exponent += 3;
        }
        match (number, self.style) {
            (0, _) => f.write_str("0"),
            (_, Style::Exponent) if exponent == 0 => write!(f, "{number}"),
            (_, Style::Exponent) => write!(f, "{number}e{exponent}"),
            _ => {
                let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent).map_or("", |(name, _)| name);
                write!(f, "{number}{suffix}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> String {
        text.parse::<Quantity>().unwrap().to_string()
    }

    #[test]
    fn one_text_for_each_number() {
        for (text, want) in [
            ("0", "0"),
            ("-0", "0"),
            ("5", "5"),
            ("+5", "5"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("5.", "5"),
            ("100m", "100m"),
            ("1024Ki", "1Mi"),
            ("512Ki", "512Ki"),
            ("1Ki", "1Ki"),
            ("1000Ki", "1000Ki"),
            ("0.5Ki", "512"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1e3"),
            ("12e1", "120"),
            ("1E", "1E"),
            ("1E3", "1e3"),
            ("0.1n", "1n"),
            ("-1.5", "-1500m"),
        ] {
            assert_eq!(written(text), want, "{text}");
        }
    }

    #[test]
    fn what_is_none() {
        for text in ["", "-", ".", "x", "1x", "1.2.3", "1 ", "1ki", "1kk", "1e", "e3", "1Kim", "--1"] {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn whole_numbers() {
        for (text, ceil, whole) in [("3", 3, true), ("2500m", 3, false), ("1k", 1000, true), ("-1", 0, true)] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!((quantity.ceil(), quantity.is_whole()), (ceil, whole), "{text}");
        }
        assert_eq!("9e999".parse::<Quantity>().unwrap().ceil(), u64::MAX);
        assert_eq!(Quantity::whole(7).to_string(), "7");
    }

    proptest! {
        #[test]
        fn written_and_read_again_it_is_the_same(text in "[+-]?[0-9]{0,40}\\.?[0-9]{0,20}([numkMGTPE]|[KMGTPE]i|[eE]-?[0-9]{1,4}|)") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                let again: Quantity = quantity.to_string().parse().unwrap();
                prop_assert_eq!(again.to_string(), quantity.to_string());
            }
        }
    }
}
