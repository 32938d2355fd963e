//! Host ports: which a pod asks for, which a machine gives.

use std::fmt;

/// A port asked for by number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub port: u16,
    pub protocol: String,
    /// Empty for all addresses.
    pub ip: String,
}

impl HostPort {
    pub fn new(port: u16, protocol: &str, ip: &str) -> Self {
        let every = matches!(ip, "" | "0.0.0.0" | "::");
        Self { port, protocol: protocol.to_owned(), ip: if every { String::new() } else { ip.to_owned() } }
    }

    pub fn clashes(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip.is_empty() || other.ip.is_empty())
    }
}

/// A container's port that wants some host port, whichever is free.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortWish {
    pub container_port: u16,
    pub protocol: String,
    /// Empty if it has none.
    pub name: String,
}

/// Whether a pod's wishes count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortMapping {
    /// Where pods have no addresses of their own, since nothing else leads to them there.
    #[default]
    AsNeeded,
    Always,
    Never,
}

impl PortMapping {
    /// On a machine whose pods are reached at its own ports, or on another.
    pub fn applies(self, by_host_port: bool) -> bool {
        match self {
            Self::AsNeeded => by_host_port,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// What a wish got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenPort {
    pub wish: PortWish,
    pub host_port: u16,
}

/// Port numbers as ranges: sorted, apart, both ends inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortRanges(Vec<(u16, u16)>);

impl PortRanges {
    /// `["31000-31007", "31009"]`; what cannot be read is left out.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|number| *number > 0);
        let range = |text: &str| match text.split_once('-') {
            Some((from, to)) => Some((number(from)?, number(to)?)),
            None => number(text).map(|only| (only, only)),
        };
        let mut ranges: Vec<(u16, u16)> = texts.into_iter().filter_map(range).filter(|(from, to)| from <= to).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(from) <= u32::from(last.1) + 1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    pub fn contains(&self, port: u16) -> bool {
        let at = self.0.partition_point(|(from, _)| *from <= port);
        at > 0 && self.0[at - 1].1 >= port
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|(from, to)| *from..=*to)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, (from, to)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            if from == to { write!(f, "{comma}{from}")? } else { write!(f, "{comma}{from}-{to}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_merged_and_said_again() {
        let ranges = PortRanges::parse(["31005-31007", "31000-31004", "80", "x", "9-3", "70000"]);
        assert_eq!(ranges.to_string(), "80,31000-31007");
        for (port, inside) in [(79, false), (80, true), (81, false), (31000, true), (31007, true), (31008, false)] {
            assert_eq!(ranges.contains(port), inside, "{port}");
        }
        assert_eq!(ranges.iter().take(3).collect::<Vec<_>>(), [80, 31000, 31001]);
        assert_eq!(PortRanges::default().to_string(), "none");
        assert!(PortRanges::parse(["1-65535"]).contains(65535));
    }

    #[test]
    fn ports_clash_by_number_protocol_and_address() {
        let port = |number, protocol, ip| HostPort::new(number, protocol, ip);
        assert!(port(80, "TCP", "").clashes(&port(80, "TCP", "10.0.0.1")));
        assert!(port(80, "TCP", "0.0.0.0").clashes(&port(80, "TCP", "::")));
        assert!(!port(80, "TCP", "10.0.0.2").clashes(&port(80, "TCP", "10.0.0.1")));
        assert!(!port(80, "TCP", "").clashes(&port(80, "UDP", "")));
        assert!(!port(80, "TCP", "").clashes(&port(81, "TCP", "")));
    }
}
