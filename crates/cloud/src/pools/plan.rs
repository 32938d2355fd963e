//! Decides which machines of a Kluster's pools are created, deleted and forgotten.
//!
//! A pool needs as many servers as its size says, less those that run or start. Servers that were meant to be created (entries of the ledger without an
//! id) come first: a server of that name is adopted if the cloud has it, and created under the same name if not, so that a crash between the two steps makes no
//! second one. Every pool is decided for itself, and one that changes makes the whole Kluster be looked at again soon.
//!
//! When a pool shrinks, servers without a Node go first, then those that nobody may schedule to, then the others. A server in error is no part of the size
//! and goes along. The Node of a server that the cloud does not have any more is removed once it is not ready.

use jiff::{SignedDuration, Timestamp};
use mainstay_api::cloud::node_pool::{PoolSpec, PoolStatus};

use super::members::{MemberState, NodeView, ServerView, is_member};

/// When a Kluster is looked at again after a change, or while a server starts or stops.
pub const SOON: SignedDuration = SignedDuration::from_secs(5);
/// And otherwise.
pub const RESYNC: SignedDuration = SignedDuration::from_mins(5);

/// A pool, and everything in the cloud and in the kluster that may belong to it.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolWorld {
    pub kluster: String,
    pub pool: PoolSpec,
    /// All servers of the project.
    pub servers: Vec<ServerView>,
    /// Nodes of the kluster; nothing if they are not known.
    pub nodes: Option<Vec<NodeView>>,
    /// Names of servers that were to be created, and whose id is not known.
    pub intended: Vec<String>,
    /// Names of servers of the pool in the ledger with an id.
    pub recorded: Vec<(String, String)>,
    /// The ledger has a server of the pool whose removal has begun. Until it is struck from there it is looked for, in whatever state the cloud shows it.
    pub is_removing: bool,
    /// Why no server can be created now.
    pub is_blocked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolAction {
    /// The cloud has a server whose id was never written down.
    Adopt {
        name: String,
        id: String,
    },
    /// Under a name that is in the ledger already, or under a new one.
    Create {
        name: Option<String>,
    },
    Delete {
        id: String,
        name: String,
        why: DeleteReason,
    },
    /// It was to be created, and is not wanted any more.
    Withdraw {
        name: String,
    },
    /// The cloud was seen without it.
    RecordGone {
        name: String,
    },
    RemoveNode {
        name: String,
        uid: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    Surplus,
    Errored,
    /// The pool or the Kluster goes.
    PoolRemoved,
}

#[derive(Debug, PartialEq)]
pub struct PoolPlan {
    pub actions: Vec<PoolAction>,
    pub status: PoolStatus,
    /// Whether something changes, and is looked at again soon.
    pub is_changing: bool,
}

pub fn plan(world: &PoolWorld) -> PoolPlan {
    let pool = &world.pool;
    let belongs = |name: &str| is_member(name, &world.kluster, &pool.name);
    let members: Vec<&ServerView> = world.servers.iter().filter(|server| belongs(&server.name)).collect();
    let counted = members.iter().filter(|server| server.state.counts()).count();
    let size = usize::try_from(pool.size).unwrap_or(0);
    let mut actions = Vec::new();
    let has_server = |name: &str| members.iter().find(|server| server.name == name);
    let (found, missing): (Vec<&String>, Vec<&String>) =
        world.intended.iter().partition(|name| has_server(name).is_some());
    for name in found {
        let Some(server) = has_server(name) else { continue };
        actions.push(PoolAction::Adopt { name: name.clone(), id: server.id.clone() });
    }
    let needed = size.saturating_sub(counted);
    let mut missing = missing.into_iter();
    if !world.is_blocked {
        let reused: Vec<PoolAction> =
            missing.by_ref().take(needed).map(|name| PoolAction::Create { name: Some(name.clone()) }).collect();
        let fresh = needed - reused.len();
        actions.extend(reused);
        actions.extend((0..fresh).map(|_| PoolAction::Create { name: None }));
    }
    actions.extend(missing.map(|name| PoolAction::Withdraw { name: name.clone() }));
    actions.extend(choose_surplus(&members, world.nodes.as_deref(), counted.saturating_sub(size)));
    let gone = world.recorded.iter().filter(|(_, id)| !world.servers.iter().any(|server| server.id == *id));
    actions.extend(gone.map(|(name, _)| PoolAction::RecordGone { name: name.clone() }));
    let pool_nodes = || world.nodes.iter().flatten().filter(|node| belongs(&node.name));
    let stale = pool_nodes().filter(|node| !node.ready && has_server(&node.name).is_none());
    actions.extend(stale.map(|node| PoolAction::RemoveNode { name: node.name.clone(), uid: node.uid.clone() }));
    let is_moving = members.iter().any(|server| matches!(server.state, MemberState::Starting | MemberState::Stopping));
    let count = |nodes: usize| i32::try_from(nodes).unwrap_or(i32::MAX);
    let status = PoolStatus {
        name: pool.name.clone(),
        size: pool.size,
        running: count(counted),
        healthy: count(pool_nodes().filter(|node| node.ready).count()),
        schedulable: count(pool_nodes().filter(|node| !node.unschedulable).count()),
    };
    let is_changing = is_moving || world.is_removing || !actions.is_empty();
    PoolPlan { actions, status, is_changing }
}

/// As many servers as are too many, and those in error that come before them in order.
fn choose_surplus(members: &[&ServerView], nodes: Option<&[NodeView]>, surplus: usize) -> Vec<PoolAction> {
    if surplus == 0 {
        return Vec::new();
    }
    let rank = |server: &&&ServerView| match nodes {
        None => 2, // nobody knows: in the order of the list
        Some(nodes) => match nodes.iter().find(|node| node.name == server.name) {
            None => 0,
            Some(node) if node.unschedulable => 1,
            Some(_) => 2,
        },
    };
    let mut ordered: Vec<&&ServerView> =
        members.iter().filter(|server| server.state.counts() || server.state == MemberState::Errored).collect();
    ordered.sort_by_key(rank);
    let (mut actions, mut left) = (Vec::new(), surplus);
    for server in ordered {
        let why = if server.state == MemberState::Errored { DeleteReason::Errored } else { DeleteReason::Surplus };
        if left == 0 {
            break;
        }
        left -= usize::from(why == DeleteReason::Surplus);
        actions.push(PoolAction::Delete { id: server.id.clone(), name: server.name.clone(), why });
    }
    actions
}

/// When a Kluster is looked at again: soon if any of its pools changes, not only the last.
pub fn next_look(pools: &[PoolPlan], now: Timestamp) -> Timestamp {
    now + if pools.iter().any(|pool| pool.is_changing) { SOON } else { RESYNC }
}

#[cfg(test)]
mod tests;
