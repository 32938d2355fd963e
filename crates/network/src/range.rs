//! IPv4 ranges in CIDR notation, such as the pods of one machine (`10.244.3.0/24`). The first address is the gateway.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Range {
    base: Ipv4Addr,
    bits: u8,
}

#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an IPv4 range such as 10.244.3.0/24 with a prefix of at most 30 bits")]
pub struct InvalidRange {
    text: String,
}

impl Range {
    /// The range of this size that contains the address.
    pub fn around(address: Ipv4Addr, bits: u8) -> Option<Self> {
        (1..=30).contains(&bits).then(|| Self { base: Ipv4Addr::from(u32::from(address) & mask(bits)), bits })
    }

    pub fn base(&self) -> Ipv4Addr {
        self.base
    }

    pub fn bits(&self) -> u8 {
        self.bits
    }

    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from(mask(self.bits))
    }

    pub fn contains(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.bits) == u32::from(self.base)
    }

    /// The bridge's address, and the gateway of every pod.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) + 1)
    }

    /// The addresses that pods may get, in order.
    pub fn hosts(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let base = u32::from(self.base);
        let last = base | !mask(self.bits);
        (base + 2..last).map(Ipv4Addr::from)
    }
}

fn mask(bits: u8) -> u32 {
    u32::MAX << (32 - u32::from(bits))
}

impl FromStr for Range {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let parsed = text.split_once('/').and_then(|(base, bits)| {
            let (base, bits) = (base.parse().ok()?, bits.parse().ok()?);
            Range::around(base, bits).filter(|range| range.base == base)
        });
        parsed.ok_or_else(|| InvalidRange { text: text.to_owned() })
    }
}

impl TryFrom<String> for Range {
    type Error = InvalidRange;

    fn try_from(text: String) -> Result<Self, InvalidRange> {
        text.parse()
    }
}

impl From<Range> for String {
    fn from(range: Range) -> Self {
        range.to_string()
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_gateway_and_hosts_but_neither_network_nor_broadcast() {
        let range: Range = "10.244.3.0/24".parse().unwrap();
        assert_eq!(range.gateway().to_string(), "10.244.3.1");
        let hosts: Vec<_> = range.hosts().collect();
        assert_eq!(
            (hosts.len(), hosts[0].to_string(), hosts[252].to_string()),
            (253, "10.244.3.2".into(), "10.244.3.254".into())
        );
        assert!(range.contains(hosts[9]) && !range.contains("10.244.4.1".parse().unwrap()));
        assert_eq!(range.to_string(), "10.244.3.0/24");
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for text in ["", "10.244.3.0", "10.244.3.1/24", "10.244.3.0/31", "10.244.3.0/0", "fd00::/64", "x/24"] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
    }
}
