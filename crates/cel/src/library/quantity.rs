//! Kubernetes' quantities: `500m`, `1Gi`, `2e3`, exact to a billionth.

use std::fmt;

const NANOS: i128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

impl Quantity {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(digits(rest));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if (whole.is_empty() && fraction.is_empty()) || whole.len() > 30 || fraction.len() > 30 {
            return None;
        }
        let (numerator, denominator) = scale(suffix)?;
        let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let scaled = mantissa.checked_mul(numerator)?.checked_mul(NANOS)?;
        let divisor = 10i128.checked_pow(fraction.len() as u32)?.checked_mul(denominator)?;
        // Finer fractions are rounded away from zero.
        let nanos = scaled / divisor + i128::from(scaled % divisor != 0);
        Some(Self { nanos: if negative { -nanos } else { nanos } })
    }

    pub(crate) fn from_int(value: i64) -> Self {
        Self { nanos: i128::from(value) * NANOS }
    }

    pub(crate) fn add(self, other: Self) -> Option<Self> {
        Some(Self { nanos: self.nanos.checked_add(other.nanos)? })
    }

    pub(crate) fn sub(self, other: Self) -> Option<Self> {
        Some(Self { nanos: self.nanos.checked_sub(other.nanos)? })
    }

    pub(crate) fn sign(self) -> i64 {
        self.nanos.signum() as i64
    }

    /// The whole number that this is, if it is one that 64 bits hold.
    pub(crate) fn as_integer(self) -> Option<i64> {
        (self.nanos % NANOS == 0).then(|| i64::try_from(self.nanos / NANOS).ok()).flatten()
    }

    pub(crate) fn as_float(self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, NANOS),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (NANOS, 1),
        "T" => (1_000 * NANOS, 1),
        "P" => (1_000_000 * NANOS, 1),
        "E" => (NANOS * NANOS, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs().min(20))?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.nanos.unsigned_abs();
        let sign = if self.nanos < 0 { "-" } else { "" };
        for (unit, suffix) in [(NANOS as u128, ""), (1_000_000, "m"), (1_000, "u")] {
            if nanos.is_multiple_of(unit) {
                return write!(f, "{sign}{}{suffix}", nanos / unit);
            }
        }
        write!(f, "{sign}{nanos}n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
        for (text, shown) in [
            ("1500m", Some("1500m")),
            ("1.5", Some("1500m")),
            ("1Ki", Some("1024")),
            ("-2e3", Some("-2000")),
            ("1E", Some("1000000000000000000")),
            (".5", Some("500m")),
            ("", None),
            (".", None),
            ("1Zi", None),
            ("1 Gi", None),
            ("99999999999999999999999999999E", None),
        ] {
            assert_eq!(Quantity::parse(text).map(|q| q.to_string()).as_deref(), shown, "{text:?}");
        }
    }
}
