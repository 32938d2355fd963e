//! Domain names in wire format: labels, each behind its length, up to the empty root label.
//!
//! Names are stored in lower case, because comparison ignores case. Responses repeat the client's own letters from
//! its packet.

use std::{fmt, ops::Deref};

/// RFC 1035: the length of a label, and of a name with all length bytes.
const MAX_LABEL: usize = 63;
pub const MAX_NAME: usize = 255;

/// A name of more labels below a zone of ours does not exist.
const MAX_LABELS: usize = 16;

/// Placeholder for a label that is not UTF-8: it matches no name of ours.
const NO_LABEL: &str = "\0";

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a domain name: labels have 1 to 63 bytes, a name at most 255")]
pub struct InvalidName {
    text: String,
}

impl InvalidName {
    pub fn new(text: &str) -> Self {
        Self { text: text.into() }
    }
}

impl Name {
    pub fn root() -> Self {
        Self(Box::new([0]))
    }

    /// From dotted text, with or without a dot at the end.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let labels = text.strip_suffix('.').unwrap_or(text);
        match labels {
            "" => Ok(Self::root()),
            _ => Self::root().below(&labels.split('.').collect::<Vec<_>>()).ok_or_else(|| InvalidName::new(text)),
        }
    }

    /// From wire format: a whole name without compression pointers.
    pub fn from_wire(wire: &[u8]) -> Option<Self> {
        let length = wire_length(wire)?;
        (length == wire.len()).then(|| Self(wire.to_ascii_lowercase().into()))
    }

    /// The name with these labels prepended; `None` if it would be too long.
    pub fn below(&self, labels: &[&str]) -> Option<Self> {
        let mut wire = Vec::with_capacity(labels.iter().map(|label| label.len() + 1).sum::<usize>() + self.0.len());
        for label in labels {
            if label.is_empty() || label.len() > MAX_LABEL {
                return None;
            }
            wire.push(label.len() as u8);
            wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        wire.extend_from_slice(&self.0);
        (wire.len() <= MAX_NAME).then(|| Self(wire.into()))
    }

    pub fn wire(&self) -> &[u8] {
        &self.0
    }
}

/// The labels before those of `zone`; `None` if the name is neither the zone nor below it.
pub fn labels_below<'a>(wire: &'a [u8], zone: &Name) -> Option<Labels<'a>> {
    let end = wire.len().checked_sub(zone.0.len())?;
    if wire[end..] != *zone.0 {
        return None;
    }
    let mut labels = Labels { text: [NO_LABEL; MAX_LABELS], count: 0 };
    let mut at = 0;
    while at < end {
        let next = at + 1 + usize::from(wire[at]);
        if let Some(label) = labels.text.get_mut(labels.count) {
            *label = wire.get(at + 1..next).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or(NO_LABEL);
        }
        labels.count += 1;
        at = next;
    }
    if labels.count > MAX_LABELS {
        labels = Labels { text: [NO_LABEL; MAX_LABELS], count: MAX_LABELS };
    }
    // Otherwise the zone's bytes were the end of a longer label.
    (at == end).then_some(labels)
}

/// Length of the name at the beginning of `wire`; `None` if it is cut short, too long or has compression pointers.
pub fn wire_length(wire: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let label = usize::from(*wire.get(at)?);
        at += 1 + label;
        if label > MAX_LABEL || at > MAX_NAME || at > wire.len() {
            return None;
        }
        if label == 0 {
            return Some(at);
        }
    }
}

/// Labels from left to right.
#[derive(Debug)]
pub struct Labels<'a> {
    text: [&'a str; MAX_LABELS],
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
    fn text_and_wire_format_convert_in_lower_case() {
        let name = Name::parse("Web.Default").unwrap();
        assert_eq!(name.wire(), b"\x03web\x07default\0");
        assert_eq!(name.to_string(), "web.default.");
        assert_eq!(Name::from_wire(b"\x03wEb\x07DEFAULT\0").unwrap(), name);
        assert_eq!(Name::parse(".").unwrap(), Name::root());
    }

    #[test]
    fn what_is_too_long_or_empty_is_an_invalid_name() {
        let long = "a".repeat(64);
        for text in ["a..b", ".a", long.as_str(), &"abcdefghi.".repeat(26)] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
        for wire in [&b""[..], b"\x03we", b"\xc0\x00", b"\x01a\0\0", b"\x40"] {
            assert!(Name::from_wire(wire).is_none(), "{wire:?}");
        }
    }

    #[test]
    fn labels_below_a_zone_begin_at_its_apex_only() {
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
    fn a_name_of_too_many_labels_matches_nothing() {
        let name = Name::parse(&"a.".repeat(100)).unwrap();
        assert!(labels_below(name.wire(), &Name::root()).unwrap().iter().all(|label| *label == NO_LABEL));
    }
}
