//! Names as they stand in packets: labels, each behind its length, up to the empty one.
//!
//! Names are kept in lower case, because that is how they are compared; what a client asked is given back to it
//! letter by letter from its own packet.

use std::{fmt, ops::Deref};

/// RFC 1035: of one label, and of all with their lengths and the last, empty one.
const LONGEST_LABEL: usize = 63;
pub const LONGEST: usize = 255;

/// As many labels as a name below a domain of ours may have; one with more is as good as one with none that are right.
const MOST_LABELS: usize = 16;

/// What stands for a label that is not text, and so is no name of ours.
const NO_TEXT: &str = "\0";

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a name: labels have 1 to 63 bytes, a name at most 255")]
pub struct NotAName {
    text: String,
}

impl NotAName {
    pub fn of(text: &str) -> Self {
        Self { text: text.into() }
    }
}

impl Name {
    pub fn root() -> Self {
        Self(Box::new([0]))
    }

    /// From text with dots between labels, with or without one at the end.
    pub fn parse(text: &str) -> Result<Self, NotAName> {
        let labels = text.strip_suffix('.').unwrap_or(text);
        match labels {
            "" => Ok(Self::root()),
            _ => Self::root().below(&labels.split('.').collect::<Vec<_>>()).ok_or_else(|| NotAName::of(text)),
        }
    }

    /// From the wire, where it must be whole, without pointers.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let length = length(wire)?;
        (length == wire.len()).then(|| Self(wire.to_ascii_lowercase().into()))
    }

    /// The name with these labels before it, unless it would be too long.
    pub fn below(&self, labels: &[&str]) -> Option<Self> {
        let mut wire = Vec::with_capacity(labels.iter().map(|label| label.len() + 1).sum::<usize>() + self.0.len());
        for label in labels {
            if label.is_empty() || label.len() > LONGEST_LABEL {
                return None;
            }
            wire.push(label.len() as u8);
            wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        wire.extend_from_slice(&self.0);
        (wire.len() <= LONGEST).then(|| Self(wire.into()))
    }

    pub fn wire(&self) -> &[u8] {
        &self.0
    }
}

/// The labels that stand before those of `zone`, if a name in lower case is `zone` or below it.
pub fn labels_below<'a>(wire: &'a [u8], zone: &Name) -> Option<Labels<'a>> {
    let end = wire.len().checked_sub(zone.0.len())?;
    if wire[end..] != *zone.0 {
        return None;
    }
    let mut labels = Labels { text: [NO_TEXT; MOST_LABELS], count: 0 };
    let mut at = 0;
    while at < end {
        let next = at + 1 + usize::from(wire[at]);
        if let Some(label) = labels.text.get_mut(labels.count) {
            *label = wire.get(at + 1..next).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or(NO_TEXT);
        }
        labels.count += 1;
        at = next;
    }
    if labels.count > MOST_LABELS {
        labels = Labels { text: [NO_TEXT; MOST_LABELS], count: MOST_LABELS };
    }
    // Otherwise the zone's bytes were the end of a longer label.
    (at == end).then_some(labels)
}

/// How long the name at the beginning of `wire` is; nothing if it is cut, too long or has pointers.
pub fn length(wire: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let label = usize::from(*wire.get(at)?);
        at += 1 + label;
        if label > LONGEST_LABEL || at > LONGEST || at > wire.len() {
            return None;
        }
        if label == 0 {
            return Some(at);
        }
    }
}

/// Labels in the order in which they are written.
#[derive(Debug)]
pub struct Labels<'a> {
    text: [&'a str; MOST_LABELS],
    count: usize,
}

impl<'a> Deref for Labels<'a> {
    type Target = [&'a str];

    fn deref(&self) -> &Self::Target {
        &self.text[..self.count]
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = &self.0[..];
        if rest.len() == 1 {
            return write!(f, ".");
        }
        while let [label @ 1..=63, after @ ..] = rest {
            let (text, next) = after.split_at(usize::from(*label));
            write!(f, "{}.", text.escape_ascii())?;
            rest = next;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_wire_say_the_same_in_lower_case() {
        let name = Name::parse("Web.Default").unwrap();
        assert_eq!(name.wire(), b"\x03web\x07default\0");
        assert_eq!(name.to_string(), "web.default.");
        assert_eq!(Name::from_wire(b"\x03wEb\x07DEFAULT\0").unwrap(), name);
        assert_eq!(Name::parse(".").unwrap(), Name::root());
    }

    #[test]
    fn what_is_too_long_or_empty_is_no_name() {
        let long = "a".repeat(64);
        for text in ["a..b", ".a", long.as_str(), &"abcdefghi.".repeat(26)] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
        for wire in [&b""[..], b"\x03we", b"\xc0\x00", b"\x01a\0\0", b"\x40"] {
            assert!(Name::from_wire(wire).is_none(), "{wire:?}");
        }
    }

    #[test]
    fn labels_are_those_below_the_zone_and_only_at_its_border() {
        let zone = Name::parse("cluster.local").unwrap();
        let below =
            |text: &str| labels_below(Name::parse(text).unwrap().wire(), &zone).map(|labels| labels.to_vec().join("/"));
        assert_eq!(below("a.b.cluster.local").as_deref(), Some("a/b"));
        assert_eq!(below("cluster.local").as_deref(), Some(""));
        assert_eq!(below("mycluster.local"), None);
        assert_eq!(below("local"), None);
        let sly = Name::from_wire(b"\x0da\x07cluster\x05local\0");
        assert!(sly.is_none_or(|name| labels_below(name.wire(), &zone).is_none()));
    }

    #[test]
    fn a_name_of_very_many_labels_has_none_that_could_be_ours() {
        let name = Name::parse(&"a.".repeat(100)).unwrap();
        assert!(labels_below(name.wire(), &Name::root()).unwrap().iter().all(|label| *label == NO_TEXT));
    }
}
