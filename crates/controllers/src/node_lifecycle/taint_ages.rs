//! Since when nodes have their NoExecute taints, whatever happens to clocks. Pure.
//!
//! `timeAdded` is the wall clock of whoever wrote the taint: another server's, or ours before somebody set it. Ours is boot time, but
//! counts from when we first saw the taint. So a taint was added no later than we saw it; and one that the server itself
//! writes, to a node that we knew without it, not much earlier either. A clock that is an hour fast or is set back by an hour neither delays replacements
//! by that hour, nor is a toleration cut short by one that is set forward.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::Time};
use mainstay_api::wellknown::taint::{NOT_READY, UNREACHABLE};

use super::{eviction::NoExecuteTaint, heartbeats::BootTime};

/// From when the server writes a taint until it sees it.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(2);

#[derive(Default)]
pub struct TaintAges(HashMap<String, NodeTaints>);

/// By key and value of the taint.
type NodeTaints = HashMap<(String, String), FirstSeen>;

#[derive(Clone, Copy)]
struct FirstSeen {
    at: BootTime,
    /// The node was known without it.
    appeared: bool,
}

impl TaintAges {
    /// Takes in the taints that a node has, and says since when it has them, as times of the wall clock that shows `now`.
    pub fn observe<'a>(
        &mut self,
        node: &str,
        taints: impl Iterator<Item = &'a Taint>,
        now: Timestamp,
        boot: BootTime,
    ) -> Vec<NoExecuteTaint> {
        let known = self.0.remove(node);
        let (mut there, mut dated) = (NodeTaints::new(), Vec::new());
        for taint in taints {
            let (key, value) = (taint.key.clone(), taint.value.clone().unwrap_or_default());
            let id = (key, value);
            let before = known.as_ref().and_then(|known| known.get(&id)).copied();
            let first = before.unwrap_or(FirstSeen { at: boot, appeared: known.is_some() });
            let (key, value) = id.clone();
            there.insert(id, first);
            let since = since(taint, first, now, boot);
            dated.push(NoExecuteTaint { key, value, since });
        }
        self.0.insert(node.to_owned(), there);
        dated
    }

    pub fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }
}

fn since(taint: &Taint, first: FirstSeen, now: Timestamp, boot: BootTime) -> Timestamp {
    let for_time = SignedDuration::try_from(boot.saturating_sub(first.at)).unwrap_or(SignedDuration::MAX);
    let seen = now.checked_sub(for_time).unwrap_or(Timestamp::MIN);
    let Some(Time(added)) = &taint.time_added else { return seen };
    let is_servers = [NOT_READY, UNREACHABLE].contains(&&*taint.key);
    match is_servers && first.appeared {
        true => (*added).clamp(seen.checked_sub(SEEN_WITHIN).unwrap_or(Timestamp::MIN), seen),
        false => (*added).min(seen),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn boot(second: u64) -> Duration {
        Duration::from_secs(500 + second)
    }

    fn taint(key: &str, added: Option<i64>) -> Taint {
        Taint {
            key: key.to_owned(),
            value: None,
            effect: "NoExecute".to_owned(),
            time_added: added.map(|added| Time(second(added))),
        }
    }

    /// Since when a node has its one taint, which appears at 100, when the wall clock shows `wall` at the `at`th second.
    fn since_at(taint: &Taint, at: u64, wall: i64) -> Timestamp {
        let mut ages = TaintAges::default();
        ages.observe("n", std::iter::empty(), second(99), boot(99));
        ages.observe("n", std::iter::once(taint), second(100), boot(100));
        ages.observe("n", std::iter::once(taint), second(wall), boot(at))[0].since
    }

    #[test]
    fn a_taint_of_the_server_is_as_old_as_it_was_seen_whatever_the_clock_shows() {
        let lost = taint(UNREACHABLE, Some(100));
        assert_eq!(since_at(&lost, 104, 104), second(100));
        assert_eq!(since_at(&lost, 104, 104 - 3600), second(100 - 3600), "set back by an hour");
        assert_eq!(since_at(&lost, 104, 104 + 3600), second(100 + 3600 - 2), "set forward by an hour");
        assert_eq!(since_at(&taint(UNREACHABLE, Some(3700)), 104, 104), second(100), "written by one an hour fast");
        assert_eq!(since_at(&taint(UNREACHABLE, Some(99)), 104, 104), second(99), "it was on its way");
    }

    #[test]
    fn who_starts_believes_what_a_taint_says_of_the_past_but_not_of_the_future() {
        let first_look = |added| {
            let mut ages = TaintAges::default();
            let lost = taint(UNREACHABLE, Some(added));
            ages.observe("n", std::iter::once(&lost), second(100), boot(100));
            ages.observe("n", std::iter::once(&lost), second(103), boot(103))[0].since
        };
        assert_eq!(first_look(40), second(40));
        assert_eq!(first_look(3700), second(100));
    }

    #[test]
    fn a_users_taint_may_be_older_than_we_know_and_counts_from_our_first_look_if_it_does_not_say() {
        assert_eq!(since_at(&taint("fire", Some(20)), 104, 104), second(20));
        assert_eq!(since_at(&taint("fire", None), 104, 104), second(100));
        assert_eq!(since_at(&taint("fire", None), 104, 104 + 3600), second(100 + 3600));
    }

    #[test]
    fn a_taint_that_went_and_came_again_is_new_and_a_node_that_went_is_forgotten() {
        let (mut ages, fire) = (TaintAges::default(), taint("fire", None));
        ages.observe("n", std::iter::once(&fire), second(0), boot(0));
        ages.observe("n", std::iter::empty(), second(10), boot(10));
        assert_eq!(ages.observe("n", std::iter::once(&fire), second(20), boot(20))[0].since, second(20));
        ages.forget("n");
        let lost = taint(UNREACHABLE, Some(5));
        assert_eq!(ages.observe("n", std::iter::once(&lost), second(30), boot(30))[0].since, second(5));
    }
}
