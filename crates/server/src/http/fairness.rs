//! Fair shares of what the server can do at once, in the spirit of API Priority and Fairness.
//!
//! A [`FairLimit`] bounds one thing that requests use up: requests at work, watches, connections, bytes of request
//! bodies. Who uses it belongs to a [`PriorityLevel`] and, within that, to a [`Flow`]: one user, or one source
//! address where nobody has logged in. Each level has a part that nobody else can take, so that nodes and
//! administrators get through whatever workloads do; what is guaranteed to nobody goes to whoever comes first; and one
//! flow has at most a part of the whole, so that no single token, however busy, can use up its level.
//!
//! Whoever exceeds a bound is refused at once with 429 and comes back later. Upstream puts such requests in
//! queues; we answer requests in microseconds, so a queue would only hide the overload from the client and cost
//! memory.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

use mainstay_api::wellknown::namespace::NODE_LEASES;
pub use mainstay_tls::source_network;

use crate::{
    auth::{NODES, SERVICE_ACCOUNTS, User},
    http::route::{ResourceRoute, Route},
};

/// Who goes before whom. The names are those of upstream's default configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PriorityLevel {
    /// Administrators: `system:masters`.
    Exempt,
    /// Heartbeats of nodes: their Leases and statuses. What else nodes ask for never keeps them waiting.
    NodeHigh,
    /// Nodes: `system:nodes`.
    System,
    /// Service accounts.
    WorkloadLow,
    /// Everybody else who logged in.
    GlobalDefault,
    /// Whoever has not logged in, or not yet.
    CatchAll,
}

impl PriorityLevel {
    pub const ALL: [Self; 6] =
        [Self::Exempt, Self::NodeHigh, Self::System, Self::WorkloadLow, Self::GlobalDefault, Self::CatchAll];

    pub fn for_user(user: &User) -> Self {
        if user.is_master() {
            Self::Exempt
        } else if user.is_in(NODES) {
            Self::System
        } else if user.is_in(SERVICE_ACCOUNTS) {
            Self::WorkloadLow
        } else {
            Self::GlobalDefault
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::NodeHigh => "node-high",
            Self::System => "system",
            Self::WorkloadLow => "workload-low",
            Self::GlobalDefault => "global-default",
            Self::CatchAll => "catch-all",
        }
    }

    /// The percentage of every limit that only this level can use.
    fn guaranteed_percent(self) -> usize {
        match self {
            Self::Exempt | Self::System => 15,
            Self::NodeHigh | Self::WorkloadLow | Self::GlobalDefault => 10,
            Self::CatchAll => 5,
        }
    }

    /// Whether one flow of this level is held to a part of the whole. Administrators are not: they are held back
    /// only by what is guaranteed to others.
    pub fn bounds_flows(self) -> bool {
        self != Self::Exempt
    }
}

/// One user or one source address, within its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    level: PriorityLevel,
    /// A hash with a random key: cheaper than the name, and nobody can make two names collide on purpose.
    distinguisher: u64,
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Flow {
    pub fn of_user(user: &User) -> Self {
        Self { level: PriorityLevel::for_user(user), distinguisher: HASHER.hash_one(&user.name) }
    }

    /// Of a user's request: heartbeats of nodes are apart from all else that nodes ask for.
    pub fn of_request(user: &User, route: &Route<'_>) -> Self {
        let flow = Self::of_user(user);
        match route {
            Route::Resource(resource) if flow.level == PriorityLevel::System && is_heartbeat(resource) => {
                Self { level: PriorityLevel::NodeHigh, ..flow }
            }
            _ => flow,
        }
    }

    /// Whoever has not logged in.
    pub fn of_source(source: IpAddr) -> Self {
        Self { level: PriorityLevel::CatchAll, distinguisher: HASHER.hash_one(source_network(source)) }
    }

    pub fn level(&self) -> PriorityLevel {
        self.level
    }
}

/// What upstream's flow schema `system-node-high` is about: a node's Lease and the status of its Node.
fn is_heartbeat(route: &ResourceRoute<'_>) -> bool {
    match (&*route.group, &*route.plural, route.subresource.as_deref()) {
        ("coordination.k8s.io", "leases", None) => route.namespace.as_deref() == Some(NODE_LEASES) && !route.watch,
        ("", "nodes", Some("status")) => true,
        _ => false,
    }
}

/// Which bound a refused request ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The flow has its share of the whole already.
    FlowLimit,
    /// What is left belongs to other levels.
    ConcurrencyLimit,
}

impl Rejection {
    pub fn name(self) -> &'static str {
        match self {
            Self::FlowLimit => "flow-limit",
            Self::ConcurrencyLimit => "concurrency-limit",
        }
    }
}

const LEVELS: usize = PriorityLevel::ALL.len();

/// How much there is, and for whom.
#[derive(Clone, Debug)]
struct Shares {
    total: usize,
    guaranteed: [usize; LEVELS],
    per_flow: usize,
}

