//! Whether unique pods may run on this node: contact with servers, answers of witnesses, and what follows from both. Pure.
//!
//! The rules are `mainstay_api::node_loss`'s, and why they are safe is in `docs/node-loss.md`. All times are boot time, which goes
//! on while the machine sleeps; none is read here. [`FenceState`] only says what may be: shims stop pods by themselves when
//! `until` has passed, whether or not anybody calls [`FenceState::next`].

use std::{collections::BTreeMap, time::Duration};

use mainstay_api::node_loss::{FencePromise, Timing, WitnessAnswer};
use mainstay_runtime::fence::FenceLimit;

/// Time since the machine was started.
pub type BootTime = Duration;

/// What became of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalOutcome {
    Accepted,
    /// Certainly not accepted, now or later: it was not sent, or a server refused it.
    Refused,
    /// It may have been accepted: there was no answer, or too late.
    Unanswered,
}

/// What a witness says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContactAnswer {
    HasContact,
    /// It has missed a heartbeat, but not for long.
    Undecided,
    HasNoContact,
}

/// When this node was last in contact with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Of this process. An earlier one may have sent heartbeats until then.
    began: BootTime,
    /// When the last heartbeat was sent that a server is known to have accepted.
    accepted: Option<BootTime>,
    /// When the last one was sent that may have been.
    unanswered: Option<BootTime>,
}

impl Contact {
    pub fn new(began: BootTime) -> Self {
        Self { began, accepted: None, unanswered: None }
    }

    pub fn record(&mut self, sent: BootTime, outcome: RenewalOutcome) {
        match outcome {
            RenewalOutcome::Accepted => self.accepted = self.accepted.max(Some(sent)),
            RenewalOutcome::Unanswered => self.unanswered = self.unanswered.max(Some(sent)),
            RenewalOutcome::Refused => {}
        }
    }

    /// When the last heartbeat was sent that a server is known to have accepted.
    pub fn accepted(&self) -> Option<BootTime> {
        self.accepted
    }

    pub fn silent_for(&self, now: BootTime) -> Duration {
        now.saturating_sub(self.accepted.unwrap_or(self.began))
    }

    /// What this node says as a witness of another.
    pub fn answer(&self, timing: &Timing, now: BootTime) -> ContactAnswer {
        let perhaps = self.began.max(self.accepted.unwrap_or_default()).max(self.unanswered.unwrap_or_default());
        match self.accepted {
            _ if now.saturating_sub(perhaps) >= timing.witness_silence() => ContactAnswer::HasNoContact,
            Some(accepted) if now.saturating_sub(accepted) < timing.heartbeat + timing.heartbeat / 2 => {
                ContactAnswer::HasContact
            }
            Some(_) | None => ContactAnswer::Undecided,
        }
    }
}

/// What one witness has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WitnessReplies {
    /// When it was asked when it last said that it has no contact.
    no_contact: Option<BootTime>,
    /// The last question that was answered, or failed, and the answer.
    last: Option<(BootTime, Option<ContactAnswer>)>,
}

/// Answers of witnesses, by name.
#[derive(Clone, Debug, Default)]
pub struct Replies(BTreeMap<String, WitnessReplies>);

/// What the answers say about the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupVerdict {
    /// They are down, by answers that count until then.
    ServersDown {
        until: BootTime,
    },
    Undecided,
    /// It is this node that is cut off.
    CutOff,
}

