//! Losing a node: timings, witnesses, and which pods must never run twice. Pure; server and nodes follow the same rules.
//!
//! A node that has no contact with any server stops its *unique* pods by itself ([`is_unique`]) before the server may
//! start others in their place. It says in its Lease by when ([`FencePromise`]), and names its *witnesses*: a few other
//! nodes. While it has no contact it asks them whether they have any.
//!
//! * The node keeps its unique pods running only while more than half of the group (itself and its witnesses) have no
//!   contact either: then the servers are down, and nothing needs to stop.
//! * The server replaces them only while at least half of the group have been in contact without a break.
//!
//! Two such sets share a member, so both cannot hold: `docs/node-loss.md` has the whole argument and its assumptions.
//! A Lease without a promise promises nothing: the server then leaves unique pods alone, as upstream does.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{Node, Pod, Volume},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use crate::{
    duration::{format_duration, parse_duration},
    wellknown::taint,
};

/// On a node's Lease: how long after its last renewal at most its unique pods still run.
pub const STOPS_WITHIN: &str = "mainstay.dev/stops-unique-pods-within";
/// On a node's Lease: names of the nodes that it asks when it has no contact, joined by commas.
pub const WITNESSES: &str = "mainstay.dev/witnesses";
/// On a pod, `"true"`: it must never run twice.
pub const UNIQUE: &str = "mainstay.dev/unique";

/// Condition of a lost node, written by the server: by its promise and its witnesses it has stopped its unique pods.
pub const UNIQUE_PODS_ENDED: &str = "UniquePodsEnded";

/// More witnesses make no decision safer, and each is asked twice a second.
pub const MOST_WITNESSES: usize = 4;
/// How often a node without contact asks its witnesses.
pub const ASK_EVERY: Duration = Duration::from_millis(500);
/// Longest time between the moment at which unique pods have to stop and their end by SIGKILL.
pub const STOP_TIME: Duration = Duration::from_secs(2);
/// More often than this, nodes would load the server with nothing but heartbeats.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(100);
/// Whoever waits longer than a week for a node does not want it replaced at all: then pods tolerate its taints for ever.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Clocks of two machines differ in speed by at most this part.
const DRIFT: f64 = 0.02;

/// How soon a silent node counts as lost. Set at the server; nodes learn them from the cluster's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a node renews its Lease, and how long it waits for the answer.
    pub heartbeat: Duration,
    /// Its conditions become `Unknown` after so long without a heartbeat.
    pub unknown_after: Duration,
    /// How long pods that do not say otherwise tolerate a node that is unreachable or not ready.
    pub toleration: Duration,
    /// A node stops its unique pods after so long without contact.
    pub fence_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { heartbeat: seconds(2), unknown_after: seconds(8), toleration: seconds(5), fence_after: seconds(6) }
    }
}

/// Timings with which a unique pod could run twice, or a node be lost for one late heartbeat.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    #[error("--node-heartbeat {heartbeat:?} must be at least {SHORTEST_HEARTBEAT:?}")]
    HeartbeatTooShort { heartbeat: Duration },
    #[error("{flag} {time:?} must be at most {LONGEST:?}")]
    TooLong { flag: &'static str, time: Duration },
    #[error("--fence-after {fence_after:?} must be at least three times --node-heartbeat {heartbeat:?}")]
    FenceTooSoon { fence_after: Duration, heartbeat: Duration },
    #[error("--node-unknown-after {unknown_after:?} must be longer than --fence-after {fence_after:?}")]
    UnknownTooSoon { unknown_after: Duration, fence_after: Duration },
    #[error(
        "--node-unknown-after and --unreachable-toleration are {replace_after:?} together and must be at least {least:?}: \
         a node needs that long to stop its unique pods (--fence-after {fence_after:?})"
    )]
    ReplacedTooSoon { replace_after: Duration, least: Duration, fence_after: Duration },
}

