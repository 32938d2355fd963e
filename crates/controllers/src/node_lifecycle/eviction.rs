//! Eviction by taint: which pods of a node have to go for its NoExecute taints, when, and how. Pure.
//!
//! As upstream's taint-eviction-controller: a pod that does not tolerate such a taint goes at once; one that tolerates it
//! for a time goes after the shortest of its times, counted from when both the taint and the pod were there; the taint's
//! end cancels it.
//!
//! On a node that answers, eviction is a deletion, and the node ends the pod. Of a lost node nobody can confirm that, so
//! its pods are failed and removed from the API: those that may run twice when they are evicted, unique ones only once
//! the node has stopped them itself ([`Silence::Lost`]), or the administrator says by the taint `out-of-service` that the
//! machine is off. Pods without a controller are failed and stay, with the reason.

use jiff::{SignedDuration, Timestamp};
use mainstay_api::wellknown::taint::{NOT_READY, OUT_OF_SERVICE, UNREACHABLE};

use crate::{objects::pod::NoExecuteToleration, runtime::ObjectKey};

/// A taint of effect NoExecute, and since when the node has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoExecuteTaint {
    pub key: String,
    pub value: String,
    pub since: Timestamp,
}

/// What is known of the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Its heartbeats arrive.
    Heard,
    /// They do not, which proves nothing yet.
    Unproven,
    /// It is cut off or dead. `unique_pods_ended`: it has stopped its unique pods by now, if it still runs.
    Lost { unique_pods_ended: bool },
}