impl Replies {
    /// `answer` is `None` if the witness cannot be asked. It then still counts what it said before.
    pub fn record(&mut self, witness: &str, asked: BootTime, answer: Option<ContactAnswer>) {
        let replies = self.0.entry(witness.to_owned()).or_default();
        if replies.last.is_none_or(|(before, _)| before <= asked) {
            replies.last = Some((asked, answer));
            match answer {
                Some(ContactAnswer::HasNoContact) => replies.no_contact = Some(asked),
                Some(ContactAnswer::HasContact | ContactAnswer::Undecided) => replies.no_contact = None,
                None => {}
            }
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// When the last question was asked of which the outcome is known.
    pub fn last_asked(&self, witness: &str) -> Option<BootTime> {
        self.0.get(witness)?.last.map(|(asked, _)| asked)
    }

    fn judge(&self, group: &FencePromise, timing: &Timing, now: BootTime) -> GroupVerdict {
        let lasts = timing.answer_lasts();
        let is_fresh = |asked: &BootTime| now.saturating_sub(*asked) < lasts;
        let replies = |name: &str| self.0.get(name).copied().unwrap_or_default();
        let no_contact = |name: &str| replies(name).no_contact.filter(is_fresh);
        if group.lets_run(|name| no_contact(name).map(|_| WitnessAnswer::HasNoContact)) {
            // The last moment at which it still would.
            let mut asked: Vec<BootTime> = group.witnesses.iter().filter_map(|name| no_contact(name)).collect();
            asked.sort_unstable_by(|a, b| b.cmp(a));
            let enough = asked.iter().find(|until| {
                group.lets_run(|name| {
                    no_contact(name).filter(|asked| asked >= *until).map(|_| WitnessAnswer::HasNoContact)
                })
            });
            let until = enough.map_or(BootTime::MAX, |asked| *asked + lasts);
            return GroupVerdict::ServersDown { until };
        }
        let may_have_none = |name: &str| match replies(name).last.filter(|(asked, _)| is_fresh(asked)) {
            // Nobody knows yet.
            None | Some((_, Some(ContactAnswer::Undecided | ContactAnswer::HasNoContact))) => true,
            Some((_, Some(ContactAnswer::HasContact) | None)) => no_contact(name).is_some(),
        };
        match group.lets_run(|name| may_have_none(name).then_some(WitnessAnswer::HasNoContact)) {
            true => GroupVerdict::Undecided,
            false => GroupVerdict::CutOff,
        }
    }
}

/// Which unique pods may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPermit {
    /// None: pods have not been listed since this process began.
    Unlisted,
    /// Those that a list had, and those that are newer than it.
    Listed(PodList),
}

/// What the API held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodList {
    pub uids: std::collections::BTreeSet<String>,
    pub version: u64,
}

