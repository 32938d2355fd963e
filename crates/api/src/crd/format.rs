//! The formats of strings that schemas may ask for. Any other is ignored, as upstream ignores it.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{Timestamp, civil};

use super::pattern;
use crate::validation::names;

macro_rules! formats {
    ($($variant:ident $name:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Format { $($variant),* }

        impl Format {
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            fn all() -> &'static [Self] {
                &[$(Self::$variant),*]
            }
        }
    };
}

formats! {
    BsonObjectId "bsonobjectid",
    Uri "uri",
    Email "email",
    Hostname "hostname",
    Ipv4 "ipv4",
    Ipv6 "ipv6",
    Cidr "cidr",
    Mac "mac",
    Uuid "uuid",
    Uuid3 "uuid3",
    Uuid4 "uuid4",
    Uuid5 "uuid5",
    Isbn "isbn",
    Isbn10 "isbn10",
    Isbn13 "isbn13",
    CreditCard "creditcard",
    Ssn "ssn",
    HexColor "hexcolor",
    RgbColor "rgbcolor",
    Byte "byte",
    Password "password",
    Date "date",
    Duration "duration",
    DateTime "date-time",
    ShortName "k8s-short-name",
    LongName "k8s-long-name",
}

impl Format {
    pub fn parse(name: &str) -> Option<Self> {
        if name.is_empty() {
            return None;
        }
        // Dashes do not count: `datetime` and `date-time` are one.
        let plain = |name: &str| name.replace('-', "");
        let wanted = plain(name);
        Self::all().iter().copied().find(|format| plain(format.name()) == wanted)
    }

    pub fn accepts(self, text: &str) -> bool {
        let matches = |pattern: &str| pattern::compile(pattern).is_ok_and(|regex| regex.is_match(text));
        let uuid = |version: &str| {
            matches(&format!("(?i)^[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}$"))
        };
        match self {
            Self::BsonObjectId => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
            Self::Uri => is_request_uri(text),
            Self::Email => is_email(text),
            Self::Hostname => {
                !text.is_empty()
                    && text.len() <= 255
                    && matches(
                        r"^([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])(\.([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]{0,61}[a-zA-Z0-9]))*$",
                    )
            }
            Self::Ipv4 => text.parse::<Ipv4Addr>().is_ok(),
            Self::Ipv6 => text.parse::<Ipv6Addr>().is_ok(),
            Self::Cidr => names::parse_cidr(text).is_some(),
            Self::Mac => matches(
                r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$|^([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}$|^([0-9A-Fa-f]{2}[:-]){7}[0-9A-Fa-f]{2}$",
            ),
            Self::Uuid => uuid("[0-9a-f]") || matches("(?i)^[0-9a-f]{32}$"),
            Self::Uuid3 => uuid("3"),
            Self::Uuid4 => matches("(?i)^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"),
            Self::Uuid5 => matches("(?i)^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"),
            Self::Isbn => is_isbn10(text) || is_isbn13(text),
            Self::Isbn10 => is_isbn10(text),
            Self::Isbn13 => is_isbn13(text),
            Self::CreditCard => is_credit_card(text),
            Self::Ssn => matches(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
            Self::HexColor => matches("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
            Self::RgbColor => matches(
                r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
            ),
            Self::Byte => BASE64_STANDARD.decode(text.replace(['\n', '\r'], "")).is_ok(),
            Self::Password => true,
            Self::Date => text.len() == 10 && text.parse::<civil::Date>().is_ok(),
            Self::Duration => is_duration(text),
            Self::DateTime => is_date_time(text),
            Self::ShortName => names::dns1123_label(text).is_empty(),
            Self::LongName => names::dns1123_subdomain(text).is_empty(),
        }
    }
}

/// Go's `url.ParseRequestURI`: absolute, or a path that begins with a slash.
fn is_request_uri(text: &str) -> bool {
    let clean = !text.is_empty() && text.bytes().all(|b| b > b' ' && b != 0x7f);
    let scheme = || {
        let (scheme, rest) = text.split_once(':')?;
        let mut chars = scheme.chars();
        let first = chars.next()?.is_ascii_alphabetic();
        let others = chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        Some(first && others && (rest.starts_with('/') || !rest.is_empty()))
    };
    clean && (text.starts_with('/') || scheme().unwrap_or(false))
}

fn is_email(text: &str) -> bool {
    // A display name may stand before an address in angle brackets.
    let address = match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(open), Some(_)) => &text[open + 1..text.len() - 1],
        _ => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let dotted = |text: &str, part: &dyn Fn(char) -> bool| {
        !text.is_empty() && text.split('.').all(|atom| !atom.is_empty() && atom.chars().all(part))
    };
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || dotted(local, &atom)) && dotted(domain, &atom)
}

fn is_isbn10(text: &str) -> bool {
    let digits: String = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    let value = |(at, c): (usize, char)| match c {
        'X' | 'x' if at == 9 => Some(10),
        c => c.to_digit(10),
    };
    let values: Option<Vec<u32>> = digits.chars().enumerate().map(value).collect();
    values.is_some_and(|v| v.len() == 10 && v.iter().zip((1..=10).rev()).map(|(d, w)| d * w).sum::<u32>() % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let digits: Option<Vec<u32>> = text.chars().filter(|c| !matches!(c, '-' | ' ')).map(|c| c.to_digit(10)).collect();
    let weigh = |(at, digit): (usize, &u32)| digit * if at % 2 == 0 { 1 } else { 3 };
    digits.is_some_and(|d| d.len() == 13 && d.iter().enumerate().map(weigh).sum::<u32>() % 10 == 0)
}

fn is_credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let only = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ' '));
    let weigh = |(at, digit): (usize, &u32)| match (at % 2, digit * 2) {
        (0, _) => *digit,
        (_, doubled) => doubled / 10 + doubled % 10,
    };
    only && (13..=19).contains(&digits.len()) && digits.iter().rev().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

