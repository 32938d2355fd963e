//! Fronts and targets as elements of the kernel's maps. Pure.
//!
//! There is no chain per Service. One map (`fronts`) says for every front what kind of thing becomes of its
//! connections, another (`backends`) has the backends by front and number. So a change writes as many elements as it
//! changes, however many Services there are; and nothing that the kernel checks anew with every change grows with them.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddrV4},
};

use super::super::frontend::{Front, Target, WithoutBackends};
use crate::{
    journal::Protocol,
    nft::sets::{
        Holds,
        Part::{Address, Number, Port, Protocol as Transport},
        Shape,
    },
};

/// How many clients may stay with their backends at a time. More are balanced all the same.
const MOST_STICKY: u32 = 1 << 20;

/// How many connections to them may have begun within moments. More go back to the same backend if nobody answers.
const MOST_BEGUN: u32 = 1 << 16;
/// How many connections may be tried again at a time. More are refused when they are refused.
const MOST_TRIED_AGAIN: u32 = 1 << 16;

const ZERO: [u8; 4] = [0; 4];
/// In keys of what callers inside have for themselves, this follows the port.
pub const INSIDE: [u8; 2] = [0, 1];

/// A front → a zero, and the way of its connections.
pub const FRONTS: Shape = Shape {
    name: "fronts",
    key: &[Address, Transport, Port],
    holds: Holds::Values(&[Number, Number, Number, Number]),
    written_by_rules: None,
};
/// Fronts whose connections carry the machine's own address.
pub const MASQUERADED: Shape =
    Shape { name: "masqueraded", key: &[Address, Transport, Port], holds: Holds::Nothing, written_by_rules: None };
/// A front and a number → a backend.
pub const BACKENDS: Shape = Shape {
    name: "backends",
    key: &[Address, Transport, Port, Number],
    holds: Holds::Values(&[Address, Port]),
    written_by_rules: None,
};
/// The same for fronts whose clients stay with their backends. Begins with a zero.
pub const STICKY_BACKENDS: Shape = Shape {
    name: "sticky-backends",
    key: &[Address, Transport, Port, Number],
    holds: Holds::Values(&[Number, Address, Port]),
    written_by_rules: None,
};
/// A backend and its front, for the same: what is remembered of a client counts only as long as this has it.
pub const MEMBERS: Shape = Shape {
    name: "members",
    key: &[Address, Port, Address, Transport, Port],
    holds: Holds::Nothing,
    written_by_rules: None,
};
/// A client and a front → a zero, and the backend it stays with.
pub const STICKY: Shape = Shape {
    name: "sticky",
    key: &[Address, Address, Transport, Port],
    holds: Holds::Values(&[Number, Address, Port]),
    written_by_rules: Some(MOST_STICKY),
};
/// First packets of the last moments, by the client's address and port and their sequence number.
pub const BEGUN: Shape =
    Shape { name: "begun", key: &[Address, Port, Number], holds: Holds::Nothing, written_by_rules: Some(MOST_BEGUN) };
/// Fronts whose clients hear at once that a backend refused them.
pub const IMPATIENT: Shape =
    Shape { name: "impatient", key: &[Address, Transport, Port], holds: Holds::Nothing, written_by_rules: None };
/// A client and a front, by address and port: whose connection was refused once already.
pub const REFUSED: Shape = Shape {
    name: "refused",
    key: &[Address, Port, Address, Port],
    holds: Holds::Nothing,
    written_by_rules: Some(MOST_TRIED_AGAIN),
};
/// A way → its chain.
pub const WAYS: Shape =
    Shape { name: "ways", key: &[Number, Number, Number], holds: Holds::Verdicts, written_by_rules: None };
/// The same for callers inside where those outside go another way. The ways of the latter lead here, and the kernel takes no rules
/// that could go round in circles.
pub const INSIDE_WAYS: Shape =
    Shape { name: "inside-ways", key: &[Number, Number, Number], holds: Holds::Verdicts, written_by_rules: None };
/// Pairs of equal bytes. Rules compare with constants alone, so whether two addresses are the same is looked up byte by byte.
pub const SAME: Shape = Shape { name: "same", key: &[Number, Number], holds: Holds::Nothing, written_by_rules: None };

pub const SHAPES: [&Shape; 12] = [
    &FRONTS,
    &MASQUERADED,
    &BACKENDS,
    &STICKY_BACKENDS,
    &MEMBERS,
    &STICKY,
    &BEGUN,
    &IMPATIENT,
    &REFUSED,
    &WAYS,
    &INSIDE_WAYS,
    &SAME,
];

