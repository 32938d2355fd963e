//! Decides which repairs a Kluster needs. Pure.
//!
//! Each step sees only what it needs, and `None` where that could not be read: a step without its facts does nothing. In particular a server
//! is never taken for one without a Node because the Nodes could not be listed.
//!
//! Servers that never joined are cured in steps: a soft reboot first, a replacement later. Each pool has a budget of such cures, and none happens
//! while most of a pool is sick at once: then the cause lies elsewhere, and replacing servers would only add to it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::pools::members::{MemberState, is_member};

/// Age at which a server without a Node is rebooted, and at which it is replaced.
pub const REBOOT_AFTER: SignedDuration = SignedDuration::from_mins(25);
pub const REPLACE_AFTER: SignedDuration = SignedDuration::from_mins(45);
/// A server that was rebooted counts against the budget for so long.
const REBOOT_TAKES: SignedDuration = SignedDuration::from_mins(10);
/// So many servers in error are deleted at once in one pool.
const ERRORED_AT_ONCE: usize = 5;
/// The security group is touched at most so often.
pub const TOUCH_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// The passing rule of a touch: an address of documentation (RFC 5737), and a description by which a left-over is found.
pub const TOUCH_PREFIX: &str = "192.0.2.253/32";
pub const TOUCH_DESCRIPTION: &str = "mainstay: passing rule, safe to delete";
/// Metadata of a server: when flight control rebooted it.
pub const REBOOTED_AT: &str = "mainstay:soft-reboot";
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "icmp"];