impl PodList {
    fn permits(&self, uid: &str, version: u64) -> bool {
        version >= self.version || self.uids.contains(uid)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceState {
    /// Nothing is promised: nobody replaces pods of this node, so they run.
    Unbound,
    /// Unique pods run until then, unless that is extended.
    Open { until: BootTime, permit: StartPermit },
    /// They are stopped. They start again once there is contact, the node is not tainted and pods were listed.
    Closed,
}

/// What happened. Groups are all that a server may have accepted.
#[derive(Clone, Debug)]
pub enum FenceEvent<'a> {
    /// A promise is about to be sent for the first time.
    Bind,
    /// A server has accepted a Lease that promises nothing.
    Unbind,
    /// A heartbeat that was sent then was accepted.
    Renewed { sent: BootTime },
    /// Time has passed; these are the answers so far.
    Tick { contact: &'a Contact, groups: &'a [FencePromise], replies: &'a Replies },
    /// After a heartbeat that was sent then and accepted, the node was found untainted, and then pods were listed.
    Listed { list: PodList, contact: BootTime },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceCommand {
    /// Have shims look at their limit now.
    Enforce,
    /// Unique pods may be started that could not be before.
    Start,
}

impl FenceState {
    /// Of a node that has promised something, by the file that its shims obey. Nothing ever extends the limit further than this,
    /// so a file that says more is wrong, and not believed.
    pub fn resume(limit: Option<FenceLimit>, timing: &Timing, now: BootTime) -> Self {
        match limit {
            Some(FenceLimit::Until(until)) if now < until => {
                let until = until.min(now + timing.runs_without_contact());
                Self::Open { until, permit: StartPermit::Unlisted }
            }
            // The machine was started anew, or nobody extended the limit in time.
            Some(FenceLimit::Until(_) | FenceLimit::None) | None => Self::Closed,
        }
    }

    pub fn next(self, event: FenceEvent<'_>, timing: &Timing, now: BootTime) -> (Self, Option<FenceCommand>) {
        use {FenceCommand as Command, FenceEvent as Event};
        let bound = now + timing.runs_without_contact();
        match (self, event) {
            (Self::Unbound, Event::Bind) => {
                (Self::Open { until: bound, permit: StartPermit::Listed(PodList::default()) }, Some(Command::Enforce))
            }
            (Self::Unbound, _) => (Self::Unbound, None),
            (state @ (Self::Open { .. } | Self::Closed), Event::Bind) => (state, None),

            (Self::Open { until, permit: StartPermit::Listed(_) }, Event::Unbind) if now < until => {
                (Self::Unbound, Some(Command::Start))
            }
            // What happened meanwhile has to be known first; it is unbound at a later heartbeat.
            (state @ (Self::Open { .. } | Self::Closed), Event::Unbind) => (state.expire(now), None),

            (Self::Open { until, permit }, Event::Renewed { sent }) if now < until => {
                let until = until.max(sent + timing.runs_without_contact());
                (Self::Open { until, permit }, None)
            }
            (Self::Open { .. } | Self::Closed, Event::Renewed { .. }) => (Self::Closed, None),

            (Self::Open { until, permit }, Event::Tick { contact, groups, replies }) if now < until => {
                if contact.silent_for(now) < timing.fence_after {
                    return (Self::Open { until, permit }, None);
                }
                let verdicts = groups.iter().map(|group| replies.judge(group, timing, now));
                match verdicts.min_by_key(GroupVerdict::time) {
                    None => (Self::Open { until, permit }, None),
                    Some(GroupVerdict::ServersDown { until: extended }) => {
                        (Self::Open { until: until.max(extended), permit }, None)
                    }
                    Some(GroupVerdict::Undecided) => (Self::Open { until, permit }, None),
                    // The servers were down and are back, for witnesses first: its own heartbeat has until then.
                    Some(GroupVerdict::CutOff) if until + contact.silent_for(now) > bound => {
                        (Self::Open { until, permit }, None)
                    }
                    Some(GroupVerdict::CutOff) => (Self::Closed, Some(Command::Enforce)),
                }
            }
            (Self::Open { .. }, Event::Tick { .. }) => (Self::Closed, Some(Command::Enforce)),
            (Self::Closed, Event::Tick { .. }) => (Self::Closed, None),

            (before, Event::Listed { list, contact }) => {
                let before = match before {
                    Self::Open { until, .. } => until,
                    Self::Unbound | Self::Closed => BootTime::ZERO,
                };
                let until = before.max(contact + timing.runs_without_contact());
                match now < until {
                    true => (Self::Open { until, permit: StartPermit::Listed(list) }, Some(Command::Start)),
                    false => (Self::Closed, None),
                }
            }
        }
    }

    fn expire(self, now: BootTime) -> Self {
        match self {
            Self::Open { until, .. } if now >= until => Self::Closed,
            state => state,
        }
    }

    /// Whether the Node must be read and pods be listed before unique pods may be started.
    pub fn needs_list(&self) -> bool {
        match self {
            Self::Unbound | Self::Open { permit: StartPermit::Listed(_), .. } => false,
            Self::Open { permit: StartPermit::Unlisted, .. } | Self::Closed => true,
        }
    }

    /// Whether containers of a unique pod may be started now.
    pub fn permits_start(&self, uid: &str, version: u64, now: BootTime) -> bool {
        match self {
            Self::Unbound => true,
            Self::Open { until, permit: StartPermit::Listed(list) } => now < *until && list.permits(uid, version),
            Self::Open { permit: StartPermit::Unlisted, .. } | Self::Closed => false,
        }
    }
}

impl GroupVerdict {
    /// Of several groups, the strictest counts.
    fn time(&self) -> (u8, BootTime) {
        match self {
            Self::CutOff => (0, BootTime::ZERO),
            Self::Undecided => (1, BootTime::ZERO),
            Self::ServersDown { until } => (2, *until),
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
