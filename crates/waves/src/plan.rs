//! The decision: sorts members into what they are to this rollout, finds the first wave that is not finished, and starts as
//! many of it as may be unavailable.

use jiff::{SignedDuration, Timestamp};

use crate::{Gate, Health, Member, Plan, Position, Rollout, State, Strategy, StuckReason, Wait, Wave};

/// What a member is to the rollout at this moment.
#[derive(Clone, Debug, PartialEq)]
enum Standing {
    /// May be started.
    Waiting {
        available: bool,
    },
    /// On its way or arrived without being healthy; has failed when the deadline passes.
    UnderWay {
        arrived: bool,
        deadline: Option<Timestamp>,
    },
    /// At the target and healthy, both since then.
    Done {
        since: Timestamp,
    },
    /// Not asked to move, and nothing is heard of it.
    Silent,
    Failed {
        why: String,
    },
}

impl Standing {
    fn classify(member: &Member, strategy: &Strategy, now: Timestamp) -> Self {
        let under_way = |since: Timestamp, arrived: bool| {
            let deadline = strategy.progress_deadline.map(|limit| add(since, limit));
            match deadline {
                Some(deadline) if now >= deadline && arrived => {
                    Self::Failed { why: format!("not healthy since {since}") }
                }
                Some(deadline) if now >= deadline => Self::Failed { why: format!("moving since {since}") },
                _ => Self::UnderWay { arrived, deadline },
            }
        };
        match (member.position, &member.health) {
            (_, Health::Failed { why, .. }) => Self::Failed { why: why.clone() },
            (Position::Old, Health::Unknown { .. }) => Self::Silent,
            (Position::Old, Health::Healthy { .. }) => Self::Waiting { available: true },
            (Position::Old, Health::Unhealthy { .. }) => Self::Waiting { available: false },
            (Position::Moving { since }, _) => under_way(since, false),
            (Position::AtTarget { since: arrived }, Health::Healthy { since }) => {
                Self::Done { since: arrived.max(*since) }
            }
            (Position::AtTarget { since: arrived }, Health::Unhealthy { since } | Health::Unknown { since }) => {
                under_way(arrived.max(*since), true)
            }
        }
    }

    fn is_available(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Waiting { available: true })
    }
}

/// A member with its place in the order.
struct Entry<'a> {
    member: &'a Member,
    standing: Standing,
}

/// Decides what to start. The order of the members is the order within a wave.
pub fn plan(rollout: &Rollout, now: Timestamp) -> Plan {
    let strategy = rollout.strategy;
    let classify = |member| Entry { member, standing: Standing::classify(member, strategy, now) };
    let entries: Vec<_> = rollout.members.iter().map(classify).collect();
    let rest = |state| Plan { start: Vec::new(), state, wake_at: None };
    if let Some(why) = rollout.paused {
        return rest(State::Paused { why: why.to_owned() });
    }
    let waves = assign(&strategy.waves, rollout.members);
    let failed = failed(&entries);
    let allowed = strategy.max_failed.resolve(entries.len());
    if failed.len() > allowed {
        let is_failed = |&index: &usize| matches!(entries[index].standing, Standing::Failed { .. });
        let wave = waves.iter().rposition(|wave| wave.iter().any(is_failed)).unwrap_or_default();
        return rest(State::Stuck { wave, why: StuckReason::TooManyFailed { failed, allowed } });
    }
    if let Some((wave, why)) = overdrawn(strategy, &waves, &entries) {
        return rest(State::Stuck { wave, why });
    }
    for (number, wave) in waves.iter().enumerate() {
        let wave: Vec<_> = wave.iter().map(|&index| &entries[index]).collect();
        if let Some(plan) = plan_wave(rollout, &entries, number, &wave, now) {
            return plan;
        }
    }
    let silent = names(&entries, |standing| *standing == Standing::Silent);
    if silent.is_empty() {
        return rest(State::Complete { failed: failed.into_iter().map(|(name, _)| name).collect() });
    }
    rest(State::Progressing { wave: waves.len().saturating_sub(1), waits: vec![Wait::Silent(silent)] })
}

