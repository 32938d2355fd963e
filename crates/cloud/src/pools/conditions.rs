//! The condition of a Kluster that says whether its pools can have their machines.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::problems::PoolProblem;

pub const POOLS_READY: &str = "PoolsReady";
const REASON: &str = "PoolsUsable";

/// Writes what is wrong into the conditions; says whether that is news.
pub fn set_pools_condition(conditions: &mut Vec<Condition>, problems: &[PoolProblem], now: Timestamp) -> bool {
    let (status, reason) = problems.first().map_or(("True", REASON), |problem| ("False", problem.reason));
    let message = problems.iter().map(PoolProblem::text).collect::<Vec<_>>().join("; ");
    let known = conditions.iter_mut().find(|condition| condition.type_ == POOLS_READY);
    match known {
        Some(known) if known.status == status && known.reason == reason && known.message == message => false,
        Some(known) => {
            if known.status != status {
                known.last_transition_time = Time(now);
            }
            (known.status, known.reason, known.message) = (status.to_owned(), reason.to_owned(), message);
            true
        }
        None => {
            conditions.push(Condition {
                type_: POOLS_READY.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message,
                last_transition_time: Time(now),
                observed_generation: None,
            });
            true
        }
    }
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
        assert!(!set_pools_condition(&mut conditions, &[problem], now));
        assert_eq!((conditions[0].status.as_str(), conditions[0].reason.as_str()), ("False", "FlavorNotFound"));
        assert_eq!(conditions[0].message, "nodePools[small].flavor: the cloud has no flavor \"x\"");
        assert!(set_pools_condition(&mut conditions, &[], now));
        assert_eq!((conditions[0].status.as_str(), conditions[0].message.as_str()), ("True", ""));
    }
}