impl Shares {
    fn new(total: usize, flow_percent: usize) -> Self {
        let part = |percent: usize| (total as u128 * percent as u128 / 100) as usize;
        let guaranteed = PriorityLevel::ALL.map(|level| part(level.guaranteed_percent()));
        Self { total, guaranteed, per_flow: part(flow_percent).max(1) }
    }
}

/// Who uses how much at the moment.
#[derive(Clone, Debug, Default)]
struct Usage {
    levels: [usize; LEVELS],
    /// Only flows that use something.
    flows: HashMap<Flow, usize>,
}

impl Usage {
    /// Whether `flow` may use `amount` more: out of what its level is guaranteed, then out of what nobody is.
    fn admit(&self, shares: &Shares, flow: Flow, amount: usize) -> Result<(), Rejection> {
        if flow.level.bounds_flows() && self.flows.get(&flow).unwrap_or(&0) + amount > shares.per_flow {
            return Err(Rejection::FlowLimit);
        }
        let level = flow.level as usize;
        let own = shares.guaranteed[level].saturating_sub(self.levels[level]);
        let spoken_for: usize = self.levels.iter().zip(&shares.guaranteed).map(|(used, kept)| used.max(kept)).sum();
        if amount > own + shares.total.saturating_sub(spoken_for) {
            return Err(Rejection::ConcurrencyLimit);
        }
        Ok(())
    }

    fn add(&mut self, flow: Flow, amount: usize) {
        self.levels[flow.level as usize] += amount;
        *self.flows.entry(flow).or_default() += amount;
    }

    fn subtract(&mut self, flow: Flow, amount: usize) {
        self.levels[flow.level as usize] -= amount;
        if let Some(used) = self.flows.get_mut(&flow) {
            *used -= amount;
            if *used == 0 {
                self.flows.remove(&flow);
            }
        }
    }
}

/// A limit that all share, each within bounds.
#[derive(Debug)]
pub struct FairLimit {
    shares: Shares,
    usage: Mutex<Usage>,
}

impl FairLimit {
    /// `total` for all together, of which one flow has at most `flow_percent`.
    pub fn new(total: usize, flow_percent: usize) -> Arc<Self> {
        Arc::new(Self { shares: Shares::new(total, flow_percent), usage: Mutex::default() })
    }

    /// Of what no heartbeat uses, such as connections and watches: nodes have all that is guaranteed to them.
    pub fn without_heartbeats(total: usize, flow_percent: usize) -> Arc<Self> {
        let mut shares = Shares::new(total, flow_percent);
        let heartbeats = std::mem::take(&mut shares.guaranteed[PriorityLevel::NodeHigh as usize]);
        shares.guaranteed[PriorityLevel::System as usize] += heartbeats;
        Arc::new(Self { shares, usage: Mutex::default() })
    }

    /// Takes `amount` for as long as the permit lives.
    pub fn acquire(self: &Arc<Self>, flow: Flow, amount: usize) -> Result<Permit, Rejection> {
        let mut permit = Permit { limit: self.clone(), flow, amount: 0 };
        permit.grow(amount)?;
        Ok(permit)
    }
}

/// A part of a [`FairLimit`] in use; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    limit: Arc<FairLimit>,
    flow: Flow,
    amount: usize,
}

