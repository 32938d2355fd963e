//! All that decides whether unique pods may run on this node, without files, clocks, shims and peers. Pure.
//!
//! [`super::Fence`] is this core with the things it decides about; the simulator (`mainstay-sim`) drives the same core with models of
//! them. Every call takes the boot time. After each, [`FenceCore::pending_limit`] says whether the file that shims obey must be
//! written; what a call returns as groups is to be on disk before [`FenceCore::set_groups`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use mainstay_api::node_loss::{ASK_EVERY, FencePromise, Timing};
pub use mainstay_runtime::fence::FenceLimit;

use super::{
    state::{BootTime, Contact, ContactAnswer, FenceCommand, FenceEvent, FenceState, PodList, RenewalOutcome, Replies},
    witnesses,
};

pub struct FenceCore {
    contact: Contact,
    state: FenceState,
    /// All promises that a server may have accepted; the newest last.
    groups: Vec<FencePromise>,
    replies: Replies,
    /// As it is in the file.
    limit: Option<FenceLimit>,
    /// Shims that had no limit have not all seen that there is one: nothing may be promised yet.
    needs_enforcing: bool,
}

impl FenceCore {
    /// `groups` and `limit` are what an earlier process has left on disk.
    pub fn new(groups: Vec<FencePromise>, limit: Option<FenceLimit>, timing: &Timing, now: BootTime) -> Self {
        let state = match groups.is_empty() {
            true => FenceState::Unbound,
            false => FenceState::resume(limit, timing, now),
        };
        let (contact, replies) = (Contact::new(now), Replies::default());
        Self { contact, state, groups, replies, limit: None, needs_enforcing: false }
    }

    /// What this node says when another asks it.
    pub fn answer(&self, timing: &Timing, now: BootTime) -> ContactAnswer {
        self.contact.answer(timing, now)
    }

    pub fn silent_for(&self, now: BootTime) -> Duration {
        self.contact.silent_for(now)
    }

    /// Whether a server may count on this node to stop its unique pods.
    pub fn is_bound(&self) -> bool {
        self.state != FenceState::Unbound
    }

    pub fn permits_start(&self, uid: &str, version: u64, now: BootTime) -> bool {
        self.state.permits_start(uid, version, now)
    }

    /// What the next heartbeat is to promise. `peers` are all nodes that are known, and whether they are ready; `is_covered` if
    /// all unique pods here would be stopped in time.
    pub fn propose(
        &self,
        own: &str,
        timing: &Timing,
        is_covered: bool,
        peers: &BTreeMap<&str, bool>,
    ) -> Option<FencePromise> {
        let last = self.groups.last();
        if is_covered && peers.is_empty() {
            return last.cloned(); // nodes are not known yet, not even this one
        }
        let current = last.map(|group| group.witnesses.clone()).unwrap_or_default();
        let ready = peers.iter().filter(|(_, is_ready)| **is_ready).map(|(name, _)| *name);
        let witnesses = witnesses::choose(own, &current, ready);
        let promise = FencePromise { stops_within: timing.stops_within(), witnesses };
        (is_covered && !promise.witnesses.is_empty()).then_some(promise)
    }

    /// The groups with one that is about to be promised; nothing if it is among them.
    pub fn groups_with(&self, promise: &FencePromise) -> Option<Vec<FencePromise>> {
        let is_known = self.groups.contains(promise);
        (!is_known).then(|| self.groups.iter().chain([promise]).cloned().collect())
    }

    /// The newest promise that may be in force.
    pub fn last_promise(&self) -> Option<&FencePromise> {
        self.groups.last()
    }

    pub fn set_groups(&mut self, groups: Vec<FencePromise>) {
        self.groups = groups;
    }

    /// A promise is about to be sent. Until shims were told of the limit, [`Self::needs_enforcing`].
    pub fn bind(&mut self, timing: &Timing, now: BootTime) {
        if !self.is_bound() {
            self.needs_enforcing = true;
            self.step(FenceEvent::Bind, timing, now);
        }
    }

    pub fn needs_enforcing(&self) -> bool {
        self.needs_enforcing
    }

    /// All shims have seen the limit.
    pub fn set_enforced(&mut self) {
        self.needs_enforcing = false;
    }

    /// What became of a heartbeat with this promise. Returns the groups that are left, if they are others.
    pub fn record_renewal(
        &mut self,
        sent: BootTime,
        promise: Option<&FencePromise>,
        outcome: RenewalOutcome,
        timing: &Timing,
        now: BootTime,
    ) -> Option<Vec<FencePromise>> {
        self.contact.record(sent, outcome);
        if outcome != RenewalOutcome::Accepted {
            return None;
        }
        self.step(FenceEvent::Renewed { sent }, timing, now);
        if promise.is_none() {
            self.step(FenceEvent::Unbind, timing, now);
        }
        self.replies.clear();
        // Promises that were not accepted may be forgotten, but need not be.
        let groups = match promise {
            Some(promise) => vec![promise.clone()],
            None if !self.is_bound() => Vec::new(),
            None => return None,
        };
        (self.groups != groups).then_some(groups)
    }

