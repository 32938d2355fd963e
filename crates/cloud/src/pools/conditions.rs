//! The condition of a Kluster that says whether its pools can have their machines.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::problems::PoolProblem;
use crate::conditions::set_condition;

pub const POOLS_READY: &str = "PoolsReady";
const REASON: &str = "PoolsUsable";

/// Writes what is wrong into the conditions; says whether that is news.
pub fn set_pools_condition(conditions: &mut Vec<Condition>, problems: &[PoolProblem], now: Timestamp) -> bool {
    let reason = problems.first().map_or(REASON, |problem| problem.reason);
    let message = problems.iter().map(PoolProblem::text).collect::<Vec<_>>().join("; ");
    set_condition(conditions, POOLS_READY, problems.is_empty(), reason, &message, now)
}

/// Problems that the conditions do not tell of yet.
pub fn new_problems<'a>(conditions: &[Condition], problems: &'a [PoolProblem]) -> Vec<&'a PoolProblem> {
    let told = conditions.iter().find(|condition| condition.type_ == POOLS_READY);
    let is_told = |problem: &PoolProblem| told.is_some_and(|told| told.message.contains(&problem.text()));
    problems.iter().filter(|problem| !is_told(problem)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_once_and_its_end_as_well() {
        let now = Timestamp::UNIX_EPOCH;
        let problem = PoolProblem::new("small", "flavor", "FlavorNotFound", "the cloud has no flavor \"x\"");
        let mut conditions = Vec::new();
        assert!(set_pools_condition(&mut conditions, std::slice::from_ref(&problem), now));
        let other = PoolProblem::new("big", "image", "ImageNotFound", "none");
        assert_eq!(new_problems(&conditions, &[problem.clone(), other.clone()]), [&other]);
        assert!(!set_pools_condition(&mut conditions, &[problem], now));
        assert_eq!((conditions[0].status.as_str(), conditions[0].reason.as_str()), ("False", "FlavorNotFound"));
        assert_eq!(conditions[0].message, "nodePools[small].flavor: the cloud has no flavor \"x\"");
        assert!(set_pools_condition(&mut conditions, &[], now));
        assert_eq!((conditions[0].status.as_str(), conditions[0].message.as_str()), ("True", ""));
    }
}