/// The sets that say what becomes of fronts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    Fronts,
    Masqueraded,
    Backends,
    StickyBackends,
    Members,
    Impatient,
    Same,
}

impl Set {
    pub const ALL: [Set; 7] =
        [Set::Fronts, Set::Masqueraded, Set::Backends, Set::StickyBackends, Set::Members, Set::Impatient, Set::Same];

    pub fn name(self) -> &'static str {
        match self {
            Set::Fronts => FRONTS.name,
            Set::Masqueraded => MASQUERADED.name,
            Set::Backends => BACKENDS.name,
            Set::StickyBackends => STICKY_BACKENDS.name,
            Set::Members => MEMBERS.name,
            Set::Impatient => IMPATIENT.name,
            Set::Same => SAME.name,
        }
    }

    /// Of a key and of what it leads to.
    fn lengths(self) -> (usize, usize) {
        match self {
            Set::Fronts => (12, 16),
            Set::Masqueraded | Set::Impatient => (12, 0),
            Set::Backends => (16, 8),
            Set::StickyBackends => (16, 12),
            Set::Members => (20, 0),
            Set::Same => (8, 0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub set: Set,
    bytes: [u8; 20],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value([u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    pub key: Key,
    value: Value,
}

impl Element {
    fn new(set: Set, key: &[&[u8]], value: &[&[u8]]) -> Self {
        let mut element = Self { key: Key { set, bytes: [0; 20] }, value: Value([0; 16]) };
        fill(&mut element.key.bytes, key);
        fill(&mut element.value.0, value);
        element
    }

    /// As the kernel tells it.
    pub fn read(set: Set, key: &[u8], value: &[u8]) -> Option<Self> {
        let (key_length, value_length) = set.lengths();
        let whole = key.len() == key_length && value.len() == value_length;
        whole.then(|| Self::new(set, &[key], &[value]))
    }

    pub fn value(&self) -> Option<&[u8]> {
        match self.key.set.lengths().1 {
            0 => None,
            length => Some(&self.value.0[..length]),
        }
    }
}

impl Key {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.set.lengths().0]
    }
}

/// Parts one after the other, each padded to four bytes.
fn fill(to: &mut [u8], parts: &[&[u8]]) {
    let mut at = 0;
    for part in parts {
        to[at..at + part.len()].copy_from_slice(part);
        at += part.len().next_multiple_of(4);
    }
}

/// What becomes of new connections to a front. Those with the same way share a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    pub at: At,
    pub then: Then,
}

/// Whose connections go a way, and to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// Everybody's to an address.
    Address,
    /// Everybody's to any address of the machine.
    Node,
    /// Those to an address by callers inside, who go another way than those outside.
    Inside,
    /// Those to such an address, by anybody: callers inside are told apart here.
    Outside,
}