    /// When there is something to do at the latest.
    pub fn next_look(&self, timing: &Timing, now: BootTime) -> Duration {
        match asks_from(timing).checked_sub(self.silent_for(now)) {
            Some(left) if !self.state.needs_list() => left.max(Duration::from_millis(10)),
            Some(_) | None => ASK_EVERY,
        }
    }

    pub fn witnesses_to_ask(&self, timing: &Timing, now: BootTime) -> BTreeSet<String> {
        let is_silent = self.silent_for(now) >= asks_from(timing);
        let is_open = matches!(self.state, FenceState::Open { .. });
        let groups = self.groups.iter().filter(|_| is_silent && is_open);
        groups.flat_map(|group| group.witnesses.iter().cloned()).collect()
    }

    /// How long to wait before a witness is asked again: one that answers at once is asked no more often than one that does not.
    pub fn wait_before_asking(&self, witness: &str, now: BootTime) -> Duration {
        let since = self.replies.last_asked(witness).map(|asked| now.saturating_sub(asked));
        since.map_or(Duration::ZERO, |since| ASK_EVERY.saturating_sub(since))
    }

    /// `answer` is `None` if the witness cannot be asked.
    pub fn record_reply(&mut self, witness: &str, asked: BootTime, answer: Option<ContactAnswer>) {
        self.replies.record(witness, asked, answer);
    }

    /// Time has passed.
    pub fn tick(&mut self, timing: &Timing, now: BootTime) -> Option<FenceCommand> {
        let state = std::mem::replace(&mut self.state, FenceState::Closed);
        let event = FenceEvent::Tick { contact: &self.contact, groups: &self.groups, replies: &self.replies };
        let (state, command) = state.next(event, timing, now);
        self.state = state;
        command
    }

    /// When the last heartbeat was accepted, if Node and pods should be read now so that unique pods may start.
    pub fn wants_list(&self, timing: &Timing, now: BootTime) -> Option<BootTime> {
        let is_in_contact = self.silent_for(now) < 2 * timing.heartbeat;
        self.contact.accepted().filter(|_| self.state.needs_list() && is_in_contact)
    }

    /// After that heartbeat the node was found untainted, and then pods were listed.
    pub fn record_list(
        &mut self,
        list: PodList,
        contact: BootTime,
        timing: &Timing,
        now: BootTime,
    ) -> Option<FenceCommand> {
        self.step(FenceEvent::Listed { list, contact }, timing, now)
    }

    pub fn is_closed(&self) -> bool {
        self.state == FenceState::Closed
    }

    fn step(&mut self, event: FenceEvent<'_>, timing: &Timing, now: BootTime) -> Option<FenceCommand> {
        let state = std::mem::replace(&mut self.state, FenceState::Closed);
        let (state, command) = state.next(event, timing, now);
        self.state = state;
        command
    }

    /// What the file must say that shims obey, if it does not.
    pub fn pending_limit(&self, now: BootTime) -> Option<FenceLimit> {
        let limit = match (&self.state, self.limit) {
            (FenceState::Unbound, _) => FenceLimit::None,
            (FenceState::Open { until, .. }, _) => FenceLimit::Until(*until),
            (FenceState::Closed, Some(FenceLimit::Until(until))) => FenceLimit::Until(until.min(now)),
            (FenceState::Closed, Some(FenceLimit::None) | None) => FenceLimit::Until(now),
        };
        (self.limit != Some(limit)).then_some(limit)
    }

    /// The file says so now.
    pub fn set_limit(&mut self, limit: FenceLimit) {
        self.limit = Some(limit);
    }
}

/// From this silence on witnesses are asked.
fn asks_from(timing: &Timing) -> Duration {
    timing.fence_after / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_is_asked_twice_a_second_whether_it_answers_or_not() {
        let (timing, start) = (Timing::default(), Duration::from_secs(100));
        let group = FencePromise { stops_within: timing.stops_within(), witnesses: vec!["b".to_owned()] };
        let mut core = FenceCore::new(vec![group], None, &timing, start);
        assert_eq!(core.wait_before_asking("b", start), Duration::ZERO, "it was not asked yet");
        let round_trip = Duration::from_millis(3);
        for answer in [Some(ContactAnswer::HasNoContact), Some(ContactAnswer::HasContact), None] {
            core.record_reply("b", start, answer);
            assert_eq!(core.wait_before_asking("b", start + round_trip), ASK_EVERY - round_trip, "{answer:?}");
            assert_eq!(core.wait_before_asking("b", start + ASK_EVERY), Duration::ZERO, "{answer:?}");
        }
    }
}
