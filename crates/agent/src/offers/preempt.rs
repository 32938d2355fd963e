//! Who makes room for a pod that the cluster itself needs. Pure.

use mainstay_runtime::PodUid;

use super::{Claim, Room};

/// From here on pods belong to the cluster itself.
pub const CRITICAL: i32 = 2_000_000_000;

/// A pod that may have to go.
#[derive(Clone, Debug)]
pub struct Held {
    pub uid: PodUid,
    pub priority: i32,
    /// Static, or itself critical: stays.
    pub stays: bool,
    pub claim: Claim,
}

/// The pods to end so that `claim` fits, the least important first and no more than needed. `None` if all of them
/// would not do.
pub fn make_room(claim: &Claim, room: &Room, held: &[Held]) -> Option<Vec<PodUid>> {
    let mut left: Vec<&Held> = held.iter().collect();
    let mut victims: Vec<&Held> = Vec::new();
    while !fits(claim, room, &left) {
        let next = left.iter().enumerate().filter(|(_, pod)| !pod.stays).min_by_key(|(_, p)| (p.priority, &p.uid))?.0;
        victims.push(left.remove(next));
    }
    // Whoever went early may turn out not to have been needed.
    for at in (0..victims.len()).rev() {
        left.push(victims[at]);
        if fits(claim, room, &left) {
            victims.remove(at);
        } else {
            left.pop();
        }
    }
    Some(victims.into_iter().map(|victim| victim.uid.clone()).collect())
}

fn fits(claim: &Claim, room: &Room, held: &[&Held]) -> bool {
    let used = Claim::sum(held.iter().map(|pod| &pod.claim));
    claim.amounts.iter().all(|(name, wanted)| {
        let Some(all) = room.allocatable.get(name) else { return true };
        *wanted == 0 || *wanted <= all - used.get(name).copied().unwrap_or(0)
    })
}