impl Timing {
    pub fn check(&self) -> Result<(), TimingError> {
        let Self { heartbeat, unknown_after, fence_after, .. } = *self;
        if let Some((flag, _, time)) = self.entries().into_iter().find(|(_, _, time)| *time > LONGEST) {
            return Err(TimingError::TooLong { flag, time });
        }
        if heartbeat < SHORTEST_HEARTBEAT {
            return Err(TimingError::HeartbeatTooShort { heartbeat });
        }
        if fence_after < heartbeat * 3 {
            return Err(TimingError::FenceTooSoon { fence_after, heartbeat });
        }
        if unknown_after <= fence_after {
            return Err(TimingError::UnknownTooSoon { unknown_after, fence_after });
        }
        let (replace_after, least) = (self.replace_after(), allow_for_drift(self.stops_within()));
        if replace_after < least {
            return Err(TimingError::ReplacedTooSoon { replace_after, least, fence_after });
        }
        Ok(())
    }

    /// Flag of the server, key in the ConfigMap of the cluster's settings, and value.
    fn entries(&self) -> [(&'static str, &'static str, Duration); 4] {
        [
            ("--node-heartbeat", "nodeHeartbeat", self.heartbeat),
            ("--node-unknown-after", "nodeUnknownAfter", self.unknown_after),
            ("--unreachable-toleration", "unreachableToleration", self.toleration),
            ("--fence-after", "fenceAfter", self.fence_after),
        ]
    }

    /// As it is recorded in the cluster's settings: flag, key and value.
    pub fn to_settings(&self) -> [(&'static str, &'static str, String); 4] {
        self.entries().map(|(flag, key, time)| (flag, key, format_duration(time)))
    }

    /// From the data of the ConfigMap with the cluster's settings. What is not recorded, or cannot be read, is stock.
    pub fn from_settings(recorded: &BTreeMap<String, String>) -> Self {
        let [heartbeat, unknown_after, toleration, fence_after] = Self::default()
            .entries()
            .map(|(_, key, stock)| recorded.get(key).and_then(|text| parse_duration(text)).unwrap_or(stock));
        Self { heartbeat, unknown_after, toleration, fence_after }
    }

    /// From the last heartbeat until pods with the stock toleration are replaced.
    pub fn replace_after(&self) -> Duration {
        self.unknown_after + self.toleration
    }

    /// What a node with these timings promises: it notices, has asked, and has stopped its unique pods.
    pub fn stops_within(&self) -> Duration {
        self.runs_without_contact() + STOP_TIME
    }

    /// How long after its last contact unique pods run if nobody decides anything. It takes witnesses so long to be sure
    /// that they have no contact either: when servers die, the last heartbeat that a witness knows to be accepted may have
    /// been sent one heartbeat after the node's, and one that nobody answered another heartbeat later.
    pub fn runs_without_contact(&self) -> Duration {
        self.fence_after + 2 * self.heartbeat + ASK_EVERY
    }

    /// A witness says that it has no contact if all heartbeats that may have been accepted were sent longer ago than this.
    pub fn witness_silence(&self) -> Duration {
        self.fence_after - self.heartbeat / 2
    }

    /// A heartbeat arrives at most one heartbeat after it was sent. So when a witness says that it has no contact, the server
    /// has seen a gap of at least this before.
    pub fn witness_gap(&self) -> Duration {
        (self.witness_silence() - self.heartbeat).div_f64(1.0 + DRIFT)
    }

    /// How long the answer of a witness counts, from when it was asked. Several questions in a row may stay unanswered.
    /// Shorter than [`FencePromise::hearing_time`] by more than a gap and [`STOP_TIME`]: see `docs/node-loss.md`.
    pub fn answer_lasts(&self) -> Duration {
        2 * self.heartbeat
    }
}

fn allow_for_drift(time: Duration) -> Duration {
    time.mul_f64(1.0 + DRIFT)
}

/// What a node promises in its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencePromise {
    /// Counts from the moment at which the renewal was sent.
    pub stops_within: Duration,
    /// Other nodes, sorted.
    pub witnesses: Vec<String>,
}

/// What a witness that was asked has answered, if it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WitnessAnswer {
    HasContact,
    HasNoContact,
}

