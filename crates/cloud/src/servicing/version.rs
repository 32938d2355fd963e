//! Versions of agents and of machines' systems, as Nodes report them.

use jiff::{SignedDuration, Timestamp};

/// Compared part by part.
pub type Version = (u64, u64, u64);

/// `v1.36.2-mainstay`, `1.36.2+k3s1`, `3815.2.0`.
pub fn parse_version(text: &str) -> Option<Version> {
    let text = text.trim().strip_prefix('v').unwrap_or(text.trim());
    let core = text.split(['-', '+', ' ']).next().unwrap_or_default();
    let mut parts = core.split('.').map(str::parse::<u64>);
    let mut part = || parts.next().and_then(Result::ok);
    Some((part()?, part()?, part()?))
}

/// Of `Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)`; nothing of another system.
pub fn parse_flatcar(os_image: &str) -> Option<Version> {
    let rest = os_image.strip_prefix("Flatcar Container Linux")?;
    rest.split_whitespace().find_map(parse_version)
}

/// A release, once it is old enough; nothing if either is not readable.
pub fn grown_up(version: &str, released: &str, holdoff: SignedDuration, now: Timestamp) -> Option<String> {
    let released: Timestamp = released.trim().parse().ok()?;
    parse_version(version)?;
    (now.duration_since(released) >= holdoff).then(|| version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_counts_when_it_is_a_week_old() {
        let week = SignedDuration::from_hours(7 * 24);
        let at = |text: &str| text.parse().unwrap();
        let grown = |released: &str, now: &str| grown_up("3815.2.0", released, week, at(now)).is_some();
        assert!(!grown("2026-01-01T00:00:00Z", "2026-01-07T23:59:59Z"));
        assert!(grown("2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z"));
        assert!(!grown("nonsense", "2026-01-08T00:00:00Z"));
        assert_eq!(grown_up("nonsense", "2026-01-01T00:00:00Z", week, at("2027-01-01T00:00:00Z")), None);
    }

    #[test]
    fn versions_are_read_as_nodes_report_them() {
        for (text, expected) in [
            ("v1.36.2", Some((1, 36, 2))),
            ("1.36.2+k3s1", Some((1, 36, 2))),
            ("v1.36.2-mainstay.1", Some((1, 36, 2))),
            ("1.36", None),
            ("", None),
            ("main", None),
        ] {
            assert_eq!(parse_version(text), expected, "{text}");
        }
        assert_eq!(parse_flatcar("Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)"), Some((3815, 2, 0)));
        assert_eq!(parse_flatcar("Debian GNU/Linux 12 (bookworm)"), None);
    }
}