/// A pod of the node that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub key: ObjectKey,
    pub uid: String,
    pub created: Timestamp,
    pub tolerations: Box<[NoExecuteToleration]>,
    pub is_unique: bool,
    pub is_controlled: bool,
    pub is_ready: bool,
    /// When its grace is over, if it is being deleted.
    pub ends_at: Option<Timestamp>,
    /// Only finalizers keep it.
    pub is_removed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAction {
    /// Its node is lost: whatever was last reported of it does not hold.
    MarkNotReady { pod: ObjectKey, uid: String },
    /// Marks it and deletes it; the node ends it.
    Evict { pod: ObjectKey, uid: String },
    /// Fails it and removes it from the API.
    Remove { pod: ObjectKey, uid: String, why: Removal },
    /// Fails it for good: nobody would make another.
    Fail { pod: ObjectKey, uid: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    Evicted,
    /// It was being deleted already.
    Deleted,
}

/// When a pod is evicted: `None` if it tolerates all taints for ever.
fn evicted_at(pod: &PodView, taints: &[&NoExecuteTaint], now: Timestamp) -> Option<Timestamp> {
    taints.iter().filter_map(|taint| tolerated_until(pod, taint, now)).min()
}

/// `None`: for ever. A pod that claims to be made in the future was made by a clock that was set back since.
fn tolerated_until(pod: &PodView, taint: &NoExecuteTaint, now: Timestamp) -> Option<Timestamp> {
    let matching = pod.tolerations.iter().filter(|toleration| toleration.tolerates(&taint.key, &taint.value));
    let seconds = matching.map(|toleration| toleration.seconds.unwrap_or(i64::MAX)).min().unwrap_or(0).max(0);
    // What reaches beyond the end of time is for ever.
    let since = if pod.created > now { taint.since } else { taint.since.max(pod.created) };
    since.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Says what to do with the pods of a node now, and when to look again.
pub fn plan(
    taints: &[NoExecuteTaint],
    silence: Silence,
    pods: &[PodView],
    now: Timestamp,
) -> (Vec<PodAction>, Option<Timestamp>) {
    // A node that is silent for an unknown reason is not judged by what it was judged by before.
    let of_node = |taint: &&NoExecuteTaint| taint.key == UNREACHABLE || taint.key == NOT_READY;
    let taints: Vec<&NoExecuteTaint> =
        taints.iter().filter(|taint| silence != Silence::Unproven || !of_node(taint)).collect();
    let is_off = taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
    let (mut actions, mut next) = (Vec::new(), None::<Timestamp>);
    let mut look_at = |at: Timestamp| next = Some(next.map_or(at, |next| next.min(at)));
    for pod in pods.iter().filter(|pod| !pod.is_removed) {
        let (key, uid) = (|| pod.key.clone(), || pod.uid.clone());
        let is_lost = matches!(silence, Silence::Lost { .. });
        if is_lost && pod.is_ready {
            actions.push(PodAction::MarkNotReady { pod: key(), uid: uid() });
        }
        let due = match pod.ends_at {
            Some(_) if !is_lost => continue, // the node ends it
            Some(ends_at) => ends_at,
            None => match evicted_at(pod, &taints, now) {
                Some(at) => at,
                None => continue,
            },
        };
        if due > now {
            look_at(due);
            continue;
        }
        match silence {
            Silence::Heard | Silence::Unproven => actions.push(PodAction::Evict { pod: key(), uid: uid() }),
            Silence::Lost { unique_pods_ended: false } if pod.is_unique && !is_off => {} // it is looked at again
            Silence::Lost { .. } if pod.ends_at.is_some() => {
                actions.push(PodAction::Remove { pod: key(), uid: uid(), why: Removal::Deleted });
            }
            Silence::Lost { .. } if pod.is_controlled => {
                actions.push(PodAction::Remove { pod: key(), uid: uid(), why: Removal::Evicted });
            }
            Silence::Lost { .. } => actions.push(PodAction::Fail { pod: key(), uid: uid() }),
        }
    }
    (actions, next)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::objects::pod::TolerationKey;

    const LOST: Silence = Silence::Lost { unique_pods_ended: false };
    const FENCED: Silence = Silence::Lost { unique_pods_ended: true };

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn taint(key: &str, since: i64) -> NoExecuteTaint {
        NoExecuteTaint { key: key.to_owned(), value: String::new(), since: at_second(since) }
    }

    fn tolerates(key: TolerationKey, seconds: Option<i64>) -> NoExecuteToleration {
        NoExecuteToleration { key, value: None, seconds }
    }

    fn pod(tolerations: Vec<NoExecuteToleration>) -> PodView {
        PodView {
            key: ObjectKey::new("ns", "p"),
            uid: "u".to_owned(),
            created: at_second(0),
            tolerations: tolerations.into(),
            is_unique: false,
            is_controlled: true,
            is_ready: false,
            ends_at: None,
            is_removed: false,
        }
    }

    /// With the tolerations that admission gives.
    fn stock() -> PodView {
        pod(vec![tolerates(TolerationKey::NotReady, Some(5)), tolerates(TolerationKey::Unreachable, Some(5))])
    }

    fn evict() -> Vec<PodAction> {
        vec![PodAction::Evict { pod: ObjectKey::new("ns", "p"), uid: "u".to_owned() }]
    }

    fn remove(why: Removal) -> Vec<PodAction> {
        vec![PodAction::Remove { pod: ObjectKey::new("ns", "p"), uid: "u".to_owned(), why }]
    }

    fn plan_for_pod(
        taints: &[NoExecuteTaint],
        silence: Silence,
        pod: PodView,
        now: i64,
    ) -> (Vec<PodAction>, Option<Timestamp>) {
        plan(taints, silence, &[pod], at_second(now))
    }

    #[test]
    fn a_pod_that_was_made_by_a_clock_that_was_set_back_since_waits_no_longer_than_others() {
        let taints = [taint(UNREACHABLE, 100)];
        let made_later = PodView { created: at_second(3700), ..stock() };
        assert_eq!(plan_for_pod(&taints, FENCED, made_later.clone(), 104), (vec![], Some(at_second(105))));
        assert_eq!(plan_for_pod(&taints, FENCED, made_later, 105), (remove(Removal::Evicted), None));
    }

    #[test]
    fn a_pod_without_a_toleration_is_evicted_at_once_and_one_that_tolerates_for_ever_never() {
        let taints = [taint("maintenance", 100)];
        assert_eq!(plan_for_pod(&taints, Silence::Heard, pod(vec![]), 100), (evict(), None));
        let for_ever = |key| pod(vec![tolerates(key, None)]);
        assert_eq!(plan_for_pod(&taints, Silence::Heard, for_ever(TolerationKey::Every), 999), (vec![], None));
        let named = TolerationKey::Other("maintenance".into());
        assert_eq!(plan_for_pod(&taints, Silence::Heard, for_ever(named), 999), (vec![], None));
        assert_eq!(plan_for_pod(&taints, Silence::Heard, for_ever(TolerationKey::NotReady), 100), (evict(), None));
    }

    #[test]
    fn the_shortest_of_the_matching_times_counts_from_when_the_taint_came() {
        let both = pod(vec![tolerates(TolerationKey::Every, Some(60)), tolerates(TolerationKey::NotReady, Some(5))]);
        let not_ready = [taint(NOT_READY, 100)];
        assert_eq!(plan_for_pod(&not_ready, Silence::Heard, both.clone(), 104), (vec![], Some(at_second(105))));
        assert_eq!(plan_for_pod(&not_ready, Silence::Heard, both.clone(), 105), (evict(), None));
        let other = [taint("maintenance", 100)];
        assert_eq!(plan_for_pod(&other, Silence::Heard, both.clone(), 105), (vec![], Some(at_second(160))));
        let each = [taint(NOT_READY, 200), taint("maintenance", 100)];
        assert_eq!(plan_for_pod(&each, Silence::Heard, both.clone(), 105), (vec![], Some(at_second(160))));
        assert_eq!(plan_for_pod(&[], Silence::Heard, both.clone(), 999), (vec![], None), "the taint is gone");
        let younger = PodView { created: at_second(300), ..both.clone() };
        assert_eq!(
            plan_for_pod(&other, Silence::Heard, younger, 301),
            (vec![], Some(at_second(360))),
            "made for this node later"
        );
        let negative = pod(vec![tolerates(TolerationKey::Every, Some(-3))]);
        assert_eq!(plan_for_pod(&other, Silence::Heard, negative, 100), (evict(), None));
        let endless = pod(vec![tolerates(TolerationKey::Every, Some(i64::MAX))]);
        assert_eq!(plan_for_pod(&other, Silence::Heard, endless, 100), (vec![], None));
    }

    #[test]
    fn pods_of_a_lost_node_are_not_ready_and_go_after_their_time() {
        let taints = [taint(UNREACHABLE, 100)];
        let ready = PodView { is_ready: true, ..stock() };
        let marked = vec![PodAction::MarkNotReady { pod: ready.key.clone(), uid: ready.uid.clone() }];
        assert_eq!(plan_for_pod(&taints, LOST, ready, 101), (marked, Some(at_second(105))));
        assert_eq!(plan_for_pod(&taints, LOST, stock(), 105), (remove(Removal::Evicted), None));
        let bare = PodView { is_controlled: false, ..stock() };
        let failed = vec![PodAction::Fail { pod: bare.key.clone(), uid: bare.uid.clone() }];
        assert_eq!(plan_for_pod(&taints, LOST, bare, 105), (failed, None));
        let daemon = pod(vec![tolerates(TolerationKey::Unreachable, None)]);
        assert_eq!(plan_for_pod(&taints, LOST, daemon, 9999), (vec![], None));
    }

    #[test]
    fn unique_pods_wait_until_their_node_has_stopped_them() {
        let (taints, unique) = ([taint(UNREACHABLE, 100)], || PodView { is_unique: true, ..stock() });
        assert_eq!(plan_for_pod(&taints, LOST, unique(), 200), (vec![], None));
        assert_eq!(plan_for_pod(&taints, FENCED, unique(), 104), (vec![], Some(at_second(105))));
        assert_eq!(plan_for_pod(&taints, FENCED, unique(), 105), (remove(Removal::Evicted), None));
        let deleted = || PodView { ends_at: Some(at_second(90)), ..unique() };
        assert_eq!(plan_for_pod(&taints, LOST, deleted(), 200), (vec![], None));
        assert_eq!(plan_for_pod(&taints, FENCED, deleted(), 101), (remove(Removal::Deleted), None));
        let off = [taint(UNREACHABLE, 100), taint(OUT_OF_SERVICE, 100)];
        assert_eq!(
            plan_for_pod(&off, LOST, unique(), 101),
            (remove(Removal::Evicted), None),
            "the administrator says so"
        );
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_left_to_its_node_unless_that_is_lost() {
        let taints = [taint(UNREACHABLE, 100)];
        let leaving = |at| PodView { ends_at: Some(at_second(at)), ..pod(vec![]) };
        assert_eq!(plan_for_pod(&taints, Silence::Heard, leaving(90), 200), (vec![], None));
        assert_eq!(plan_for_pod(&taints, LOST, leaving(130), 120), (vec![], Some(at_second(130))));
        assert_eq!(plan_for_pod(&taints, LOST, leaving(130), 130), (remove(Removal::Deleted), None));
        let held = PodView { is_removed: true, ..leaving(90) };
        assert_eq!(plan_for_pod(&taints, LOST, held, 200), (vec![], None));
    }

    #[test]
    fn while_a_silence_proves_nothing_only_taints_of_users_evict() {
        let unproven = Silence::Unproven;
        assert_eq!(plan_for_pod(&[taint(UNREACHABLE, 100)], unproven, stock(), 999), (vec![], None));
        assert_eq!(plan_for_pod(&[taint("maintenance", 100)], unproven, stock(), 999), (evict(), None));
    }

    proptest! {
        #[test]
        fn a_unique_pod_of_a_silent_node_goes_only_when_it_has_ended(
            seconds in prop::option::of(-5i64..100), deleted in prop::option::of(0i64..300), now in 0i64..1000,
            is_controlled: bool, is_ready: bool,
        ) {
            let unique = PodView {
                is_unique: true, is_controlled, is_ready, ends_at: deleted.map(at_second),
                ..pod(vec![tolerates(TolerationKey::Every, seconds)])
            };
            let (actions, _) = plan_for_pod(&[taint(UNREACHABLE, 100), taint("own", 50)], LOST, unique.clone(), now);
            let is_mark = |action: &PodAction| matches!(action, PodAction::MarkNotReady { .. });
            prop_assert!(actions.iter().all(is_mark), "{actions:?}");
            let (actions, next) = plan_for_pod(&[taint(UNREACHABLE, 100)], FENCED, PodView { is_ready: false, ..unique }, now);
            prop_assert!(actions.len() <= 1 && (actions.is_empty() || next.is_none()));
        }
    }
}