impl At {
    /// Its name in the names of chains.
    fn prefix(self) -> &'static str {
        match self {
            At::Address => "",
            At::Node => "node-",
            At::Inside => "inside-",
            At::Outside => "outside-",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Then {
    /// To any of so many backends.
    Pick {
        count: u32,
    },
    /// To the one that the client had before, if it was there within so many seconds.
    Stick {
        count: u32,
        seconds: u32,
    },
    /// To our own process.
    Hold,
    Refuse,
    Drop,
}

impl Way {
    /// All ways of a front.
    pub fn all(front: &Front, target: &Target) -> impl Iterator<Item = Self> {
        parts(target).map(|(target, inside)| Self::of(front, target, inside))
    }

    fn of(front: &Front, target: &Target, inside: bool) -> Self {
        let count = target.backends.len() as u32;
        let tcp = front.protocol == Protocol::Tcp;
        let then = match (target.without_backends, target.affinity) {
            _ if tcp && target.is_in_user_space() => Then::Hold,
            (_, None) if count > 0 => Then::Pick { count },
            (_, Some(time)) if count > 0 => Then::Stick { count, seconds: time.as_secs().clamp(1, 86_400) as u32 },
            (WithoutBackends::Drop, _) => Then::Drop,
            // What is not TCP cannot wait.
            (WithoutBackends::Hold(_) | WithoutBackends::Refuse, _) => Then::Refuse,
        };
        let at = match front.address {
            _ if inside => At::Inside,
            Some(_) if target.inside.is_some() => At::Outside,
            None if matches!(then, Then::Pick { .. } | Then::Stick { .. }) => At::Node,
            _ => At::Address,
        };
        Self { at, then }
    }

    /// The map that leads there.
    pub fn map(&self) -> &'static str {
        if self.at == At::Inside { INSIDE_WAYS.name } else { WAYS.name }
    }

    pub fn chain(&self) -> String {
        let at = self.at.prefix();
        match self.then {
            Then::Pick { count } => format!("{at}pick-{count}"),
            Then::Stick { count, seconds } => format!("{at}stick-{count}-{seconds}"),
            Then::Hold => format!("{at}hold"),
            Then::Refuse => format!("{at}refuse"),
            Then::Drop => format!("{at}drop"),
        }
    }

    pub fn key(&self) -> [u8; 12] {
        let [kind, count, seconds]: [u32; 3] = match self.then {
            Then::Pick { count } => [1, count, 0],
            Then::Stick { count, seconds } => [2, count, seconds],
            Then::Hold => [3, 0, 0],
            Then::Refuse => [4, 0, 0],
            Then::Drop => [5, 0, 0],
        };
        let kind = kind | (self.at as u32) << 8;
        let mut bytes = [0; 12];
        fill(&mut bytes, &[&kind.to_ne_bytes(), &count.to_ne_bytes(), &seconds.to_ne_bytes()]);
        bytes
    }
}

pub fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// What becomes of a front's connections, and the same for callers inside if that is something else.
fn parts(target: &Target) -> impl Iterator<Item = (&Target, bool)> {
    [(target, false)].into_iter().chain(target.inside.as_deref().map(|inside| (inside, true)))
}

/// All elements that a front needs.
pub fn elements(front: &Front, target: &Target) -> Vec<Element> {
    parts(target).flat_map(|(target, inside)| elements_of(front, target, inside)).collect()
}

fn elements_of(front: &Front, target: &Target, inside: bool) -> Vec<Element> {
    let way = Way::of(front, target, inside);
    let address = front.address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
    let (protocol, [high, low]) = ([number(front.protocol)], front.port.to_be_bytes());
    let [mark, more] = if inside { INSIDE } else { [0; 2] };
    let port = [high, low, mark, more];
    let key: [&[u8]; 3] = [&address, &protocol, &port];
    let mut all = vec![Element::new(Set::Fronts, &key, &[&ZERO, &way.key()])];
    if target.masquerade {
        all.push(Element::new(Set::Masqueraded, &key, &[]));
    }
    if front.protocol == Protocol::Tcp && !matches!(target.without_backends, WithoutBackends::Hold(_)) {
        all.push(Element::new(Set::Impatient, &key, &[]));
    }
    let sticky = match way.then {
        Then::Pick { .. } => false,
        Then::Stick { .. } => true,
        Then::Hold | Then::Refuse | Then::Drop => return all,
    };
    for (index, backend) in (0u32..).zip(&target.backends) {
        let (to, to_port) = (backend.ip().octets(), backend.port().to_be_bytes());
        let numbered: [&[u8]; 4] = [&address, &protocol, &port, &index.to_ne_bytes()];
        if sticky {
            all.push(Element::new(Set::StickyBackends, &numbered, &[&ZERO, &to, &to_port]));
            all.push(Element::new(Set::Members, &[&to, &to_port, &address, &protocol, &port], &[]));
        } else {
            all.push(Element::new(Set::Backends, &numbered, &[&to, &to_port]));
        }
    }
    all
}

/// What is there whatever the fronts.
pub fn constant_elements() -> impl Iterator<Item = Element> {
    (0..=u8::MAX).map(|byte| Element::new(Set::Same, &[&[byte], &[byte]], &[]))
}

/// A new target with its backends in the order that [`placed`] gives them.
pub fn settled(old: Option<&Target>, new: Target) -> Target {
    let order = old.map(|old| old.backends.as_slice()).unwrap_or_default();
    let old_inside = old.and_then(|old| old.inside.as_deref());
    Target {
        backends: placed(order, new.backends),
        inside: new.inside.map(|inside| Box::new(settled(old_inside, *inside))),
        ..new
    }
}

/// New backends in an order that moves as few of the old ones as possible: newcomers take the places of those that
/// go, and if there are too few, the last ones do.
pub fn placed(old: &[SocketAddrV4], new: Vec<SocketAddrV4>) -> Vec<SocketAddrV4> {
    let wanted: HashSet<&SocketAddrV4> = new.iter().collect();
    let known: HashSet<&SocketAddrV4> = old.iter().collect();
    let mut fresh = new.iter().filter(|backend| !known.contains(backend));
    let mut order = old.to_vec();
    let mut at = 0;
    while at < order.len() {
        if wanted.contains(&order[at]) {
            at += 1;
        } else if let Some(backend) = fresh.next() {
            order[at] = *backend;
        } else {
            order.swap_remove(at);
        }
    }
    order.extend(fresh);
    order
}

#[cfg(test)]
mod tests;
