//! Sets of ports, written as ranges: `31000-31007`, `8080`.

use std::{collections::BTreeSet, fmt};

/// Port numbers, as ranges in order that neither meet nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRanges(Vec<(u16, u16)>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a port or a range of ports, such as 31000-32000, between 1 and 65535")]
pub struct PortRangeError;

impl PortRanges {
    pub const NONE: Self = Self(Vec::new());

    /// Reads ranges, however they lie to each other.
    pub fn parse<T: AsRef<str>>(ranges: impl IntoIterator<Item = T>) -> Result<Self, PortRangeError> {
        let read: Result<Vec<_>, _> = ranges.into_iter().map(|range| parse_range(range.as_ref())).collect();
        Ok(read?.into_iter().collect())
    }

    /// Like [`PortRanges::parse`], but ranges that cannot be read are left out.
    pub fn parse_valid<T: AsRef<str>>(ranges: impl IntoIterator<Item = T>) -> Self {
        ranges.into_iter().filter_map(|range| parse_range(range.as_ref()).ok()).collect()
    }

    pub fn contains(&self, port: u16) -> bool {
        let position = self.0.partition_point(|(first, _)| *first <= port);
        position > 0 && self.0[position - 1].1 >= port
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    /// The first and the last port of each range, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (u16, u16)> {
        self.0.iter().copied()
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// Those that are not among `taken`.
    pub fn without(&self, taken: &BTreeSet<u16>) -> Self {
        let mut left = Vec::new();
        for (first, last) in &self.0 {
            let mut from = u32::from(*first);
            for port in taken.range(*first..=*last) {
                let port = u32::from(*port);
                if from < port {
                    left.push((from as u16, (port - 1) as u16));
                }
                from = port + 1;
            }
            if from <= u32::from(*last) {
                left.push((from as u16, *last));
            }
        }
        Self(left)
    }

    /// One text per range.
    pub fn texts(&self) -> Vec<String> {
        let text = |(first, last): &(u16, u16)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        self.0.iter().map(text).collect()
    }
}

impl FromIterator<(u16, u16)> for PortRanges {
    fn from_iter<I: IntoIterator<Item = (u16, u16)>>(ranges: I) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }
}

/// `31000-31007,31009`.
impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(","))
    }
}

fn parse_range(text: &str) -> Result<(u16, u16), PortRangeError> {
    let port = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|port| plain && *port > 0).ok_or(PortRangeError)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (port(first)?, port(last)?) {
        (first, last) if first <= last => Ok((first, last)),
        _ => Err(PortRangeError),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_read_and_joined() {
        let ports = PortRanges::parse(["31005-31010", "31000-31004", "80", "81"]).unwrap();
        assert_eq!(ports.texts(), ["80-81", "31000-31010"]);
        assert_eq!((ports.len(), ports.contains(31_004), ports.contains(82)), (13, true, false));
        for wrong in ["", "-", "0", "0-5", "5-4", "1-65536", "a", "1-2-3", " 1", "+1"] {
            assert_eq!(PortRanges::parse([wrong]), Err(PortRangeError), "{wrong}");
        }
        assert_eq!(PortRanges::parse(["1-65535"]).unwrap().len(), 65_535);
        assert_eq!(PortRanges::parse_valid(["80", "x", "9-3", "70000"]).texts(), ["80"]);
    }

    proptest! {
        #[test]
        fn what_is_taken_is_missing_and_nothing_else(
            ranges in prop::collection::vec((1u16.., 0u16..40), 0..6),
            taken in prop::collection::btree_set(any::<u16>(), 0..40),
        ) {
            let ports: PortRanges = ranges.into_iter().map(|(first, more)| (first, first.saturating_add(more))).collect();
            let left = ports.without(&taken);
            let expected: Vec<u16> = ports.iter().filter(|port| !taken.contains(port)).collect();
            prop_assert_eq!(left.iter().collect::<Vec<_>>(), expected);
            prop_assert_eq!(PortRanges::parse(left.texts()).unwrap(), left);
        }
    }
}