/// A Kluster and what could be read of its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightWorld {
    pub kluster: String,
    /// `spec.clusterCIDR`.
    pub cluster_range: String,
    /// `spec.openstack.securityGroupName`.
    pub security_group: String,
    pub pools: Vec<PoolView>,
    /// All groups of that name.
    pub groups: Option<Vec<GroupView>>,
    /// All servers of the project.
    pub servers: Option<Vec<FlightServer>>,
    /// Names of the Kluster's Nodes.
    pub nodes: Option<BTreeSet<String>>,
    /// Whether a Node says that pods of others cannot be reached.
    pub is_pod_network_troubled: bool,
    /// Names of the roles that the service user has to hold.
    pub wanted_roles: Vec<String>,
    /// Names of the roles that it holds; nothing also if there is no such user.
    pub roles: Option<BTreeSet<String>>,
    pub last_touch: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolView {
    pub name: String,
    pub size: usize,
    pub allow_reboot: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupView {
    pub id: String,
    pub rules: Vec<RuleView>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleView {
    pub id: String,
    pub is_ingress: bool,
    pub is_ipv4: bool,
    /// Nothing for all protocols.
    pub protocol: Option<String>,
    /// Whether it is for some ports alone.
    pub has_ports: bool,
    pub remote_prefix: Option<String>,
    pub description: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FlightServer {
    pub id: String,
    pub name: String,
    pub state: MemberState,
    pub vm_state: String,
    pub task_state: String,
    pub created: Option<Timestamp>,
    pub security_groups: BTreeSet<String>,
    pub tags: BTreeSet<String>,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    CreateRule { group: String, protocol: &'static str, prefix: String },
    RemoveTouchRule { rule: String },
    AssignGroup { server: ServerRef, group: String },
    SoftReboot { server: ServerRef, age: SignedDuration },
    Delete { server: ServerRef, why: DeleteReason },
    AssignRole { role: String },
    RestoreTags { server: ServerRef, tags: Vec<String> },
    RestoreMetadata { server: ServerRef, items: BTreeMap<String, String> },
    TouchGroup { group: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRef {
    pub id: String,
    pub name: String,
    pub pool: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// It never became a Node.
    NeverJoined { age: SignedDuration },
    /// Nova gave it up.
    Errored,
}

/// What keeps a step from its work, for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlightProblem {
    /// There is not exactly one group of the name.
    SecurityGroup { name: String, count: usize },
    /// Most of a pool is sick at once.
    MostOfPoolSick { pool: String, sick: usize, members: usize },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightPlan {
    pub repairs: Vec<Repair>,
    pub problems: Vec<FlightProblem>,
}

type Step = fn(&FlightWorld, Timestamp, &mut FlightPlan);

/// In the order in which they run.
const STEPS: [Step; 7] =
    [repair_rules, assign_group, cure_unjoined, delete_errored, restore_roles, restore_tags, touch_group];

pub fn plan(world: &FlightWorld, now: Timestamp) -> FlightPlan {
    let mut plan = FlightPlan::default();
    for step in STEPS {
        step(world, now, &mut plan);
    }
    plan
}

impl FlightWorld {
    /// The group, if there is exactly one of its name.
    fn group(&self) -> Option<&GroupView> {
        match self.groups.as_deref() {
            Some([group]) => Some(group),
            _ => None,
        }
    }

    fn members<'a>(&'a self, pool: &'a PoolView) -> impl Iterator<Item = (&'a FlightServer, ServerRef)> {
        let servers = self.servers.iter().flatten();
        servers.filter(|server| is_member(&server.name, &self.kluster, &pool.name)).map(|server| {
            let (id, name) = (server.id.clone(), server.name.clone());
            (server, ServerRef { id, name, pool: pool.name.clone() })
        })
    }

    fn all_members(&self) -> impl Iterator<Item = (&FlightServer, ServerRef)> {
        self.pools.iter().flat_map(|pool| self.members(pool))
    }
}

fn repair_rules(world: &FlightWorld, _: Timestamp, plan: &mut FlightPlan) {
    let Some(groups) = &world.groups else { return };
    let Some(group) = world.group() else {
        let (name, count) = (world.security_group.clone(), groups.len());
        plan.problems.push(FlightProblem::SecurityGroup { name, count });
        return;
    };
    let allows = |rule: &RuleView, protocol: &str| {
        let is_open = rule.is_ingress && rule.is_ipv4 && !rule.has_ports;
        is_open
            && rule.protocol.as_deref() == Some(protocol)
            && rule.remote_prefix.as_ref() == Some(&world.cluster_range)
    };
    for protocol in PROTOCOLS {
        if !group.rules.iter().any(|rule| allows(rule, protocol)) {
            let (group, prefix) = (group.id.clone(), world.cluster_range.clone());
            plan.repairs.push(Repair::CreateRule { group, protocol, prefix });
        }
    }
    let left_over = group.rules.iter().filter(|rule| rule.description == TOUCH_DESCRIPTION);
    plan.repairs.extend(left_over.map(|rule| Repair::RemoveTouchRule { rule: rule.id.clone() }));
}

fn assign_group(world: &FlightWorld, _: Timestamp, plan: &mut FlightPlan) {
    if world.security_group.is_empty() {
        return;
    }
    for (server, reference) in world.all_members() {
        if server.state == MemberState::Running && !server.security_groups.contains(&world.security_group) {
            plan.repairs.push(Repair::AssignGroup { server: reference, group: world.security_group.clone() });
        }
    }
}

/// The soft reboot and the replacement of servers that never became Nodes.
fn cure_unjoined(world: &FlightWorld, now: Timestamp, plan: &mut FlightPlan) {
    let Some(nodes) = &world.nodes else { return };
    let is_leaving = |server: &FlightServer| server.task_state == "deleting";
    for pool in &world.pools {
        let members: Vec<_> = world.members(pool).filter(|(server, _)| !is_leaving(server)).collect();
        let mut sick: Vec<_> = members
            .iter()
            .filter(|(server, _)| !nodes.contains(&server.name))
            .filter_map(|(server, reference)| Some((now.duration_since(server.created?), *server, reference)))
            .filter(|(age, ..)| *age > REBOOT_AFTER)
            .collect();
        if sick.len() > 1 && sick.len() * 2 > members.len() {
            let (pool, sick, members) = (pool.name.clone(), sick.len(), members.len());
            plan.problems.push(FlightProblem::MostOfPoolSick { pool, sick, members });
            continue;
        }
        let rebooted_at = |server: &FlightServer| server.metadata.get(REBOOTED_AT)?.parse::<Timestamp>().ok();
        let is_rebooting =
            |server: &FlightServer| rebooted_at(server).is_some_and(|at| now.duration_since(at).abs() < REBOOT_TAKES);
        let under_cure = sick.iter().filter(|(_, server, _)| is_rebooting(server)).count();
        let mut budget = cure_budget(pool.size.max(members.len())).saturating_sub(under_cure);
        // The oldest first; the id makes the order total.
        sick.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.id.cmp(&b.1.id)));
        for (age, server, reference) in sick {
            let repair = if age > REPLACE_AFTER {
                Some(Repair::Delete { server: reference.clone(), why: DeleteReason::NeverJoined { age } })
            } else if pool.allow_reboot && server.state == MemberState::Running && rebooted_at(server).is_none() {
                Some(Repair::SoftReboot { server: reference.clone(), age })
            } else {
                None
            };
            let Some(repair) = repair.filter(|_| budget > 0) else { continue };
            budget -= 1;
            plan.repairs.push(repair);
        }
    }
}

/// How many servers of a pool of this size are rebooted or replaced at once.
fn cure_budget(size: usize) -> usize {
    (size / 10).max(1)
}

fn delete_errored(world: &FlightWorld, _: Timestamp, plan: &mut FlightPlan) {
    for pool in &world.pools {
        let is_errored = |server: &FlightServer| server.vm_state == "error" && server.task_state != "deleting";
        let planned: BTreeSet<String> = plan.repairs.iter().filter_map(Repair::deleted_server).collect();
        let errored = world.members(pool).filter(|(server, _)| is_errored(server) && !planned.contains(&server.id));
        let delete = |(_, server): (_, ServerRef)| Repair::Delete { server, why: DeleteReason::Errored };
        let deletes: Vec<Repair> = errored.map(delete).take(ERRORED_AT_ONCE).collect();
        plan.repairs.extend(deletes);
    }
}

fn restore_roles(world: &FlightWorld, _: Timestamp, plan: &mut FlightPlan) {
    let Some(roles) = &world.roles else { return };
    let is_held = |wanted: &&String| roles.iter().any(|held| held.eq_ignore_ascii_case(wanted));
    let missing = world.wanted_roles.iter().filter(|role| !is_held(role));
    plan.repairs.extend(missing.map(|role| Repair::AssignRole { role: role.clone() }));
}

fn restore_tags(world: &FlightWorld, _: Timestamp, plan: &mut FlightPlan) {
    for (server, reference) in world.all_members().filter(|(server, _)| server.state == MemberState::Running) {
        let tags = member_tags(&world.kluster, &reference.pool);
        let tags: Vec<String> = tags.into_iter().filter(|tag| !server.tags.contains(tag)).collect();
        if !tags.is_empty() {
            plan.repairs.push(Repair::RestoreTags { server: reference.clone(), tags });
        }
        let items = member_metadata(&world.kluster, &reference.pool).into_iter();
        let items: BTreeMap<_, _> = items.filter(|(key, value)| server.metadata.get(key) != Some(value)).collect();
        if !items.is_empty() {
            plan.repairs.push(Repair::RestoreMetadata { server: reference, items });
        }
    }
}

fn touch_group(world: &FlightWorld, now: Timestamp, plan: &mut FlightPlan) {
    let Some(group) = world.group() else { return };
    let is_due = world.last_touch.is_none_or(|last| now.duration_since(last).abs() >= TOUCH_PAUSE);
    let is_complete = !plan.repairs.iter().any(|repair| matches!(repair, Repair::CreateRule { .. }));
    if world.is_pod_network_troubled && is_due && is_complete {
        plan.repairs.push(Repair::TouchGroup { group: group.id.clone() });
    }
}

/// Tags that every server of a pool has.
pub fn member_tags(kluster: &str, pool: &str) -> [String; 3] {
    ["kubernikus".to_owned(), format!("kubernikus:kluster={kluster}"), format!("kubernikus:nodepool={pool}")]
}

/// Metadata that every server of a pool has.
pub fn member_metadata(kluster: &str, pool: &str) -> BTreeMap<String, String> {
    let items = [("provisioner", "kubernikus"), ("kubernikus:kluster", kluster), ("kubernikus:nodepool", pool)];
    items.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

impl Repair {
    fn deleted_server(&self) -> Option<String> {
        match self {
            Self::Delete { server, .. } => Some(server.id.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
