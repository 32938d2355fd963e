//! What a Service asks for beyond Kubernetes, in its annotations.

use std::{collections::BTreeMap, time::Duration};

/// How long new connections wait while there is no backend: `10s`, `500ms`, or `0` to be refused at once.
pub const HOLD: &str = "mainstay.dev/hold";
/// `user` carries all connections through our own process, `kernel` (stock) only those that wait.
pub const PROXY: &str = "mainstay.dev/proxy";
/// More names in the style of Consul: `blue, v2`.
pub const TAGS: &str = "mainstay.dev/tags";

pub const HOLD_WORDS: &str = "must be a time such as 10s, 1m or 500ms, at most 1h, or 0 to refuse at once";
pub const PROXY_WORDS: &str = "must be user or kernel";
pub const TAGS_WORDS: &str = "must be names of lower case letters, digits and '-', with commas between them";

const LONGEST_HOLD: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    #[default]
    Kernel,
    User,
}

/// What is not said, or not understood, is as usual: the API refuses what cannot be understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub hold: Option<Duration>,
    pub path: Path,
    pub tags: Vec<String>,
}

impl Wishes {
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        Self {
            hold: annotations.get(HOLD).and_then(|text| hold(text)),
            path: annotations.get(PROXY).and_then(|text| path(text)).unwrap_or_default(),
            tags: annotations.get(TAGS).and_then(|text| tags(text)).unwrap_or_default(),
        }
    }
}

pub fn hold(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u32 = text[..digits].parse().ok()?;
    let time = match &text[digits..] {
        "ms" => Duration::from_millis(number.into()),
        "s" => Duration::from_secs(number.into()),
        "m" => Duration::from_secs(u64::from(number) * 60),
        "h" => Duration::from_secs(u64::from(number) * 3600),
        _ => return None,
    };
    (time <= LONGEST_HOLD).then_some(time)
}

pub fn path(text: &str) -> Option<Path> {
    match text {
        "kernel" => Some(Path::Kernel),
        "user" => Some(Path::User),
        _ => None,
    }
}

pub fn tags(text: &str) -> Option<Vec<String>> {
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
        assert_eq!(hold("0"), Some(Duration::ZERO));
        assert_eq!(hold("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(hold("2m"), Some(Duration::from_secs(120)));
        for wrong in ["", "10", "s", "1.5s", "-1s", "2h", "1d", "99999999999s", "10 s"] {
            assert_eq!(hold(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn tags_are_names() {
        assert_eq!(tags("blue, v2"), Some(vec!["blue".to_owned(), "v2".to_owned()]));
        for wrong in ["", "a,,b", "A", "a_b", "-a", "a-"] {
            assert_eq!(tags(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn nothing_said_is_as_usual() {
        assert_eq!(Wishes::of(&BTreeMap::new()), Wishes { hold: None, path: Path::Kernel, tags: vec![] });
    }
}
