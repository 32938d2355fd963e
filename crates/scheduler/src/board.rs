//! What machines offer at the moment. Pure: time comes in as an argument.
//!
//! An offer is good for its time to live from when it was *received*, so that nobody's clock has to agree with ours. A
//! machine whose offer has expired gets nothing new until it offers again. What has expired is
//! remembered for a while, so that a placement that was under way and came too late is recognised as such.
//!
//! The board also knows which machine turned which pod away, and for how long that stands.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For offers that do not say how long they are good for.
    pub ttl: Duration,
    /// How long expired offers are remembered.
    pub linger: Duration,
    /// How long a machine that turned a pod away is not asked again for that pod.
    pub refuse: Duration,
}

#[derive(Clone, Debug)]
struct Posted<T> {
    terms: T,
    received: Instant,
    expires: Instant,
    used: u64,
}

/// What receiving an offer meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The machine had no viable offer.
    New,
    /// Something in it is not as before.
    Changed,
    /// The same for longer: nobody has to look.
    Renewed,
}

/// An offer, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Told<'a, T> {
    pub machine: &'a str,
    pub terms: &'a T,
    pub age: Duration,
    pub expires_in: Duration,
    pub used: u64,
}

pub struct Board<T> {
    times: Times,
    posted: HashMap<String, Posted<T>>,
    by_expiry: BTreeSet<(Instant, String)>,
    /// Until when an expired offer is remembered.
    expired: HashMap<String, Instant>,
    /// By pod (uid) and machine.
    refusals: HashMap<(String, String), Instant>,
    refusals_by_end: BTreeSet<(Instant, (String, String))>,
}

impl<T: PartialEq> Board<T> {
    pub fn new(times: Times) -> Self {
        Self {
            times,
            posted: HashMap::new(),
            by_expiry: BTreeSet::new(),
            expired: HashMap::new(),
            refusals: HashMap::new(),
            refusals_by_end: BTreeSet::new(),
        }
    }

    pub fn receive(&mut self, machine: &str, terms: T, ttl: Option<Duration>, now: Instant) -> Received {
        let expires = now + ttl.unwrap_or(self.times.ttl);
        self.expired.remove(machine);
        let before = self.posted.get_mut(machine);
        let meaning = match &before {
            None => Received::New,
            Some(before) if before.terms == terms => Received::Renewed,
            Some(_) => Received::Changed,
        };
        match before {
            Some(before) => {
                self.by_expiry.remove(&(before.expires, machine.to_owned()));
                (before.terms, before.received, before.expires) = (terms, now, expires);
            }
            None => {
                self.posted.insert(machine.to_owned(), Posted { terms, received: now, expires, used: 0 });
            }
        }
        self.by_expiry.insert((expires, machine.to_owned()));
        meaning
    }

    /// The machine takes its offer back, or is gone.
    pub fn withdraw(&mut self, machine: &str) -> bool {
        let withdrawn = self.posted.remove(machine);
        if let Some(posted) = &withdrawn {
            self.by_expiry.remove(&(posted.expires, machine.to_owned()));
        }
        withdrawn.is_some()
    }

    /// Takes down what has expired and says whose it was; forgets what is long over.
    pub fn expire(&mut self, now: Instant) -> Vec<String> {
        let mut over = Vec::new();
        while self.by_expiry.first().is_some_and(|(at, _)| *at <= now) {
            let Some((at, machine)) = self.by_expiry.pop_first() else { break };
            self.posted.remove(&machine);
            self.expired.insert(machine.clone(), at + self.times.linger);
            over.push(machine);
        }
        self.expired.retain(|_, until| *until > now);
        over
    }

    /// The terms of a machine's offer, if it has one that is good.
    pub fn viable(&self, machine: &str, now: Instant) -> Option<&T> {
        self.posted.get(machine).filter(|posted| posted.expires > now).map(|posted| &posted.terms)
    }

    /// Whether a machine's offer has expired, and not long ago.
    pub fn has_expired(&self, machine: &str, now: Instant) -> bool {
        match self.posted.get(machine) {
            Some(posted) => posted.expires <= now,
            None => self.expired.get(machine).is_some_and(|until| *until > now),
        }
    }

    /// A pod was given to a machine.
    pub fn used(&mut self, machine: &str) {
        if let Some(posted) = self.posted.get_mut(machine) {
            posted.used += 1;
        }
    }

    /// A machine turned a pod away.
    pub fn refused(&mut self, pod: &str, machine: &str, now: Instant) {
        let (which, until) = ((pod.to_owned(), machine.to_owned()), now + self.times.refuse);
        if let Some(before) = self.refusals.insert(which.clone(), until) {
            self.refusals_by_end.remove(&(before, which.clone()));
        }
        self.refusals_by_end.insert((until, which));
    }

    /// Refusals that stand no longer: the pods may go to these machines again.
    pub fn forgive(&mut self, now: Instant) -> Vec<(String, String)> {
        let mut over = Vec::new();
        while self.refusals_by_end.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, which)) = self.refusals_by_end.pop_first() else { break };
            self.refusals.remove(&which);
            over.push(which);
        }
        over
    }

    pub fn stands_refused(&self, pod: &str, machine: &str) -> bool {
        !self.refusals.is_empty() && self.refusals.contains_key(&(pod.to_owned(), machine.to_owned()))
    }

    /// The machines that turned a pod away and are not to be asked again yet.
    pub fn refusing<'a>(&'a self, pod: &'a str) -> impl Iterator<Item = &'a str> {
        self.refusals.keys().filter(move |(uid, _)| uid == pod).map(|(_, machine)| machine.as_str())
    }

    /// When something expires next: an offer, or a refusal.
    pub fn next(&self) -> Option<Instant> {
        let offer = self.by_expiry.first().map(|(at, _)| *at);
        let refusal = self.refusals_by_end.first().map(|(at, _)| *at);
        offer.into_iter().chain(refusal).min()
    }

    pub fn len(&self) -> usize {
        self.posted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub fn told(&self, now: Instant) -> Vec<Told<'_, T>> {
        let mut all: Vec<Told<'_, T>> = self
            .posted
            .iter()
            .map(|(machine, posted)| Told {
                machine,
                terms: &posted.terms,
                age: now.saturating_duration_since(posted.received),
                expires_in: posted.expires.saturating_duration_since(now),
                used: posted.used,
            })
            .collect();
        all.sort_by_key(|told| told.machine);
        all
    }
}

#[cfg(test)]
mod tests;
