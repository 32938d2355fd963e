//! Durations as flags, files and annotations write them: `5s`, `250ms`, `1m30s`, `2h`.
//!
//! Read by `jiff`, restricted to what Go's durations allow, so that nobody has to learn two languages. Only CronJob's
//! `@every` has a parser of its own, for the sake of upstream's error messages.

use std::time::Duration;

use jiff::SignedDuration;

/// What to tell whoever wrote something else.
pub const EXPECTED: &str = "must be a duration such as 5s, 250ms or 1m30s";

/// `None` if the text is not a duration, or a negative one. `0` needs no unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    // jiff reads more than this: other units, blanks, commas and ISO 8601.
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'h' | b'm' | b's' | b'u' | b'n'));
    if !is_plain {
        return None;
    }
    let duration: SignedDuration = text.parse().ok()?;
    Duration::try_from(duration).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, millis) in [
            ("5s", 5_000),
            ("250ms", 250),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            ("2h", 7_200_000),
            ("0", 0),
            ("0s", 0),
            ("1500us", 1),
        ] {
            assert_eq!(parse_duration(text).map(|duration| duration.as_millis()), Some(millis), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "5", "s", "-1s", "5 s", "5x", "1..5s", "1d", "PT5S", "1h, 2m", "99999999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }
}
