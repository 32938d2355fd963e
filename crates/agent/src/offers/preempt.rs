//! Preemption on the node: which pods end so that a critical pod fits, as upstream's kubelet does it. Pure.

use mainstay_runtime::PodUid;

use super::{NodeCapacity, PodDemand, check_resources};

/// From here on pods belong to the cluster itself.
pub const CRITICAL: i32 = 2_000_000_000;

/// A pod that may have to go.
#[derive(Clone, Debug)]
pub struct RunningPod {
    pub uid: PodUid,
    pub priority: i32,
    /// Static, or itself critical: stays.
    pub stays: bool,
    pub demand: PodDemand,
}

/// The pods to end so that `demand` fits, the least important first and no more than needed. `None` if all of them
/// would not do.
pub fn make_room(demand: &PodDemand, capacity: &NodeCapacity, held: &[RunningPod]) -> Option<Vec<PodUid>> {
    let mut left: Vec<&RunningPod> = held.iter().collect();
    let mut victims: Vec<&RunningPod> = Vec::new();
    while !fits(demand, capacity, &left) {
        let next = left.iter().enumerate().filter(|(_, pod)| !pod.stays).min_by_key(|(_, p)| (p.priority, &p.uid))?.0;
        victims.push(left.remove(next));
    }
    // Whoever went early may turn out not to have been needed.
    for at in (0..victims.len()).rev() {
        left.push(victims[at]);
        if fits(demand, capacity, &left) {
            victims.remove(at);
        } else {
            left.pop();
        }
    }
    Some(victims.into_iter().map(|victim| victim.uid.clone()).collect())
}

fn fits(demand: &PodDemand, capacity: &NodeCapacity, held: &[&RunningPod]) -> bool {
    let held: Vec<PodDemand> = held.iter().map(|pod| pod.demand.clone()).collect();
    check_resources(demand, capacity, &held).is_ok()
}