/// What is to be done about one wave; nothing if it is finished.
fn plan_wave(rollout: &Rollout, all: &[Entry], number: usize, wave: &[&Entry], now: Timestamp) -> Option<Plan> {
    let is_open = |entry: &&&Entry| matches!(entry.standing, Standing::Waiting { .. } | Standing::UnderWay { .. });
    if wave.iter().filter(is_open).count() == 0 {
        let since = wave.iter().filter_map(|entry| match entry.standing {
            Standing::Done { since } => Some(since),
            _ => None,
        });
        let until = add(since.max()?, rollout.strategy.soak);
        let soaking = Plan { start: Vec::new(), state: State::Soaking { wave: number, until }, wake_at: Some(until) };
        return (now < until).then_some(soaking);
    }
    let has_begun = wave.iter().any(|entry| match entry.member.position {
        Position::Old => false,
        Position::Moving { .. } => true,
        Position::AtTarget { since } => since >= rollout.began,
    });
    if let (false, Some(Gate::Closed { why })) = (has_begun, rollout.gates.get(number)) {
        return Some(Plan { start: Vec::new(), state: State::Gated { wave: number, why: why.clone() }, wake_at: None });
    }
    let limit = rollout.strategy.max_unavailable.resolve(all.len()).max(1);
    let unavailable = names(all, |standing| !standing.is_available());
    let mut room = limit.saturating_sub(unavailable.len());
    let (mut start, mut held_back) = (Vec::new(), false);
    for entry in wave {
        match entry.standing {
            // It is out of service as it is: moving it costs nothing.
            Standing::Waiting { available: false } => start.push(entry.member.name.clone()),
            Standing::Waiting { available: true } if room > 0 => {
                room -= 1;
                start.push(entry.member.name.clone());
            }
            Standing::Waiting { available: true } => held_back = true,
            Standing::UnderWay { .. } | Standing::Done { .. } | Standing::Silent | Standing::Failed { .. } => {}
        }
    }
    let moving = names(all, |standing| matches!(standing, Standing::UnderWay { arrived: false, .. }));
    let unhealthy = names(all, |standing| matches!(standing, Standing::UnderWay { arrived: true, .. }));
    let mut waits = Vec::new();
    waits.extend((!moving.is_empty()).then_some(Wait::Moving(moving)));
    waits.extend((!unhealthy.is_empty()).then_some(Wait::Unhealthy(unhealthy)));
    waits.extend((held_back && start.is_empty()).then_some(Wait::MaxUnavailable { limit, unavailable }));
    let deadlines = all.iter().filter_map(|entry| match entry.standing {
        Standing::UnderWay { deadline, .. } => deadline,
        _ => None,
    });
    Some(Plan { start, state: State::Progressing { wave: number, waits }, wake_at: deadlines.min() })
}

/// The members of each wave, by index; one more wave at the end has what no other has.
pub fn assign(waves: &[Wave], members: &[Member]) -> Vec<Vec<usize>> {
    let mut free: Vec<usize> = (0..members.len()).collect();
    let mut assigned: Vec<Vec<usize>> = Vec::new();
    for wave in waves {
        let others = match wave {
            Wave::Named(names) => {
                let (own, others) = free.into_iter().partition(|&index| names.contains(&members[index].name));
                free = own;
                others
            }
            Wave::UpTo(amount) => {
                let before = members.len() - free.len();
                let count = amount.resolve(members.len()).saturating_sub(before);
                free.split_off(count.min(free.len()))
            }
        };
        assigned.push(std::mem::replace(&mut free, others));
    }
    assigned.push(free);
    assigned
}

fn names(entries: &[Entry], has: impl Fn(&Standing) -> bool) -> Vec<String> {
    entries.iter().filter(|entry| has(&entry.standing)).map(|entry| entry.member.name.clone()).collect()
}

fn failed<'e>(entries: impl IntoIterator<Item = &'e Entry<'e>>) -> Vec<(String, String)> {
    let cause = |entry: &Entry| match &entry.standing {
        Standing::Failed { why } => Some((entry.member.name.clone(), why.clone())),
        _ => None,
    };
    entries.into_iter().filter_map(cause).collect()
}

/// The first wave in which more members failed than that wave allows.
fn overdrawn(strategy: &Strategy, waves: &[Vec<usize>], entries: &[Entry]) -> Option<(usize, StuckReason)> {
    let budgets = strategy.max_failed_of_waves.iter().zip(waves).enumerate();
    budgets.filter_map(|(number, (budget, wave))| Some((number, (*budget)?, wave))).find_map(
        |(number, budget, wave)| {
            let failed = failed(wave.iter().map(|&index| &entries[index]));
            let allowed = budget.resolve(wave.len());
            (failed.len() > allowed).then_some((number, StuckReason::WaveFailed { failed, allowed }))
        },
    )
}

/// A moment later, or the last one there is.
fn add(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.saturating_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
