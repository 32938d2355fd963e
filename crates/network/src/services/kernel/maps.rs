//! Frontends and their backends as elements of nftables sets and maps. Pure.
//!
//! There is no chain per Service. One map (`frontends`) has a disposition for every frontend, another (`backends`)
//! has the backends by frontend and index. So a change writes as many elements as it changes, however many Services
//! there are, and nothing that the kernel validates again in every transaction grows with them.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddrV4},
};

use super::super::frontend::{BackendPool, Frontend, WithoutBackends};
use crate::{
    journal::Protocol,
    nft::sets::{
        Datatype::{InetProto, InetService, Ipv4Addr as Address, Mark},
        SetData, SetDefinition,
    },
};

/// Clients with session affinity at a time. More are balanced without it.
const MAX_AFFINITY: u32 = 1 << 20;
/// Recent SYNs of such clients. The retransmission of one that is not remembered goes to the same backend.
const MAX_RECENT_SYNS: u32 = 1 << 16;
/// Connections whose first RST was dropped. An RST that cannot be remembered is passed on.
const MAX_RECENT_RSTS: u32 = 1 << 16;

const ZERO: [u8; 4] = [0; 4];
/// Behind the port in keys of what clients inside the cluster have for themselves.
pub const INTERNAL_MARK: [u8; 2] = [0, 1];

/// Frontend → a zero, and the key of its disposition.
pub const FRONTENDS: SetDefinition = SetDefinition {
    name: "frontends",
    key: &[Address, InetProto, InetService],
    data: SetData::Values(&[Mark, Mark, Mark, Mark]),
    dynamic: None,
};
/// Frontends whose connections are masqueraded.
pub const MASQUERADED: SetDefinition =
    SetDefinition { name: "masqueraded", key: &[Address, InetProto, InetService], data: SetData::None, dynamic: None };
/// Frontend and index → backend.
pub const BACKENDS: SetDefinition = SetDefinition {
    name: "backends",
    key: &[Address, InetProto, InetService, Mark],
    data: SetData::Values(&[Address, InetService]),
    dynamic: None,
};
/// The same for frontends with session affinity. The value begins with a zero.
pub const AFFINITY_BACKENDS: SetDefinition = SetDefinition {
    name: "affinity-backends",
    key: &[Address, InetProto, InetService, Mark],
    data: SetData::Values(&[Mark, Address, InetService]),
    dynamic: None,
};
/// Backend and frontend, for session affinity: a client's remembered backend is used only while this has it.
pub const AFFINITY_MEMBERS: SetDefinition = SetDefinition {
    name: "affinity-members",
    key: &[Address, InetService, Address, InetProto, InetService],
    data: SetData::None,
    dynamic: None,
};
/// Client and frontend → a zero, and the client's backend.
pub const AFFINITY: SetDefinition = SetDefinition {
    name: "affinity",
    key: &[Address, Address, InetProto, InetService],
    data: SetData::Values(&[Mark, Address, InetService]),
    dynamic: Some(MAX_AFFINITY),
};
/// SYNs of the last seconds, by the client's address and port and the sequence number.
pub const RECENT_SYNS: SetDefinition = SetDefinition {
    name: "recent-syns",
    key: &[Address, InetService, Mark],
    data: SetData::None,
    dynamic: Some(MAX_RECENT_SYNS),
};
/// TCP frontends that do not hold: their clients receive a backend's first RST.
pub const NO_HOLD: SetDefinition =
    SetDefinition { name: "no-hold", key: &[Address, InetProto, InetService], data: SetData::None, dynamic: None };
/// Client and frontend, by address and port: connections whose first RST was dropped.
pub const RECENT_RSTS: SetDefinition = SetDefinition {
    name: "recent-rsts",
    key: &[Address, InetService, Address, InetService],
    data: SetData::None,
    dynamic: Some(MAX_RECENT_RSTS),
};
/// Disposition → its chain.
pub const DISPOSITIONS: SetDefinition =
    SetDefinition { name: "dispositions", key: &[Mark, Mark, Mark], data: SetData::Verdicts, dynamic: None };
/// The same for clients inside the cluster, where they have another disposition than clients outside. Chains of
/// `dispositions` jump here, and the kernel refuses rules that could loop.
pub const INTERNAL_DISPOSITIONS: SetDefinition =
    SetDefinition { name: "internal-dispositions", key: &[Mark, Mark, Mark], data: SetData::Verdicts, dynamic: None };
/// Pairs of equal bytes. A rule can compare a register only with a constant, so two addresses are compared by looking
/// up each pair of their bytes.
pub const EQUAL_BYTES: SetDefinition =
    SetDefinition { name: "equal-bytes", key: &[Mark, Mark], data: SetData::None, dynamic: None };

pub const SETS: [&SetDefinition; 12] = [
    &FRONTENDS,
    &MASQUERADED,
    &BACKENDS,
    &AFFINITY_BACKENDS,
    &AFFINITY_MEMBERS,
    &AFFINITY,
    &RECENT_SYNS,
    &NO_HOLD,
    &RECENT_RSTS,
    &DISPOSITIONS,
    &INTERNAL_DISPOSITIONS,
    &EQUAL_BYTES,
];

