//! One machine: what it is, what it offers, what was put on it.

use std::sync::Arc;

use super::PodId;
use crate::core::{
    ports::{GivenPort, HostPort, PortWish},
    view::{NodeView, OfferView, PodKey, PodView, Rules},
};

#[derive(Debug)]
pub struct Machine {
    pub name: Arc<str>,
    /// `None` while only pods or an offer speak of it.
    pub node: Option<NodeView>,
    pub offer: Option<OfferView>,
    /// By resource: what the offer says less what was put here since.
    pub free: Vec<i64>,
    /// By resource: what there is when it is empty.
    pub whole: Vec<i64>,
    pub pods: Vec<PodId>,
    pub nominees: Vec<Nominee>,
    /// Ports asked for by number, and who has them.
    pub ports: Vec<(HostPort, PodId)>,
    /// Numbers that are no longer to be given, sorted.
    pub spent: Vec<u16>,
}

/// A pod that others are making room for.
#[derive(Clone, Debug)]
pub struct Nominee {
    pub pod: Arc<PodView>,
    pub requests: Vec<(usize, i64)>,
}

impl Nominee {
    fn goes_before(&self, priority: i32) -> bool {
        self.pod.shape.priority >= priority
    }
}

impl Machine {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            node: None,
            offer: None,
            free: vec![],
            whole: vec![],
            pods: vec![],
            nominees: vec![],
            ports: vec![],
            spent: vec![],
        }
    }

    /// Nothing speaks of it any more.
    pub fn is_forgotten(&self) -> bool {
        self.node.is_none() && self.offer.is_none() && self.pods.is_empty() && self.nominees.is_empty()
    }

    pub fn free(&self, resource: usize) -> i64 {
        self.free.get(resource).copied().unwrap_or(0)
    }

    pub fn whole(&self, resource: usize) -> i64 {
        self.whole.get(resource).copied().unwrap_or(0)
    }

    /// Kept for nominees that go before a pod of this priority.
    pub fn reserved(&self, resource: usize, priority: i32) -> i64 {
        if self.nominees.is_empty() {
            return 0;
        }
        let first = self.nominees.iter().filter(|nominee| nominee.goes_before(priority));
        let amounts = first.flat_map(|nominee| &nominee.requests).filter(|(wanted, _)| *wanted == resource);
        amounts.map(|(_, amount)| amount).sum()
    }

    pub fn take(&mut self, requests: &[(usize, i64)]) {
        for (resource, amount) in requests {
            if *resource >= self.free.len() {
                self.free.resize(resource + 1, 0);
            }
            self.free[*resource] = self.free[*resource].saturating_sub(*amount);
        }
    }

    pub fn give_back(&mut self, requests: &[(usize, i64)]) {
        for (resource, amount) in requests {
            if let Some(free) = self.free.get_mut(*resource) {
                *free = free.saturating_add(*amount);
            }
        }
    }

    pub fn holder(&self, port: &HostPort, gone: &[PodId]) -> Option<PodId> {
        let mut clashing = self.ports.iter().filter(|(held, by)| held.clashes(port) && !gone.contains(by));
        clashing.next().map(|(_, by)| *by)
    }

    /// The nominee that goes before a pod of this priority and wants the port.
    pub fn kept_by(&self, port: &HostPort, priority: i32) -> Option<&PodKey> {
        let mut first = self.nominees.iter().filter(|nominee| nominee.goes_before(priority));
        first
            .find(|nominee| nominee.pod.shape.ports.iter().any(|kept| kept.clashes(port)))
            .map(|nominee| &nominee.pod.key)
    }

    /// The ports without a number that get one here.
    pub fn wishes<'a>(&self, rules: &'a Rules) -> &'a [PortWish] {
        let by_host_port = self.node.as_ref().is_some_and(|node| node.by_host_port);
        if rules.mapping.applies(by_host_port) { &rules.wishes } else { &[] }
    }

    /// The first free automatic port for each wish, or how many there are. The pod's own explicit ones are spent.
    pub fn automatic(&self, rules: &Rules) -> Result<Vec<GivenPort>, usize> {
        let (explicit, wishes) = (&rules.ports, self.wishes(rules));
        if wishes.is_empty() {
            return Ok(vec![]);
        }
        let offered = self.offer.as_ref().map(|offer| &offer.automatic);
        let free = offered.into_iter().flat_map(|ranges| ranges.iter());
        let own = |number: u16| explicit.iter().any(|port| port.port == number);
        let free = free.filter(|number| self.spent.binary_search(number).is_err() && !own(*number));
        let given = wishes.iter().zip(free).map(|(wish, host_port)| GivenPort { wish: wish.clone(), host_port });
        let given: Vec<GivenPort> = given.collect();
        if given.len() == wishes.len() { Ok(given) } else { Err(given.len()) }
    }

    pub fn hold_ports(&mut self, pod: PodId, explicit: &[HostPort], given: &[GivenPort]) {
        self.ports.extend(explicit.iter().map(|port| (port.clone(), pod)));
        let numbers = explicit.iter().map(|port| port.port).chain(given.iter().map(|given| given.host_port));
        for number in numbers {
            let at = self.spent.partition_point(|spent| *spent < number);
            self.spent.insert(at, number);
        }
    }

    pub fn release_ports(&mut self, pod: PodId, explicit: &[HostPort], given: &[GivenPort]) {
        if !explicit.is_empty() {
            self.ports.retain(|(_, by)| *by != pod);
        }
        let numbers = explicit.iter().map(|port| port.port).chain(given.iter().map(|given| given.host_port));
        for number in numbers {
            if let Ok(at) = self.spent.binary_search(&number) {
                self.spent.remove(at);
            }
        }
    }
}