impl FencePromise {
    /// `None` for a Lease that promises nothing, or nothing that can be read.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let stops_within = parse_duration(annotations.get(STOPS_WITHIN)?)?;
        let mut witnesses: Vec<String> = match annotations.get(WITNESSES)?.as_str() {
            "" => Vec::new(),
            names => names.split(',').map(str::to_owned).collect(),
        };
        witnesses.sort();
        witnesses.dedup();
        (witnesses.len() <= MOST_WITNESSES).then_some(Self { stops_within, witnesses })
    }

    pub fn to_annotations(&self) -> [(String, String); 2] {
        [
            (STOPS_WITHIN.to_owned(), format_duration(self.stops_within)),
            (WITNESSES.to_owned(), self.witnesses.join(",")),
        ]
    }

    fn group_size(&self) -> usize {
        self.witnesses.len() + 1
    }

    /// For the server: whether unique pods of the node may be started elsewhere. `silent_for` counts from when its last
    /// heartbeat arrived; `is_heard` tells of a witness whether its heartbeats have arrived without a gap of
    /// [`Timing::witness_gap`] for all of [`Self::hearing_time`].
    pub fn allows_replacement(&self, silent_for: Duration, is_heard: impl Fn(&str) -> bool) -> bool {
        let heard = self.witnesses.iter().filter(|witness| is_heard(witness)).count();
        silent_for >= self.hearing_time() && heard * 2 >= self.group_size()
    }

    /// [`Timing::witness_gap`] for a node that promises this, which may have other timings than the server: its heartbeats
    /// come at least three times as often as it would fence itself.
    pub fn witness_gap(&self) -> Duration {
        self.stops_within.saturating_sub(ASK_EVERY + STOP_TIME).mul_f64(0.3 / (1.0 + DRIFT))
    }

    /// How long the node may take, by the server's clock.
    pub fn hearing_time(&self) -> Duration {
        allow_for_drift(self.stops_within)
    }

    /// For the node itself, when it has had no contact for `fence_after`: whether its unique pods may run on.
    pub fn lets_run(&self, answer: impl Fn(&str) -> Option<WitnessAnswer>) -> bool {
        let answers = self.witnesses.iter().map(|witness| answer(witness));
        let without_contact = 1 + answers.filter(|answer| *answer == Some(WitnessAnswer::HasNoContact)).count();
        without_contact * 2 > self.group_size()
    }
}

/// Whether a pod must never run twice: it says so, belongs to a StatefulSet, or has a claim that only one node or pod may
/// use. `access_modes` gives those of a claim of its namespace; an unknown claim may be such a one.
pub fn is_unique<'a>(pod: &Pod, access_modes: impl Fn(&str) -> Option<&'a [String]>) -> bool {
    is_unique_by(&pod.metadata, claims(pod), access_modes)
}

/// [`is_unique`] for a pod of which only the metadata and the names of its claims are known.
pub fn is_unique_by<'a>(
    metadata: &ObjectMeta,
    mut claims: impl Iterator<Item = String>,
    access_modes: impl Fn(&str) -> Option<&'a [String]>,
) -> bool {
    let says_so = || metadata.annotations.iter().flatten().any(|(key, value)| key == UNIQUE && value == "true");
    let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let of_stateful_set =
        |owner: &OwnerReference| owner.kind == "StatefulSet" && owner.api_version.starts_with("apps/");
    let for_one_alone = |claim: String| {
        access_modes(&claim)
            .is_none_or(|modes| !modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany"))
    };
    says_so() || controller.is_some_and(of_stateful_set) || claims.any(for_one_alone)
}

/// Whether the server says of a lost node that its unique pods have ended. What it said of an earlier loss does not count.
pub fn says_unique_pods_ended(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let Some(lost) = taints.find(|taint| taint.key == taint::UNREACHABLE && taint.effect == "NoExecute") else {
        return false;
    };
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == UNIQUE_PODS_ENDED).is_some_and(|condition| {
        let (said, since) = (condition.last_transition_time.as_ref(), lost.time_added.as_ref());
        condition.status == "True" && said.zip(since).is_some_and(|(said, since)| said.0 >= since.0)
    })
}

