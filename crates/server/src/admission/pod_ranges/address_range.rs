//! Ranges of IPv4 addresses, and the grid of equally large ones of which each Node gets one. Pure.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use crate::settings::Settings;

/// So many ranges at most are looked through.
const MOST_BITS: u8 = 16;

/// A range in CIDR notation, by its first address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    first: u32,
    bits: u8,
}

impl AddressRange {
    /// `None` if it is no range of IPv4 addresses.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let (address, bits) = (u32::from(address.parse::<Ipv4Addr>().ok()?), bits.parse().ok().filter(|b| *b <= 32)?);
        Some(Self { first: address & !host_mask(bits), bits })
    }

    fn last(self) -> u32 {
        self.first | host_mask(self.bits)
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last() && other.first <= self.last()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.bits)
    }
}

fn host_mask(bits: u8) -> u32 {
    u32::MAX.checked_shr(u32::from(bits)).unwrap_or(0)
}

/// The range of all pods, divided into one for each Node, which are numbered from its beginning.
#[derive(Clone, Copy, Debug)]
pub struct RangeGrid {
    base: u32,
    bits: u8,
    /// The length of each Node's prefix.
    pub size: u8,
}

impl RangeGrid {
    pub fn new(settings: &Settings) -> Self {
        let (base, bits) = settings.pod_range;
        Self { base: base.into(), bits, size: settings.node_pod_bits.clamp(1, 32) }
    }

    pub fn count(self) -> u32 {
        1 << self.size.saturating_sub(self.bits).min(MOST_BITS)
    }

    pub fn range(self, number: u32) -> AddressRange {
        AddressRange { first: self.base.wrapping_add(number << (32 - self.size)), bits: self.size }
    }

    /// The number of a range of this grid.
    pub fn number(self, range: AddressRange) -> Option<u32> {
        let number = range.first.checked_sub(self.base)? >> (32 - self.size);
        (number < self.count() && self.range(number) == range).then_some(number)
    }
}

/// The whole range.
impl fmt::Display for RangeGrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.bits)
    }
}

/// Addresses of any number of ranges, by the first and last of each stretch.
#[derive(Debug, Default)]
pub struct OccupiedAddresses(BTreeMap<u32, u32>);

impl OccupiedAddresses {
    pub fn overlap(&self, range: AddressRange) -> bool {
        self.0.range(..=range.last()).next_back().is_some_and(|(_, last)| *last >= range.first)
    }
}

impl FromIterator<AddressRange> for OccupiedAddresses {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(ranges: I) -> Self {
        let mut ranges: Vec<AddressRange> = ranges.into_iter().collect();
        ranges.sort_unstable_by_key(|range| range.first);
        let mut stretches = BTreeMap::new();
        let mut end: Option<(u32, u32)> = None;
        for range in ranges {
            let (first, last) = match end {
                Some((first, last)) if range.first <= last => (first, last.max(range.last())),
                Some(_) | None => (range.first, range.last()),
            };
            stretches.insert(first, last);
            end = Some((first, last));
        }
        Self(stretches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        AddressRange::parse(text).unwrap()
    }

    fn grid(base: [u8; 4], bits: u8, size: u8) -> RangeGrid {
        RangeGrid { base: Ipv4Addr::from(base).into(), bits, size }
    }

    #[test]
    fn ranges_overlap_if_one_has_an_address_of_the_other() {
        assert!(range("10.1.0.0/16").overlaps(range("10.1.255.0/24")));
        assert!(range("10.1.255.0/24").overlaps(range("10.1.0.0/16")));
        assert!(!range("10.1.0.0/24").overlaps(range("10.1.1.0/24")));
        assert!(range("0.0.0.0/0").overlaps(range("255.255.255.255/32")));
        assert_eq!(range("10.1.2.3/24").to_string(), "10.1.2.0/24");
        for wrong in ["", "10.1.0.0", "10.1.0.0/33", "fd00::/64", "10.1.0/24"] {
            assert_eq!(AddressRange::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_range_of_the_grid_has_its_number() {
        let grid = grid([10, 128, 0, 0], 10, 24);
        assert_eq!(grid.count(), 1 << 14);
        for number in [0, 1, 255, 256, (1 << 14) - 1] {
            assert_eq!(grid.number(grid.range(number)), Some(number));
        }
        assert_eq!(grid.range(256).to_string(), "10.129.0.0/24");
        for other in ["10.127.255.0/24", "10.192.0.0/24", "10.128.0.0/25", "10.128.0.0/23"] {
            assert_eq!(grid.number(range(other)), None, "{other}");
        }
    }

    #[test]
    fn a_range_of_one_node_and_the_largest_grid_are_within_bounds() {
        let one = grid([10, 0, 0, 0], 24, 24);
        assert_eq!((one.count(), one.range(0)), (1, range("10.0.0.0/24")));
        assert_eq!(grid([10, 0, 0, 0], 28, 24).count(), 1, "smaller than what a node gets");
        assert_eq!(grid([0, 0, 0, 0], 0, 32).count(), 1 << 16);
    }

    #[test]
    fn occupied_addresses_are_found_whatever_lies_in_what() {
        let occupied: OccupiedAddresses =
            ["10.1.4.0/22", "10.1.5.0/24", "10.1.9.0/26", "10.1.4.0/24"].map(range).into_iter().collect();
        for free in ["10.1.3.0/24", "10.1.8.0/24", "10.1.9.64/26", "10.1.10.0/24"] {
            assert!(!occupied.overlap(range(free)), "{free}");
        }
        for taken in ["10.1.4.0/24", "10.1.7.0/24", "10.1.9.0/24", "10.1.9.32/27", "10.0.0.0/8"] {
            assert!(occupied.overlap(range(taken)), "{taken}");
        }
    }
}
