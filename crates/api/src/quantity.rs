//! Amounts of resources: `500m`, `1Gi`, `2e3`.
//!
//! An amount is kept exactly, as an integer number of billionths (finer fractions are rounded up,
//! so that asking for something never becomes asking for nothing), together with the family of
//! suffixes it was written in, for that decides how it is written back.

use std::{
    cmp::Ordering,
    fmt,
    ops::{Add, Sub},
};

const UNIT: i128 = 1_000_000_000;

/// What amounts too large to hold are cut to.
const LARGEST: i128 = i64::MAX as i128 * UNIT;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Which suffixes an amount is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// `m`, `k`, `M`: powers of 1000.
    Decimal,
    /// `Ki`, `Mi`: powers of 1024.
    Binary,
    /// `e3`.
    Exponent,
}

/// Compares by amount: `1Ki` equals `1024`.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    family: Family,
}

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes() {
            [] => return Err(QuantityError::Format),
            [b'-', ..] => (true, &text[1..]),
            [b'+', ..] => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_in = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(digits_in(rest));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits_in(rest)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
        let exponent = &suffix[letters..];
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits_in(exponent) != exponent.len() {
            return Err(QuantityError::Format);
        }
        let (family, base, exponent) = read_suffix(suffix).ok_or(QuantityError::Suffix)?;
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Numeric);
        }
        let nanos = amount(whole, fraction, base, exponent).filter(|nanos| *nanos <= MAX_KEPT).unwrap_or(LARGEST);
        Ok(Self { nanos: if negative { -nanos } else { nanos }, family })
    }

    /// A number of whole units.
    pub fn from_units(units: i64) -> Self {
        Self { nanos: i128::from(units) * UNIT, family: Family::Decimal }
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// In whole units, rounded up.
    pub fn value(&self) -> i128 {
        ceil_div(self.nanos, UNIT)
    }

    /// In thousandths, rounded up.
    pub fn as_milli(&self) -> i128 {
        ceil_div(self.nanos, UNIT / 1000)
    }

    /// Rounded up to thousandths, the finest that resource lists keep.
    pub fn rounded_to_milli(self) -> Self {
        Self { nanos: ceil_away(self.nanos, UNIT / 1000) * (UNIT / 1000), ..self }
    }

    /// Whether the amount is a number of whole `unit`s.
    pub fn is_multiple_of(&self, unit: &Self) -> bool {
        unit.nanos > 0 && self.nanos % unit.nanos == 0
    }

    /// The one way to write the amount: no fraction, the largest suffix that allows it.
    pub fn canonical(&self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        if self.family == Family::Binary && self.nanos.abs() >= 1024 * UNIT {
            let mut value = ceil_away(self.nanos, UNIT);
            let mut power = 0;
            while power < BINARY.len() - 1 && value % 1024 == 0 {
                value /= 1024;
                power += 1;
            }
            return format!("{value}{}", BINARY[power]);
        }
        let (mut value, mut exponent) = (self.nanos, -9);
        while value % 1000 == 0 && (exponent < 18 || self.family == Family::Exponent) {
            value /= 1000;
            exponent += 3;
        }
        match (self.family, exponent) {
            (Family::Exponent, 0) => value.to_string(),
            (Family::Exponent, exponent) => format!("{value}e{exponent}"),
            (_, exponent) => format!("{value}{}", DECIMAL[((exponent + 9) / 3) as usize]),
        }
    }
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Room is left so that negating and rounding never overflow.
const MAX_KEPT: i128 = i128::MAX / 2048;

/// The family, and the factor as a power of 10 (or of 2).
fn read_suffix(suffix: &str) -> Option<(Family, i128, i32)> {
    if let Some(power) = DECIMAL.iter().position(|s| *s == suffix) {
        return Some((Family::Decimal, 10, power as i32 * 3 - 9));
    }
    if let Some(power) = BINARY.iter().position(|s| *s == suffix) {
        return Some((Family::Binary, 2, power as i32 * 10));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((Family::Exponent, 10, exponent.parse().ok()?))
}

/// `whole.fraction × base^exponent` in billionths, rounded up; `None` if it is too large to hold.
fn amount(whole: &str, fraction: &str, base: i128, exponent: i32) -> Option<i128> {
    // Digits beyond these cannot change the amount but by rounding it up.
    let fraction = fraction.trim_end_matches('0');
    let (retained, cut) = fraction.split_at(fraction.len().min(18));
    let mut mantissa: i128 = 0;
    for digit in whole.trim_start_matches('0').bytes().chain(retained.bytes()) {
        mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    if mantissa == 0 && cut.is_empty() {
        return Some(0);
    }
    if !cut.is_empty() {
        mantissa += 1;
    }
    let mut scale = 9 - retained.len() as i32;
    if base == 10 {
        scale = scale.saturating_add(exponent);
    } else {
        mantissa = mantissa.checked_mul(1 << exponent)?;
    }
    if scale >= 0 {
        mantissa.checked_mul(10i128.checked_pow(scale as u32)?)
    } else {
        // A divisor too large to hold leaves the smallest amount there is.
        Some(10i128.checked_pow(scale.unsigned_abs()).map_or(1, |divisor| ceil_div(mantissa, divisor)))
    }
}

fn ceil_div(value: i128, divisor: i128) -> i128 {
    value.div_euclid(divisor) + i128::from(value.rem_euclid(divisor) != 0)
}

/// Rounds away from zero.
fn ceil_away(value: i128, divisor: i128) -> i128 {
    if value < 0 { -ceil_div(-value, divisor) } else { ceil_div(value, divisor) }
}

/// Nothing.
impl Default for Quantity {
    fn default() -> Self {
        Self { nanos: 0, family: Family::Decimal }
    }
}

/// Written like the first of the two that is not zero.
impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let family = if self.is_zero() { other.family } else { self.family };
        let nanos = self.nanos.saturating_add(other.nanos).clamp(-MAX_KEPT, MAX_KEPT);
        Self { nanos, family }
    }
}

/// Written like the first of the two that is not zero.
impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + Self { nanos: -other.nanos, ..other }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical())
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_written_back_in_canonical_form() {
        for (written, canonical) in [
            ("0", "0"),
            ("0Mi", "0"),
            ("1", "1"),
            ("1000m", "1"),
            ("1.0", "1"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1.", "1"),
            ("100.0m", "100m"),
            ("1.0m", "1m"),
            ("1500m", "1500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1.5Ki", "1536"),
            ("1Ki", "1Ki"),
            ("1023", "1023"),
            ("1000", "1k"),
            ("1000k", "1M"),
            ("128974848", "128974848"),
            ("129M", "129M"),
            ("1e3", "1e3"),
            ("10e2", "1e3"),
            ("12e1", "120"),
            ("1E3", "1e3"),
            ("1E", "1E"),
            ("10E", "10E"),
            ("1e-3", "1e-3"),
            ("-1", "-1"),
            ("-0.5", "-500m"),
            ("+2", "2"),
            ("0.0000000001", "1n"),
            ("1n", "1n"),
            ("0.1u", "100n"),
            ("007", "7"),
            ("1048576Ki", "1Gi"),
            ("0.1Gi", "107374183"),
        ] {
            assert_eq!(Quantity::parse(written).map(|q| q.canonical()), Ok(canonical.to_owned()), "{written}");
        }
    }

    #[test]
    fn amounts_add_up_and_divide() {
        let parse = |text| Quantity::parse(text).unwrap();
        assert_eq!((parse("1Gi") + parse("512Mi")).to_string(), "1536Mi");
        assert_eq!((Quantity::default() + parse("1Ki")).to_string(), "1Ki");
        assert_eq!((parse("1Gi") - parse("512Mi")).to_string(), "512Mi");
        assert_eq!((parse("1") - parse("1500m")).to_string(), "-500m");
        assert_eq!(parse("1u").rounded_to_milli().to_string(), "1m");
        assert_eq!(parse("-1u").rounded_to_milli().to_string(), "-1m");
        assert!(parse("4Mi").is_multiple_of(&parse("2Mi")));
        assert!(!parse("3Mi").is_multiple_of(&parse("2Mi")));
        assert!(!parse("3Mi").is_multiple_of(&parse("0")));
    }

    #[test]
    fn broken_amounts_are_refused() {
        for text in ["", "abc", "1.2.3", "1 Gi", "1Gi!", "--1", "e", "1GiB", "0x1"] {
            let error = Quantity::parse(text).unwrap_err();
            assert!(matches!(error, QuantityError::Format | QuantityError::Suffix), "{text}: {error:?}");
        }
        assert_eq!(Quantity::parse("m").unwrap_err(), QuantityError::Numeric);
        assert_eq!(Quantity::parse("1mm").unwrap_err(), QuantityError::Suffix);
        assert_eq!(
            Quantity::parse("one").unwrap_err().to_string(),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        );
    }

    #[test]
    fn amounts_compare_across_suffixes() {
        let parse = |text| Quantity::parse(text).unwrap();
        assert_eq!(parse("1Ki"), parse("1024"));
        assert!(parse("1Gi") > parse("1G"));
        assert!(parse("-1") < parse("0") && parse("-1").is_negative());
        assert_eq!((parse("1500m").value(), parse("1500m").as_milli()), (2, 1500));
        assert_eq!((parse("-1500m").value(), parse("1u").as_milli()), (-1, 1));
    }

    #[test]
    fn huge_exponents_are_cut_and_not_followed() {
        assert!(Quantity::parse("1e2147483647").unwrap() >= Quantity::parse("9E").unwrap());
        assert_eq!(Quantity::parse("1e-2147483648").unwrap().canonical(), "1e-9");
        assert_eq!(Quantity::parse(&"9".repeat(500)).unwrap().value(), i128::from(i64::MAX));
    }

    proptest! {
        #[test]
        fn canonical_forms_keep_the_amount(
            text in "[+-]?[0-9]{0,20}\\.?[0-9]{0,12}(|n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,3})",
        ) {
            if let Ok(quantity) = Quantity::parse(&text) {
                let again = Quantity::parse(&quantity.canonical()).unwrap();
                if quantity.family == Family::Binary && quantity.nanos.abs() >= 1024 * UNIT {
                    // Powers of two are written in whole units.
                    prop_assert_eq!(again.nanos, ceil_away(quantity.nanos, UNIT) * UNIT);
                } else {
                    prop_assert_eq!(again, quantity);
                }
            }
        }

        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            let _ = Quantity::parse(&text);
        }
    }
}
