//! "3" or "25%": a number, or a share of a number.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Up,
    Down,
}

/// How many of `total` it is. What cannot be read is none.
pub fn resolve(share: &IntOrString, total: i64, round: Rounding) -> i64 {
    match share {
        IntOrString::Int(number) => (*number).into(),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<i64>().ok()).unwrap_or(0);
            let parts = percent.saturating_mul(total);
            match round {
                Rounding::Up => parts.saturating_add(99).div_euclid(100),
                Rounding::Down => parts.div_euclid(100),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_up_or_down() {
        let percent = |text: &str| IntOrString::String(text.to_owned());
        for (share, total, up, down) in [
            (IntOrString::Int(3), 10, 3, 3),
            (percent("25%"), 10, 3, 2),
            (percent("100%"), 7, 7, 7),
            (percent("0%"), 7, 0, 0),
            (percent("1%"), 0, 0, 0),
            (percent("x"), 7, 0, 0),
        ] {
            assert_eq!(
                (resolve(&share, total, Rounding::Up), resolve(&share, total, Rounding::Down)),
                (up, down),
                "{share:?}"
            );
        }
    }
}