/// Go's durations (`1h30m`), or a number with a unit in words (`3 days`).
fn is_duration(text: &str) -> bool {
    let go = r"^[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)$";
    let words = r"^(\d+\s*(ns|us|µs|ms|s|m|h|d|w|nanos?|nanoseconds?|micros?|microseconds?|millis?|milliseconds?|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?)\s*)+$";
    [go, words].iter().any(|pattern| pattern::compile(pattern).is_ok_and(|regex| regex.is_match(text)))
}

fn is_date_time(text: &str) -> bool {
    let shape = r"(?i)^\d{4}-\d{2}-\d{2}[t ]\d{2}:\d{2}:\d{2}([.,]\d+)?(z|[+-]\d{2}:?\d{2})?$";
    let shaped = pattern::compile(shape).is_ok_and(|regex| regex.is_match(text));
    let text = text.replace(',', ".");
    shaped && (text.parse::<Timestamp>().is_ok() || text.parse::<civil::DateTime>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_what_they_name() {
        let cases = [
            ("uri", "https://example.com/a?b", "no uri"),
            ("email", "a.b@example.com", "a.b"),
            ("hostname", "a.example.com", "a_b"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0"),
            ("mac", "00:11:22:aa:bb:cc", "00:11"),
            ("uuid", "c0ffee00-0000-1000-8000-000000000000", "c0ffee"),
            ("uuid4", "c0ffee00-0000-4000-8000-000000000000", "c0ffee00-0000-1000-8000-000000000000"),
            ("isbn10", "0-306-40615-2", "0-306-40615-3"),
            ("isbn13", "978-0-306-40615-7", "978-0-306-40615-8"),
            ("creditcard", "4111 1111 1111 1111", "4111 1111 1111 1112"),
            ("ssn", "111-11-1111", "111-1"),
            ("hexcolor", "#ffF", "#ffg"),
            ("rgbcolor", "rgb(1, 2, 255)", "rgb(1,2,256)"),
            ("byte", "aGk=", "a"),
            ("date", "2025-02-28", "2025-02-30"),
            ("duration", "1h30m", "soon"),
            ("datetime", "2025-01-01T00:00:00.5Z", "2025-01-01"),
            ("date-time", "2025-01-01T00:00:00+02:00", "yesterday"),
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f"),
            ("k8s-short-name", "a-b", "a.b"),
            ("k8s-long-name", "a.b", "A.b"),
        ];
        for (format, good, bad) in cases {
            let format = Format::parse(format).unwrap_or_else(|| panic!("{format}"));
            assert!(format.accepts(good), "{format:?} {good}");
            assert!(!format.accepts(bad), "{format:?} {bad}");
        }
        assert_eq!(Format::parse("int32"), None, "what upstream does not know is ignored");
    }
}
