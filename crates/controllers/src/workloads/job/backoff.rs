//! How long a Job waits before it replaces pods that failed: ten seconds, doubled with every further failure, six
//! minutes at most.
//!
//! What counts is read off the pods that are there, so that a restart of the controllers forgets nothing: failures
//! since the last success, from the last of them on. A success begins anew, and so does deleting the failed pods.

use jiff::{SignedDuration, Timestamp};

use super::view::{Desired, Life, View};

const FIRST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(360);

/// The pause after so many failures in a row.
fn pause(failures: usize) -> SignedDuration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(6);
    FIRST.saturating_mul(1 << doublings).min(LONGEST)
}

/// Until when no pod may be made, if anything failed since the last success.
pub fn of_job(want: &Desired, pods: &[View]) -> Option<Timestamp> {
    let last_success = pods.iter().filter(|pod| pod.life == Life::Succeeded).map(|pod| pod.finished).max();
    let counts = |pod: &&View| pod.has_failed(want) && last_success.is_none_or(|success| pod.finished > success);
    let failures = pods.iter().filter(counts);
    let last = failures.clone().map(|pod| pod.finished).max()?;
    Some(last + pause(failures.count()))
}

/// Until when an index may not be tried again, after this pod of it failed.
pub fn of_index(last: &View) -> Timestamp {
    let before = last.index_failures.saturating_add(last.index_ignored);
    last.finished + pause(usize::try_from(before).unwrap_or_default().saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::job::testing::{at_second, desired, failed, succeeded};

    #[test]
    fn pauses_double_up_to_six_minutes() {
        let seconds: Vec<i64> = (1..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 360, 360]);
        assert_eq!(pause(usize::MAX), LONGEST);
    }

    #[test]
    fn a_success_begins_anew() {
        let want = desired();
        assert_eq!(of_job(&want, &[]), None);
        assert_eq!(of_job(&want, &[failed("a", 100)]), Some(at_second(110)));
        assert_eq!(of_job(&want, &[failed("a", 100), failed("b", 130)]), Some(at_second(150)));
        assert_eq!(of_job(&want, &[failed("a", 100), succeeded("b", 110), failed("c", 130)]), Some(at_second(140)));
        assert_eq!(of_job(&want, &[failed("a", 100), succeeded("b", 110)]), None);
    }

    #[test]
    fn an_index_counts_for_itself() {
        let mut pod = failed("a", 100);
        assert_eq!(of_index(&pod), at_second(110));
        (pod.index_failures, pod.index_ignored) = (1, 1);
        assert_eq!(of_index(&pod), at_second(140));
    }
}