/// The sets and maps that are filled from the frontends (rules fill the others).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    Frontends,
    Masqueraded,
    Backends,
    AffinityBackends,
    AffinityMembers,
    NoHold,
    EqualBytes,
}

impl SetId {
    pub const ALL: [SetId; 7] = [
        SetId::Frontends,
        SetId::Masqueraded,
        SetId::Backends,
        SetId::AffinityBackends,
        SetId::AffinityMembers,
        SetId::NoHold,
        SetId::EqualBytes,
    ];

    pub fn name(self) -> &'static str {
        match self {
            SetId::Frontends => FRONTENDS.name,
            SetId::Masqueraded => MASQUERADED.name,
            SetId::Backends => BACKENDS.name,
            SetId::AffinityBackends => AFFINITY_BACKENDS.name,
            SetId::AffinityMembers => AFFINITY_MEMBERS.name,
            SetId::NoHold => NO_HOLD.name,
            SetId::EqualBytes => EQUAL_BYTES.name,
        }
    }

    /// Length of a key, and of a value.
    fn lengths(self) -> (usize, usize) {
        match self {
            SetId::Frontends => (12, 16),
            SetId::Masqueraded | SetId::NoHold => (12, 0),
            SetId::Backends => (16, 8),
            SetId::AffinityBackends => (16, 12),
            SetId::AffinityMembers => (20, 0),
            SetId::EqualBytes => (8, 0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    pub set: SetId,
    bytes: [u8; 20],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementValue([u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    pub key: ElementKey,
    value: ElementValue,
}

impl Element {
    fn new(set: SetId, key: &[&[u8]], value: &[&[u8]]) -> Self {
        let mut element = Self { key: ElementKey { set, bytes: [0; 20] }, value: ElementValue([0; 16]) };
        fill(&mut element.key.bytes, key);
        fill(&mut element.value.0, value);
        element
    }

    /// As the kernel lists it.
    pub fn read(set: SetId, key: &[u8], value: &[u8]) -> Option<Self> {
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

impl ElementKey {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.set.lengths().0]
    }
}

/// Writes fields one after the other, each padded to four bytes.
fn fill(to: &mut [u8], fields: &[&[u8]]) {
    let mut at = 0;
    for field in fields {
        to[at..at + field.len()].copy_from_slice(field);
        at += field.len().next_multiple_of(4);
    }
}

/// What happens to new connections of a frontend. Frontends with the same disposition share a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Disposition {
    pub scope: Scope,
    pub action: Action,
}

/// Which connections a disposition applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// To an address, from any client.
    Address,
    /// To any address of this machine, from any client.
    NodePort,
    /// To an address, from clients inside the cluster, which have another disposition than those outside.
    Internal,
    /// To such an address, from any client: its chain first sends clients inside the cluster to their own disposition.
    External,
}

impl Scope {
    fn chain_prefix(self) -> &'static str {
        match self {
            Scope::Address => "",
            Scope::NodePort => "nodeport-",
            Scope::Internal => "internal-",
            Scope::External => "external-",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// DNAT to a random one of so many backends.
    Balance {
        count: u32,
    },
    /// DNAT to the client's last backend if its last connection was within so many seconds, else as above.
    Affinity {
        count: u32,
        seconds: u32,
    },
    /// Redirect to the user-space proxy.
    Hold,
    Reject,
    Drop,
}

impl Disposition {
    /// The disposition of a frontend, and that of its clients inside the cluster if they have their own.
    pub fn of_frontend(frontend: &Frontend, pool: &BackendPool) -> impl Iterator<Item = Self> {
        pools(pool).map(|(pool, internal)| Self::of_pool(frontend, pool, internal))
    }

    fn of_pool(frontend: &Frontend, pool: &BackendPool, internal: bool) -> Self {
        let count = pool.backends.len() as u32;
        let tcp = frontend.protocol == Protocol::Tcp;
        let action = match (pool.without_backends, pool.affinity) {
            _ if tcp && pool.is_in_user_space() => Action::Hold,
            (_, None) if count > 0 => Action::Balance { count },
            (_, Some(time)) if count > 0 => Action::Affinity { count, seconds: time.as_secs().clamp(1, 86_400) as u32 },
            (WithoutBackends::Drop, _) => Action::Drop,
            // Only TCP connections can be held.
            (WithoutBackends::Hold(_) | WithoutBackends::Reject, _) => Action::Reject,
        };
        let scope = match frontend.address {
            _ if internal => Scope::Internal,
            Some(_) if pool.internal.is_some() => Scope::External,
            None if matches!(action, Action::Balance { .. } | Action::Affinity { .. }) => Scope::NodePort,
            _ => Scope::Address,
        };
        Self { scope, action }
    }

    /// The verdict map that jumps to its chain.
    pub fn map(&self) -> &'static str {
        if self.scope == Scope::Internal { INTERNAL_DISPOSITIONS.name } else { DISPOSITIONS.name }
    }

    pub fn chain(&self) -> String {
        let scope = self.scope.chain_prefix();
        match self.action {
            Action::Balance { count } => format!("{scope}balance-{count}"),
            Action::Affinity { count, seconds } => format!("{scope}affinity-{count}-{seconds}"),
            Action::Hold => format!("{scope}hold"),
            Action::Reject => format!("{scope}reject"),
            Action::Drop => format!("{scope}drop"),
        }
    }

    pub fn key(&self) -> [u8; 12] {
        let [kind, count, seconds]: [u32; 3] = match self.action {
            Action::Balance { count } => [1, count, 0],
            Action::Affinity { count, seconds } => [2, count, seconds],
            Action::Hold => [3, 0, 0],
            Action::Reject => [4, 0, 0],
            Action::Drop => [5, 0, 0],
        };
        let kind = kind | (self.scope as u32) << 8;
        let mut bytes = [0; 12];
        fill(&mut bytes, &[&kind.to_ne_bytes(), &count.to_ne_bytes(), &seconds.to_ne_bytes()]);
        bytes
    }
}

/// A pool, and that of clients inside the cluster if they have their own.
fn pools(pool: &BackendPool) -> impl Iterator<Item = (&BackendPool, bool)> {
    [(pool, false)].into_iter().chain(pool.internal.as_deref().map(|internal| (internal, true)))
}

/// All elements of a frontend.
pub fn frontend_elements(frontend: &Frontend, pool: &BackendPool) -> Vec<Element> {
    pools(pool).flat_map(|(pool, internal)| pool_elements(frontend, pool, internal)).collect()
}

fn pool_elements(frontend: &Frontend, pool: &BackendPool, internal: bool) -> Vec<Element> {
    let disposition = Disposition::of_pool(frontend, pool, internal);
    let address = frontend.address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
    let (protocol, [high, low]) = ([frontend.protocol.number()], frontend.port.to_be_bytes());
    let [mark_high, mark_low] = if internal { INTERNAL_MARK } else { [0; 2] };
    let port = [high, low, mark_high, mark_low];
    let key: [&[u8]; 3] = [&address, &protocol, &port];
    let mut all = vec![Element::new(SetId::Frontends, &key, &[&ZERO, &disposition.key()])];
    if pool.masquerade {
        all.push(Element::new(SetId::Masqueraded, &key, &[]));
    }
    if frontend.protocol == Protocol::Tcp && !matches!(pool.without_backends, WithoutBackends::Hold(_)) {
        all.push(Element::new(SetId::NoHold, &key, &[]));
    }
    let affinity = match disposition.action {
        Action::Balance { .. } => false,
        Action::Affinity { .. } => true,
        Action::Hold | Action::Reject | Action::Drop => return all,
    };
    for (index, backend) in (0u32..).zip(&pool.backends) {
        let (to, to_port) = (backend.ip().octets(), backend.port().to_be_bytes());
        let indexed: [&[u8]; 4] = [&address, &protocol, &port, &index.to_ne_bytes()];
        if affinity {
            all.push(Element::new(SetId::AffinityBackends, &indexed, &[&ZERO, &to, &to_port]));
            all.push(Element::new(SetId::AffinityMembers, &[&to, &to_port, &address, &protocol, &port], &[]));
        } else {
            all.push(Element::new(SetId::Backends, &indexed, &[&to, &to_port]));
        }
    }
    all
}

/// The elements that do not depend on the frontends.
pub fn constant_elements() -> impl Iterator<Item = Element> {
    (0..=u8::MAX).map(|byte| Element::new(SetId::EqualBytes, &[&[byte], &[byte]], &[]))
}

/// A new pool with its backends in the order of [`stable_order`].
pub fn with_stable_order(old: Option<&BackendPool>, new: BackendPool) -> BackendPool {
    let order = old.map(|old| old.backends.as_slice()).unwrap_or_default();
    let old_internal = old.and_then(|old| old.internal.as_deref());
    BackendPool {
        backends: stable_order(order, new.backends),
        internal: new.internal.map(|internal| Box::new(with_stable_order(old_internal, *internal))),
        ..new
    }
}

/// The new backends in an order that changes as few indices of the old ones as possible: new ones take the indices of
/// those that are gone, and if there are too few, the last ones do.
pub fn stable_order(old: &[SocketAddrV4], new: Vec<SocketAddrV4>) -> Vec<SocketAddrV4> {
    let wanted: HashSet<&SocketAddrV4> = new.iter().collect();
    let present: HashSet<&SocketAddrV4> = old.iter().collect();
    let mut fresh = new.iter().filter(|backend| !present.contains(backend));
    let mut order = old.to_vec();
    let mut index = 0;
    while index < order.len() {
        if wanted.contains(&order[index]) {
            index += 1;
        } else if let Some(backend) = fresh.next() {
            order[index] = *backend;
        } else {
            order.swap_remove(index);
        }
    }
    order.extend(fresh);
    order
}

#[cfg(test)]
mod tests;
