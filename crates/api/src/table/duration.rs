//! How long ago, in two or three significant figures: `5s`, `2m30s`, `3d4h`.

use jiff::Timestamp;
use serde_json::Value;

/// What stands where a time is not known.
pub const UNKNOWN: &str = "<unknown>";

/// A number of seconds as people read it. Clocks may differ by a second; more is called invalid.
pub fn human(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |big: i64, unit: &str, small: i64, part: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{part}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

/// From one time to another.
pub fn between(from: Timestamp, to: Timestamp) -> String {
    human(to.duration_since(from).as_secs())
}

/// The time a field holds, if it holds one. Clients in Go write the year 1 for none.
pub fn time(value: Option<&Value>) -> Option<Timestamp> {
    let text = value?.as_str()?;
    if text.starts_with("0001-01-01T00:00:00") { None } else { text.parse().ok() }
}

/// How long ago the time in a field was.
pub fn since(value: Option<&Value>, now: Timestamp) -> String {
    time(value).map_or_else(|| UNKNOWN.to_owned(), |then| between(then, now))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_read_as_upstream_writes_them() {
        let (minute, hour, day, year) = (60, 3600, 86_400, 31_536_000);
        let cases = [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (5, "5s"),
            (119, "119s"),
            (2 * minute, "2m"),
            (2 * minute + 30, "2m30s"),
            (9 * minute + 59, "9m59s"),
            (10 * minute + 5, "10m"),
            (179 * minute + 59, "179m"),
            (3 * hour, "3h"),
            (3 * hour + 59, "3h"),
            (7 * hour + 59 * minute, "7h59m"),
            (8 * hour + 59 * minute, "8h"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (3 * day + 4 * hour, "3d4h"),
            (7 * day + 23 * hour, "7d23h"),
            (8 * day + 23 * hour, "8d"),
            (729 * day, "729d"),
            (2 * year, "2y"),
            (2 * year + 3 * day, "2y3d"),
            (8 * year - 1, "7y364d"),
            (8 * year + 300 * day, "8y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn a_time_that_is_not_there_or_not_a_time_is_unknown() {
        let now = "2025-01-01T00:02:30.5Z".parse().unwrap();
        assert_eq!(since(Some(&json!("2025-01-01T00:00:00Z")), now), "2m30s");
        assert_eq!(since(Some(&json!("2025-01-01T00:00:00.250000Z")), now), "2m30s");
        for odd in [json!(null), json!("soon"), json!(3), json!("0001-01-01T00:00:00Z")] {
            assert_eq!(since(Some(&odd), now), UNKNOWN);
        }
        assert_eq!(since(None, now), UNKNOWN);
    }
}
