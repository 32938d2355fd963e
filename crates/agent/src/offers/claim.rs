//! What a pod takes of a machine.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use mainstay_api::quantity;

use super::host_ports;

/// By resource; cpu in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<String, i128>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub amounts: Amounts,
    pub ports: Vec<HostPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: String,
    /// Empty for all addresses of the machine.
    pub ip: String,
    pub port: u16,
    /// Chosen for the pod rather than asked for by number.
    pub automatic: bool,
}

impl HostPort {
    pub fn clashes(&self, other: &Self) -> bool {
        let all = |ip: &str| matches!(ip, "" | "0.0.0.0" | "::");
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || all(&self.ip) || all(&other.ip))
    }
}

impl Claim {
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let explicit = spec.containers.iter().chain(spec.init_containers.iter().flatten()).flat_map(explicit);
        let automatic = host_ports::chosen(pod).into_iter().map(|chosen| HostPort {
            protocol: chosen.protocol,
            ip: String::new(),
            port: chosen.host_port,
            automatic: true,
        });
        Self { amounts: requests(spec), ports: explicit.chain(automatic).collect() }
    }

    /// What all of these take together.
    pub fn sum<'a>(claims: impl IntoIterator<Item = &'a Self>) -> Amounts {
        let mut sum = Amounts::new();
        claims.into_iter().for_each(|claim| add(&mut sum, &claim.amounts));
        sum
    }

    /// The ports that are taken, whatever the protocol.
    pub fn taken<'a>(claims: impl IntoIterator<Item = &'a Self>) -> BTreeSet<u16> {
        claims.into_iter().flat_map(|claim| claim.ports.iter().map(|port| port.port)).collect()
    }
}

fn explicit(container: &Container) -> impl Iterator<Item = HostPort> {
    container.ports.iter().flatten().filter_map(|port| {
        Some(HostPort {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            ip: port.host_ip.clone().unwrap_or_default(),
            port: u16::try_from(port.host_port?).ok().filter(|port| *port > 0)?,
            automatic: false,
        })
    })
}

pub fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let number = |name: &str, text: &str| {
        let parsed = quantity::Quantity::parse(text).ok()?;
        Some(if name == "cpu" { parsed.as_milli() } else { parsed.value() })
    };
    let all = list.into_iter().flatten();
    all.filter_map(|(name, quantity)| Some((name.clone(), number(name, &quantity.0)?))).collect()
}

/// What a pod needs at once: all containers together with the init containers that stay, or the most that any init
/// container needs beside those that stayed before it; or what the pod says for all of them; and its overhead.
fn requests(spec: &PodSpec) -> Amounts {
    let own = |container: &Container| amounts(container.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let (mut staying, mut most) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needed = own(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut staying, &needed);
            needed = staying.clone();
        } else {
            add(&mut needed, &staying);
        }
        raise(&mut most, &needed);
    }
    let mut running = staying;
    spec.containers.iter().for_each(|container| add(&mut running, &own(container)));
    raise(&mut running, &most);
    if let Some(whole) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
        running.extend(amounts(Some(whole)));
    }
    add(&mut running, &amounts(spec.overhead.as_ref()));
    running.insert("pods".to_owned(), 1);
    running
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *to.entry(name.clone()).or_default() += amount;
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}
