//! "3" or "25%": how many replicas may be missing, or be there on top.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{
    check::{count, shown},
    names,
};
use crate::field::{Errors, FieldError, Path};

pub fn validate(value: &IntOrString, path: &Path, errors: &mut Errors) {
    match value {
        IntOrString::Int(number) => count(Some(*number), path, errors),
        IntOrString::String(text) => names::refuse(text, path, names::percent, errors),
    }
}

pub fn at_most_all(value: &IntOrString, path: &Path, errors: &mut Errors) {
    if percent(value).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(path, shown(value), "must not be greater than 100%"));
    }
}

/// Whether nothing is allowed, be it in numbers or in percent.
pub fn is_zero(value: &IntOrString) -> bool {
    match value {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(text) => percent(value).or_else(|| text.parse().ok()).unwrap_or(0) == 0,
    }
}

fn percent(value: &IntOrString) -> Option<i64> {
    match value {
        IntOrString::Int(_) => None,
        IntOrString::String(text) => {
            let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
            // More digits than a number can hold are certainly more than all.
            Some(digits.parse().unwrap_or(if digits.is_empty() { 0 } else { i64::MAX }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_in_numbers_or_in_percent() {
        let text = |text: &str| IntOrString::String(text.to_owned());
        let cases = [
            (IntOrString::Int(0), true, ""),
            (IntOrString::Int(3), false, ""),
            (IntOrString::Int(-1), false, "at: Invalid value: -1: must be greater than or equal to 0"),
            (text("0%"), true, ""),
            (text("25%"), false, ""),
            (text("101%"), false, r#"at: Invalid value: "101%": must not be greater than 100%"#),
            (
                text("99999999999999999999%"),
                false,
                r#"at: Invalid value: "99999999999999999999%": must not be greater than 100%"#,
            ),
            (
                text("3"),
                false,
                r#"at: Invalid value: "3": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"#,
            ),
        ];
        for (value, zero, expected) in cases {
            let mut errors = Errors::new();
            validate(&value, &Path::new("at"), &mut errors);
            at_most_all(&value, &Path::new("at"), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), expected);
            assert_eq!(is_zero(&value), zero, "{value:?}");
        }
    }
}
