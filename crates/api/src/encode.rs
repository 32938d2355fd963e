//! YAML as other tools of Kubernetes write it: long strings stay on one line.

use serde_json::Value;

/// Strings with line breaks become literal blocks (`|`); nothing is folded, so that certificates, tokens and other long
/// values can be searched for and copied. Empty if the value cannot be written, which no JSON value is.
pub fn to_yaml(value: &Value) -> String {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_strings_stay_on_one_line() {
        let long = "QUJD".repeat(500);
        let words = "some words ".repeat(50).trim_end().to_owned();
        let text = to_yaml(&json!({ "data": long, "message": words }));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(&format!("data: {long}\n")), "{text}");
        assert!(text.contains(&words), "{text}");
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(to_yaml(&json!({ "script": "a\nb\n" })), "script: |\n  a\n  b\n");
    }
}
