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

/// As [`parse_duration`] reads it, exact to the millisecond: `5s`, `1500ms`.
pub fn format_duration(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    }
}

/// [`parse_duration`] for times that people also count in days of 24 hours: `7d`, `1d12h`.
pub fn parse_duration_with_days(text: &str) -> Option<Duration> {
    const DAY: u64 = 24 * 3600;
    let Some((days, rest)) = text.split_once('d') else { return parse_duration(text) };
    let days: u64 = days.parse().ok().filter(|_| days.bytes().all(|byte| byte.is_ascii_digit()))?;
    let rest = if rest.is_empty() { Duration::ZERO } else { parse_duration(rest)? };
    Duration::from_secs(days.checked_mul(DAY)?).checked_add(rest)
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
    fn durations_are_read_as_they_were_written() {
        for (millis, text) in [(0, "0s"), (250, "250ms"), (2_000, "2s"), (90_500, "90500ms")] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)));
        }
    }

    #[test]
    fn days_are_read_where_they_are_allowed() {
        let hours = |text| parse_duration_with_days(text).map(|duration| duration.as_secs() / 3600);
        assert_eq!([hours("7d"), hours("1d12h"), hours("24h"), hours("0")], [Some(168), Some(36), Some(24), Some(0)]);
        for text in ["", "d", "+1d", "-1d", "1.5d", "1d2d", "1h1d", "1dx", "99999999999999999d"] {
            assert_eq!(parse_duration_with_days(text), None, "{text:?}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "5", "s", "-1s", "5 s", "5x", "1..5s", "1d", "PT5S", "1h, 2m", "99999999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }
}
