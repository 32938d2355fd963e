//! What a machine has for each role: its reservations, and the rest.

use std::collections::BTreeSet;

use super::{ANY_ROLE, RoleReservation, is_pooled};
use crate::{
    ports::PortRanges,
    resources::{ResourceList, format_amount},
};

/// What a machine has for one role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolCapacity {
    pub role: String,
    pub resources: ResourceList,
    /// For pods that ask for any port.
    pub automatic: PortRanges,
    /// Where ports that pods ask for by number may lie.
    pub explicit: PortRanges,
}

/// A reservation of more than a machine has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationExceeds {
    #[error("reserves for {role} twice: write one reservation with all of it")]
    RoleTwice { role: String },
    #[error("reserves {} in all, but this machine has {} for pods", format_amount(resource, *reserved), format_amount(resource, *available))]
    Resource { resource: String, reserved: i64, available: i64 },
    #[error("reserves the host ports {ports} for both {role} and {other}")]
    PortsTwice { ports: PortRanges, role: String, other: String },
    #[error("reserves the host ports {ports} for {role}, which are not among those of this machine")]
    Ports { ports: PortRanges, role: String },
}

/// Divides a machine. The first pool is that of [`ANY_ROLE`], with what no role has; the others follow in the order of the
/// reservations. A machine that has less than was reserved, for a while or for good, gives to the first reservations first.
pub fn split_machine(
    allocatable: &ResourceList,
    (automatic, explicit): (&PortRanges, &PortRanges),
    reservations: &[RoleReservation],
) -> Vec<PoolCapacity> {
    let mut rest: ResourceList =
        allocatable.iter().filter(|(name, _)| is_pooled(name)).map(|(name, amount)| (name.clone(), *amount)).collect();
    let (mut automatic, mut explicit) = (automatic.clone(), explicit.clone());
    let mut pools = Vec::with_capacity(reservations.len() + 1);
    for RoleReservation { role, resources, ports } in reservations {
        let mut own = ResourceList::new();
        for (name, wanted) in resources {
            let Some(left) = rest.get_mut(name) else { continue };
            let amount = (*wanted).min(*left).max(0);
            *left -= amount;
            own.insert(name.clone(), amount);
        }
        let numbers: BTreeSet<u16> = ports.iter().collect();
        automatic = automatic.without(&numbers);
        explicit = explicit.without(&numbers);
        let (role, ports) = (role.clone(), ports.clone());
        pools.push(PoolCapacity { role, resources: own, automatic: ports.clone(), explicit: ports });
    }
    pools.insert(0, PoolCapacity { role: ANY_ROLE.to_owned(), resources: rest, automatic, explicit });
    pools
}

impl ReservationExceeds {
    /// What is wrong with reservations on a machine that has this much for pods. Of resources that are not among `allocatable` it may
    /// have some later.
    pub fn find(
        allocatable: &ResourceList,
        (automatic, explicit): (&PortRanges, &PortRanges),
        reservations: &[RoleReservation],
    ) -> Option<Self> {
        for (nth, own) in reservations.iter().enumerate() {
            for other in &reservations[..nth] {
                let (role, other_role) = (own.role.clone(), other.role.clone());
                if role == other_role {
                    return Some(Self::RoleTwice { role });
                }
                let shared: PortRanges =
                    own.ports.iter().filter(|port| other.ports.contains(*port)).map(|port| (port, port)).collect();
                if !shared.is_empty() {
                    return Some(Self::PortsTwice { ports: shared, role: other_role, other: role });
                }
            }
            let is_foreign = |port: &u16| !automatic.contains(*port) && !explicit.contains(*port);
            let ports: PortRanges = own.ports.iter().filter(is_foreign).map(|port| (port, port)).collect();
            if !ports.is_empty() {
                return Some(Self::Ports { ports, role: own.role.clone() });
            }
        }
        allocatable.iter().find_map(|(resource, available)| {
            let amounts = reservations.iter().filter_map(|own| own.resources.get(resource));
            let reserved = amounts.fold(0_i64, |sum, amount| sum.saturating_add(*amount));
            let (resource, available) = (resource.clone(), *available);
            (reserved > available).then_some(Self::Resource { resource, reserved, available })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> PortRanges {
        PortRanges::parse(texts).unwrap()
    }

    fn reserve(texts: &[&str]) -> Vec<RoleReservation> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn machine() -> ResourceList {
        [("cpu", 8000), ("memory", 16 << 30), ("pods", 110)].map(|(name, amount)| (name.to_owned(), amount)).into()
    }

    #[test]
    fn what_is_not_reserved_is_the_rest() {
        let (automatic, explicit) = (ranges(&["31000-32000"]), ranges(&["1-65535"]));
        let split = |texts: &[&str]| split_machine(&machine(), (&automatic, &explicit), &reserve(texts));
        let pools = split(&["batch=cpu:4,ports:31500-31600", "gpu=example.com/gpu:2,memory:1Gi"]);
        let shown: Vec<_> = pools.iter().map(|pool| (pool.role.as_str(), pool.resources.get("cpu").copied())).collect();
        assert_eq!(shown, [("*", Some(4000)), ("batch", Some(4000)), ("gpu", None)]);
        assert_eq!(pools[0].automatic.texts(), ["31000-31499", "31601-32000"]);
        assert_eq!(pools[0].explicit.texts(), ["1-31499", "31601-65535"]);
        assert_eq!(
            (pools[1].automatic.texts(), pools[1].explicit.texts()),
            (vec!["31500-31600".to_owned()], vec!["31500-31600".to_owned()])
        );
        assert_eq!(pools[0].resources["memory"], 15 << 30);
        assert!(pools.iter().all(|pool| !pool.resources.contains_key("pods")), "pods are the machine's");
        assert!(!pools[2].resources.contains_key("example.com/gpu"), "there is none yet");
        assert_eq!(split(&[])[0].resources["cpu"], 8000);
        let short = split(&["a=cpu:6", "b=cpu:6"]);
        let cpus: Vec<i64> = short.iter().map(|pool| pool.resources["cpu"]).collect();
        assert_eq!(cpus, [0, 6000, 2000], "a machine that shrank");
    }

    #[test]
    fn more_than_the_machine_has_is_found() {
        let (automatic, explicit) = (ranges(&["31000-32000"]), ranges(&["1-40000"]));
        for (texts, words) in [
            (&["a=cpu:8", "b=memory:16Gi"][..], None),
            (&["a=cpu:5", "b=cpu:4"], Some("reserves 9 cpu in all, but this machine has 8 cpu for pods")),
            (&["a=memory:99999Pi", "b=memory:99999Pi"], Some("reserves")),
            (&["a=cpu:1", "a=memory:1Gi"], Some("reserves for a twice: write one reservation with all of it")),
            (&["a=ports:31000-31010", "b=ports:31010-31020"], Some("reserves the host ports 31010 for both a and b")),
            (&["a=ports:39999-40002"], Some("reserves the host ports 40001-40002 for a, which are not among")),
            (&["a=example.com/gpu:9"], None),
        ] {
            let found = ReservationExceeds::find(&machine(), (&automatic, &explicit), &reserve(texts));
            match (found.map(|found| found.to_string()), words) {
                (None, None) => {}
                (Some(text), Some(words)) => assert!(text.starts_with(words), "{texts:?}: {text}"),
                (found, _) => panic!("{texts:?}: {found:?}"),
            }
        }
    }
}