impl Permit {
    /// Takes more. If there is no more, the permit stays as it is.
    pub fn grow(&mut self, amount: usize) -> Result<(), Rejection> {
        let mut usage = self.limit.usage.lock();
        usage.admit(&self.limit.shares, self.flow, amount)?;
        usage.add(self.flow, amount);
        self.amount += amount;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.usage.lock().subtract(self.flow, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(name: &str, group: &str) -> Flow {
        Flow::of_user(&User::authenticated(name.into(), vec![group.into()]))
    }

    fn pod(name: &str) -> Flow {
        user(name, SERVICE_ACCOUNTS)
    }

    /// As many single permits as a flow gets.
    fn fill(limit: &Arc<FairLimit>, flow: Flow) -> (Vec<Permit>, Rejection) {
        let mut held = Vec::new();
        loop {
            match limit.acquire(flow, 1) {
                Ok(permit) => held.push(permit),
                Err(rejection) => return (held, rejection),
            }
        }
    }

    #[test]
    fn users_have_the_level_of_their_most_important_group() {
        let level = |groups: &[&str]| {
            let groups = groups.iter().map(|group| group.to_string()).collect();
            PriorityLevel::for_user(&User::authenticated("u".into(), groups)).name()
        };
        assert_eq!(level(&["system:masters", "system:serviceaccounts"]), "exempt");
        assert_eq!(level(&["system:nodes"]), "system");
        assert_eq!(level(&["system:serviceaccounts", "system:serviceaccounts:default"]), "workload-low");
        assert_eq!(level(&["system:bootstrappers"]), "global-default");
        assert_eq!(Flow::of_source([10, 0, 0, 1].into()).level().name(), "catch-all");
    }

    #[test]
    fn heartbeats_of_nodes_are_a_level_of_their_own() {
        let level = |user: &User, path: &str| Flow::of_request(user, &Route::parse(path).unwrap()).level().name();
        let node = User::node("n");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        assert_eq!(level(&node, lease), "node-high");
        assert_eq!(level(&node, "/api/v1/nodes/n/status"), "node-high");
        assert_eq!(level(&node, "/api/v1/nodes/n"), "system");
        assert_eq!(level(&node, "/apis/coordination.k8s.io/v1/namespaces/default/leases/n"), "system");
        assert_eq!(level(&node, "/api/v1/namespaces/default/pods/p/status"), "system");
        let pod = User::authenticated("p".into(), vec![SERVICE_ACCOUNTS.into()]);
        assert_eq!(level(&pod, lease), "workload-low");
    }

    #[test]
    fn one_token_gets_its_share_and_leaves_the_rest() {
        let limit = FairLimit::new(200, 25);
        let (held, rejection) = fill(&limit, pod("a"));
        assert_eq!((held.len(), rejection), (50, Rejection::FlowLimit));
        assert_eq!(fill(&limit, pod("b")).0.len(), 40); // 10 % guaranteed and 35 % common, less what `a` has
    }

    #[test]
    fn many_tokens_together_leave_nodes_and_administrators_what_is_guaranteed() {
        let limit = FairLimit::new(200, 25);
        let held: Vec<_> = (0..20).map(|n| fill(&limit, pod(&n.to_string())).0).collect();
        assert_eq!(held.iter().map(Vec::len).sum::<usize>(), 90);
        assert_eq!(limit.acquire(pod("late"), 1).unwrap_err(), Rejection::ConcurrencyLimit);
        let nodes: Vec<_> = (0..20).map(|n| fill(&limit, user(&n.to_string(), NODES)).0).collect();
        assert_eq!(nodes.iter().map(Vec::len).sum::<usize>(), 30);
        let route = Route::parse("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/0").unwrap();
        let node = User::authenticated("0".into(), vec![NODES.into()]);
        assert_eq!(fill(&limit, Flow::of_request(&node, &route)).0.len(), 20, "heartbeats have room of their own");
        assert_eq!(fill(&limit, user("admin", "system:masters")).0.len(), 30);
        assert_eq!(fill(&limit, user("ann", "developers")).0.len(), 20);
        assert_eq!(fill(&limit, Flow::of_source([10, 0, 0, 1].into())).0.len(), 10);
    }

    #[test]
    fn an_administrator_may_have_all_that_is_guaranteed_to_nobody_else() {
        let limit = FairLimit::new(200, 25);
        let (held, rejection) = fill(&limit, user("admin", "system:masters"));
        assert_eq!((held.len(), rejection), (100, Rejection::ConcurrencyLimit));
        assert!(limit.acquire(user("n", NODES), 1).is_ok());
    }

    #[test]
    fn a_limit_of_one_serves_one_after_the_other() {
        let limit = FairLimit::new(1, 25);
        for flow in [pod("a"), user("n", NODES), user("admin", "system:masters")] {
            let (held, _) = fill(&limit, flow);
            assert_eq!(held.len(), 1);
        }
    }

    #[test]
    fn a_permit_that_cannot_grow_keeps_what_it_has() {
        let limit = FairLimit::new(1000, 10);
        let mut permit = limit.acquire(pod("a"), 60).unwrap();
        assert_eq!(permit.grow(50), Err(Rejection::FlowLimit));
        assert_eq!(permit.grow(40), Ok(()));
        drop(permit);
        assert!(limit.usage.lock().flows.is_empty());
        assert!(limit.acquire(pod("a"), 100).is_ok());
    }

    #[test]
    fn a_host_cannot_pose_as_many_by_its_ipv6_addresses() {
        let flow = |text: &str| Flow::of_source(text.parse().unwrap());
        assert_eq!(flow("2001:db8::1"), flow("2001:db8::ffff:2"));
        assert_ne!(flow("2001:db8::1"), flow("2001:db8:0:1::1"));
        assert_eq!(flow("::ffff:10.0.0.1"), flow("10.0.0.1"));
        assert_ne!(flow("10.0.0.2"), flow("10.0.0.1"));
    }

    proptest! {
        #[test]
        fn never_more_than_the_whole_and_never_less_than_the_guaranteed(
            total in 0..500usize,
            asked in proptest::collection::vec((0..LEVELS, 0..8u64, 1..40usize), 0..200),
        ) {
            let shares = Shares::new(total, 25);
            let mut usage = Usage::default();
            for (level, distinguisher, amount) in asked {
                let flow = Flow { level: PriorityLevel::ALL[level], distinguisher };
                if usage.admit(&shares, flow, amount).is_ok() {
                    usage.add(flow, amount);
                }
                prop_assert!(usage.levels.iter().sum::<usize>() <= total);
                for level in PriorityLevel::ALL {
                    let left = shares.guaranteed[level as usize].saturating_sub(usage.levels[level as usize]);
                    let newcomer = Flow { level, distinguisher: 99 };
                    if left > 0 {
                        prop_assert!(usage.admit(&shares, newcomer, left.min(shares.per_flow)).is_ok());
                    }
                }
            }
        }
    }
}
