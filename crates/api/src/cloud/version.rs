//! Versions of Klusters: which change of version is an upgrade that is done.

use semver::Version;

/// `1.36.0`: three numbers and nothing else.
pub fn parse_version(text: &str) -> Option<Version> {
    Version::parse(text).ok().filter(|version| version.pre.is_empty() && version.build.is_empty())
}

/// A step within a minor version, in either direction, or to the next minor version.
pub fn is_upgrade(from: &Version, to: &Version) -> bool {
    from != to && from.major == to.major && (to.minor == from.minor || from.minor.checked_add(1) == Some(to.minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_goes_one_minor_version_at_most_and_never_back_by_one() {
        let cases = [
            ("1.10.1", "1.10.2", true),
            ("1.10.1", "1.11.2", true),
            ("1.10.1", "1.12.2", false),
            ("1.10.2", "1.10.1", true),
            ("1.10.2", "1.9.2", false),
            ("1.10.1", "1.10.1", false),
            ("1.10.1", "2.10.2", false),
            ("1.18446744073709551615.0", "1.0.0", false),
        ];
        for (from, to, expected) in cases {
            let parse = |text| parse_version(text).expect("a version");
            assert_eq!(is_upgrade(&parse(from), &parse(to)), expected, "{from} to {to}");
        }
    }

    #[test]
    fn a_version_is_three_numbers() {
        for text in ["", "1", "1.2", "v1.2.3", "1.2.3-rc.1", "1.2.3+x", "1.02.3", "1.2.3 "] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