/// Names of the claims that a pod mounts, those of its ephemeral volumes included.
pub fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = |volume: &Volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name)),
        (None, None) => None,
    };
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter_map(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn promise(witnesses: &[&str]) -> FencePromise {
        let witnesses = witnesses.iter().map(|name| (*name).to_owned()).collect();
        FencePromise { stops_within: Timing::default().stops_within(), witnesses }
    }

    fn pod(metadata: Value, volumes: Value) -> Pod {
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "containers": [], "volumes": volumes } }))
            .unwrap()
    }

    #[test]
    fn what_the_server_said_of_an_earlier_loss_does_not_count() {
        let node = |taint: Value, condition: Value| -> Node {
            let (spec, status) = (json!({ "taints": [taint] }), json!({ "conditions": [condition] }));
            serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": status })).unwrap()
        };
        let lost =
            |effect: &str| json!({"key": taint::UNREACHABLE, "effect": effect, "timeAdded": "2026-01-01T00:01:00Z"});
        let said =
            |status: &str, time: &str| json!({"type": UNIQUE_PODS_ENDED, "status": status, "lastTransitionTime": time});
        assert!(says_unique_pods_ended(&node(lost("NoExecute"), said("True", "2026-01-01T00:01:05Z"))));
        assert!(!says_unique_pods_ended(&node(lost("NoExecute"), said("True", "2026-01-01T00:00:05Z"))), "earlier");
        assert!(!says_unique_pods_ended(&node(lost("NoExecute"), said("False", "2026-01-01T00:01:05Z"))));
        assert!(!says_unique_pods_ended(&node(lost("NoSchedule"), said("True", "2026-01-01T00:01:05Z"))));
    }

    #[test]
    fn the_stock_timings_leave_a_node_enough_time() {
        Timing::default().check().unwrap();
    }

    #[test]
    fn an_answer_that_a_node_still_relies_on_was_given_while_the_server_listened_to_its_witness() {
        for heartbeat in [100, 500, 2_000, 10_000].map(Duration::from_millis) {
            let timing = Timing { heartbeat, fence_after: 3 * heartbeat, ..Timing::default() };
            let listened = timing.stops_within() - timing.witness_gap();
            assert!(allow_for_drift(timing.answer_lasts() + STOP_TIME) <= listened, "{heartbeat:?}");
            assert!(timing.witness_gap() > heartbeat + heartbeat / 4, "a heartbeat may come late: {heartbeat:?}");
        }
    }

    #[test]
    fn timings_with_which_a_unique_pod_could_run_twice_are_refused_by_the_name_of_their_flag() {
        let (stock, seconds) = (Timing::default(), Duration::from_secs);
        let error = |timing: Timing| timing.check().unwrap_err().to_string();
        assert!(error(Timing { toleration: seconds(0), ..stock }).contains("--unreachable-toleration"));
        assert!(error(Timing { fence_after: seconds(5), ..stock }).contains("--node-heartbeat 2s"));
        assert!(error(Timing { heartbeat: seconds(0), ..stock }).contains("--node-heartbeat 0ns"));
        assert!(error(Timing { toleration: Duration::MAX, ..stock }).contains("--unreachable-toleration"));
        assert!(error(Timing { unknown_after: seconds(6), ..stock }).contains("--node-unknown-after 6s"));
    }

    #[test]
    fn a_witness_is_heard_by_no_longer_gaps_than_its_own_promise_allows() {
        for (heartbeat, fence_after) in [(2_000, 6_000), (1_000, 6_000), (100, 60_000)] {
            let (heartbeat, fence_after) = (Duration::from_millis(heartbeat), Duration::from_millis(fence_after));
            let timing = Timing { heartbeat, fence_after, ..Timing::default() };
            let promise = FencePromise { stops_within: timing.stops_within(), witnesses: vec![] };
            assert!(promise.witness_gap() <= timing.witness_gap() + Duration::from_micros(1), "{timing:?}");
            assert!(promise.witness_gap() > heartbeat, "{timing:?}");
        }
    }

    #[test]
    fn timings_are_read_from_the_clusters_settings_as_they_were_recorded() {
        let timing = Timing { heartbeat: Duration::from_millis(1500), ..Timing::default() };
        let recorded = timing.to_settings().map(|(_, key, value)| (key.to_owned(), value)).into();
        assert_eq!(Timing::from_settings(&recorded), timing);
        assert_eq!(recorded["nodeHeartbeat"], "1500ms");
        assert_eq!(Timing::from_settings(&BTreeMap::new()), Timing::default(), "recorded by an earlier version");
    }

    #[test]
    fn a_promise_is_read_as_it_was_written() {
        for promise in [promise(&["b", "c"]), promise(&[])] {
            assert_eq!(FencePromise::from_annotations(&promise.to_annotations().into()), Some(promise));
        }
        let halves = promise(&["b"]).to_annotations().map(|half| BTreeMap::from([half]));
        assert!(halves.iter().all(|half| FencePromise::from_annotations(half).is_none()));
        let unreadable =
            BTreeMap::from([(STOPS_WITHIN.to_owned(), "soon".to_owned()), (WITNESSES.to_owned(), String::new())]);
        assert_eq!(FencePromise::from_annotations(&unreadable), None);
        let too_many = promise(&["a", "b", "c", "d", "e"]);
        assert_eq!(FencePromise::from_annotations(&too_many.to_annotations().into()), None);
    }

    #[test]
    fn unique_pods_are_replaced_when_the_node_has_had_its_time_and_half_of_its_group_is_heard() {
        let (two, long) = (promise(&["b"]), Duration::from_secs(60));
        assert!(two.allows_replacement(long, |_| true));
        assert!(!two.allows_replacement(two.stops_within, |_| true), "clocks differ");
        assert!(!two.allows_replacement(long, |_| false));
        assert!(!promise(&[]).allows_replacement(long, |_| true), "it has nobody to be heard of");
        let three = promise(&["b", "c"]);
        assert!(!three.allows_replacement(long, |witness| witness == "b"), "most of the group is silent");
    }

    #[test]
    fn unique_pods_run_on_while_most_of_the_group_have_no_contact() {
        let answers = |none: &'static str| move |name: &str| none.contains(name).then_some(WitnessAnswer::HasNoContact);
        assert!(promise(&[]).lets_run(|_| None), "a node without witnesses can be replaced by nobody");
        assert!(promise(&["b"]).lets_run(answers("b")));
        assert!(!promise(&["b"]).lets_run(answers("")), "the only witness does not answer");
        assert!(promise(&["b", "c"]).lets_run(answers("b")));
        assert!(!promise(&["b", "c"]).lets_run(|_| Some(WitnessAnswer::HasContact)));
    }

    #[test]
    fn pods_that_say_so_belong_to_a_stateful_set_or_mount_what_only_one_may_are_unique() {
        let claim = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
        let with = |mode: &str| {
            let modes = [mode.to_owned()];
            is_unique(&pod(json!({}), claim.clone()), |_| Some(&modes))
        };
        assert!(with("ReadWriteOnce") && with("ReadWriteOncePod") && !with("ReadWriteMany") && !with("ReadOnlyMany"));
        assert!(is_unique(&pod(json!({}), claim.clone()), |_| None), "nobody knows the claim");
        let plain = |metadata| is_unique(&pod(metadata, json!([])), |_| None);
        assert!(!plain(json!({})));
        assert!(
            plain(json!({ "annotations": { UNIQUE: "true" } }))
                && !plain(json!({ "annotations": { UNIQUE: "false" } }))
        );
        let owner = |kind: &str| json!({ "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "u", "controller": true }] });
        assert!(plain(owner("StatefulSet")) && !plain(owner("ReplicaSet")));
    }

    #[test]
    fn claims_of_ephemeral_volumes_are_named_after_the_pod() {
        let volumes = json!([{ "name": "v", "ephemeral": {} }, { "name": "w", "emptyDir": {} }]);
        assert_eq!(claims(&pod(json!({ "name": "p" }), volumes)).collect::<Vec<_>>(), ["p-v"]);
    }

    proptest! {
        /// Each witness either has contact or has none; answers may be lost, and so may heartbeats.
        #[test]
        fn no_group_both_runs_on_and_is_replaced(members in prop::collection::vec((any::<bool>(), any::<bool>()), 0..7)) {
            let names: Vec<String> = (0..members.len()).map(|index| index.to_string()).collect();
            let promise = FencePromise { stops_within: Duration::from_secs(10), witnesses: names };
            let member = |name: &str| members[name.parse::<usize>().unwrap()];
            let runs_on = promise.lets_run(|name| {
                let (has_contact, is_delivered) = member(name);
                let answer = if has_contact { WitnessAnswer::HasContact } else { WitnessAnswer::HasNoContact };
                is_delivered.then_some(answer)
            });
            let is_replaced = promise.allows_replacement(Duration::from_secs(60), |name| {
                let (has_contact, is_delivered) = member(name);
                has_contact && is_delivered
            });
            prop_assert!(!(runs_on && is_replaced));
        }
    }
}
