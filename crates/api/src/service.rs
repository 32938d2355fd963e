//! Annotations of Services that Mainstay reads: how long connections are held, the data path, tags for DNS.

use std::{collections::BTreeMap, time::Duration};

use crate::duration::parse_duration;

/// How long new connections wait while there is no backend: `10s`, `500ms`, or `0` to be refused at once.
pub const HOLD: &str = "mainstay.dev/hold";
/// `user` carries all connections through our own process, `kernel` (stock) only those that wait.
pub const PROXY: &str = "mainstay.dev/proxy";
/// More names in the style of Consul: `blue, v2`.
pub const TAGS: &str = "mainstay.dev/tags";

pub const HOLD_EXPECTED: &str = "must be a time such as 10s, 1m or 500ms, at most 1h, or 0 to refuse at once";
pub const PROXY_EXPECTED: &str = "must be user or kernel";
pub const TAGS_EXPECTED: &str = "must be names of lower case letters, digits and '-', with commas between them";

const LONGEST_HOLD: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPath {
    #[default]
    Kernel,
    User,
}

/// A missing or invalid annotation has its default: the API refuses invalid ones when they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAnnotations {
    pub hold: Option<Duration>,
    pub path: DataPath,
    pub tags: Vec<String>,
}

impl ServiceAnnotations {
    pub fn parse(annotations: &BTreeMap<String, String>) -> Self {
        Self {
            hold: annotations.get(HOLD).and_then(|text| parse_hold(text)),
            path: annotations.get(PROXY).and_then(|text| parse_data_path(text)).unwrap_or_default(),
            tags: annotations.get(TAGS).and_then(|text| parse_tags(text)).unwrap_or_default(),
        }
    }
}

pub fn parse_hold(text: &str) -> Option<Duration> {
    parse_duration(text).filter(|time| *time <= LONGEST_HOLD)
}

pub fn parse_data_path(text: &str) -> Option<DataPath> {
    match text {
        "kernel" => Some(DataPath::Kernel),
        "user" => Some(DataPath::User),
        _ => None,
    }
}

pub fn parse_tags(text: &str) -> Option<Vec<String>> {
    let is_name = |tag: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&tag.len()) && tag.chars().all(inside) && !tag.starts_with('-') && !tag.ends_with('-')
    };
    let tags: Vec<String> = text.split(',').map(|tag| tag.trim().to_owned()).collect();
    tags.iter().all(|tag| is_name(tag)).then_some(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_units_up_to_an_hour() {
        assert_eq!(parse_hold("0"), Some(Duration::ZERO));
        assert_eq!(parse_hold("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_hold("2m"), Some(Duration::from_secs(120)));
        for wrong in ["", "10", "s", "-1s", "2h", "1d", "99999999999s", "10 s"] {
            assert_eq!(parse_hold(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn tags_are_names() {
        assert_eq!(parse_tags("blue, v2"), Some(vec!["blue".to_owned(), "v2".to_owned()]));
        for wrong in ["", "a,,b", "A", "a_b", "-a", "a-"] {
            assert_eq!(parse_tags(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn missing_annotations_have_their_defaults() {
        assert_eq!(
            ServiceAnnotations::parse(&BTreeMap::new()),
            ServiceAnnotations { hold: None, path: DataPath::Kernel, tags: vec![] }
        );
    }
}
