//! A quantity as a number.

use std::fmt::Write;

/// A quantity in billionths: fine enough for everything the API can say, wide enough for exbibytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// The API cannot count further than this.
const MAX: i128 = i64::MAX as i128 * NANO;

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Binary,
    Decimal,
    Exponent,
}

const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Amount {
    pub fn parse(text: &str) -> Option<Self> {
        read(text).map(|(amount, _)| amount)
    }

    /// The one way in which the API writes this quantity: `0.5` is `500m`, `1024Ki` is `1Mi`.
    pub fn canonical(text: &str) -> Option<String> {
        let (amount, style) = read(text)?;
        Some(amount.write(style))
    }

    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    pub fn is_whole(self) -> bool {
        self.round_to_milli().0 % NANO == 0
    }

    pub fn is_multiple_of(self, unit: Self) -> bool {
        unit.0 > 0 && self.0 % unit.0 == 0
    }

    pub fn as_milli(self) -> i128 {
        self.round_to_milli().0 / MILLI
    }

    pub fn sum(self, other: Self) -> Self {
        Amount(self.0.saturating_add(other.0).min(MAX))
    }

    fn round_to_milli(self) -> Self {
        let rest = self.0 % MILLI;
        match rest {
            0 => self,
            _ if rest > 0 => Amount(self.0 - rest + MILLI),
            _ => Amount(self.0 - rest - MILLI),
        }
    }

    fn write(self, style: Style) -> String {
        let value = self.round_to_milli().0;
        if value == 0 {
            return "0".to_owned();
        }
        // Fractions and small numbers of a binary quantity read better in decimal.
        if style == Style::Binary && value % NANO == 0 && value.abs() >= 1024 * NANO {
            let whole = value / NANO;
            let (suffix, shift) =
                BINARY.iter().rev().find(|(_, shift)| whole % (1i128 << shift) == 0).copied().unwrap_or(("", 0));
            return format!("{}{suffix}", whole >> shift);
        }
        let mut exponent = 0;
        let mut mantissa = value;
        if value % NANO == 0 {
            mantissa = value / NANO;
            while mantissa % 1000 == 0 && exponent < 18 {
                mantissa /= 1000;
                exponent += 3;
            }
        } else {
            mantissa /= MILLI;
            exponent = -3;
        }
        let mut text = mantissa.to_string();
        if style == Style::Exponent {
            if exponent != 0 {
                let _ = write!(text, "e{exponent}");
            }
        } else if let Some((suffix, _)) = DECIMAL.iter().find(|(_, e)| *e == exponent) {
            text.push_str(suffix);
        }
        text
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.write(Style::Decimal))
    }
}

fn read(text: &str) -> Option<(Amount, Style)> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (style, shift, exponent) = unit(suffix)?;
    let digits = format!("{whole}{fraction}");
    let mut value: i128 = 0;
    let mut scale = 9 + exponent - i32::try_from(fraction.len()).ok()?;
    let mut inexact = false;
    for (i, digit) in digits.trim_start_matches('0').bytes().enumerate() {
        if i < 26 {
            value = value * 10 + i128::from(digit - b'0');
        } else {
            inexact |= digit != b'0';
            scale += 1;
        }
    }
    while scale < 0 {
        inexact |= value % 10 != 0;
        value /= 10;
        scale += 1;
    }
    while scale > 0 && value != 0 && value <= MAX {
        value *= 10;
        scale -= 1;
    }
    value = value.min(MAX) << shift.min(62);
    value = (value + i128::from(inexact)).min(MAX);
    Some((Amount(if negative { -value } else { value }), style))
}

fn unit(suffix: &str) -> Option<(Style, u32, i32)> {
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((Style::Binary, *shift, 0));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Style::Decimal, 0, *exponent));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-100..=100).contains(&exponent).then_some((Style::Exponent, 0, exponent))
}
