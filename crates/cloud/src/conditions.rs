//! Conditions in the statuses of Klusters: written only when they say something new.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Has a condition say this; says whether that is news. The time of its transition is that of its status.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let status = if is_true { "True" } else { "False" };
    match conditions.iter_mut().find(|condition| condition.type_ == kind) {
        Some(known) if known.status == status && known.reason == reason && known.message == message => false,
        Some(known) => {
            if known.status != status {
                known.last_transition_time = Time(now);
            }
            (known.status, known.reason, known.message) = (status.to_owned(), reason.to_owned(), message.to_owned());
            true
        }
        None => {
            conditions.push(Condition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message: message.to_owned(),
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
    fn a_transition_has_a_time_and_others_stay() {
        let time = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let mut all = Vec::new();
        assert!(set_condition(&mut all, "Ready", false, "Pending", "waits", time(1)));
        assert!(set_condition(&mut all, "PoolsReady", true, "PoolsUsable", "", time(2)));
        assert!(!set_condition(&mut all, "Ready", false, "Pending", "waits", time(3)));
        assert!(set_condition(&mut all, "Ready", false, "Pending", "waits longer", time(4)));
        assert_eq!(all[0].last_transition_time, Time(time(1)), "its status is the same");
        assert!(set_condition(&mut all, "Ready", true, "Running", "", time(5)));
        assert_eq!((all[0].last_transition_time.clone(), all.len()), (Time(time(5)), 2));
    }
}
