//! The offers of nodes that are valid at the moment, and refusals of pods. Pure: time is an argument.
//!
//! An offer is valid for its time to live from when it, or a renewal of it, was *received*, so that nobody's clock has to
//! agree with ours. A node whose offer has expired gets no pods until it offers again. Expired offers are remembered for a while, so that a
//! binding that was under way and came too late is recognised.
//!
//! A refusal keeps a pod from a node that gave it back, for a while.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferTimes {
    /// For offers that do not say.
    pub ttl: Duration,
    /// How long expired offers are remembered.
    pub linger: Duration,
    /// How long a refusal stands.
    pub refuse: Duration,
}

#[derive(Clone, Debug)]
struct PostedOffer<T> {
    offer: T,
    ttl: Duration,
    received: Instant,
    expires: Instant,
    used: u64,
}

/// How a received offer differs from the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferChange {
    /// The node had no valid offer.
    New,
    /// Something in it is different.
    Changed,
    /// The same, valid for longer.
    Renewed,
}

/// An offer, for people to read.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferSummary<'a, T> {
    pub node: &'a str,
    pub offer: &'a T,
    pub age: Duration,
    pub expires_in: Duration,
    pub used: u64,
}

pub struct OfferBoard<T> {
    times: OfferTimes,
    offers: HashMap<String, PostedOffer<T>>,
    by_expiry: BTreeSet<(Instant, String)>,
    /// Until when an expired offer is remembered.
    expired: HashMap<String, Instant>,
    /// By pod (uid) and node.
    refusals: HashMap<(String, String), Instant>,
    refusals_by_end: BTreeSet<(Instant, (String, String))>,
}

impl<T: PartialEq> OfferBoard<T> {
    pub fn new(times: OfferTimes) -> Self {
        Self {
            times,
            offers: HashMap::new(),
            by_expiry: BTreeSet::new(),
            expired: HashMap::new(),
            refusals: HashMap::new(),
            refusals_by_end: BTreeSet::new(),
        }
    }

    pub fn receive(&mut self, node: &str, offer: T, ttl: Option<Duration>, now: Instant) -> OfferChange {
        let ttl = ttl.unwrap_or(self.times.ttl);
        let expires = now + ttl;
        self.expired.remove(node);
        let before = self.offers.get_mut(node);
        let change = match &before {
            None => OfferChange::New,
            Some(before) if before.offer == offer => OfferChange::Renewed,
            Some(_) => OfferChange::Changed,
        };
        match before {
            Some(before) => {
                self.by_expiry.remove(&(before.expires, node.to_owned()));
                (before.offer, before.ttl, before.received, before.expires) = (offer, ttl, now, expires);
            }
            None => {
                self.offers.insert(node.to_owned(), PostedOffer { offer, ttl, received: now, expires, used: 0 });
            }
        }
        self.by_expiry.insert((expires, node.to_owned()));
        change
    }

    /// The node stands by its offer: it is valid for its time to live from now. One that has expired stays expired.
    pub fn renew(&mut self, node: &str, now: Instant) {
        if let Some(offer) = self.offers.get_mut(node).filter(|offer| offer.expires > now) {
            self.by_expiry.remove(&(offer.expires, node.to_owned()));
            (offer.received, offer.expires) = (now, now + offer.ttl);
            self.by_expiry.insert((offer.expires, node.to_owned()));
        }
    }

    /// Removes an offer that its node withdrew or that was deleted.
    pub fn withdraw(&mut self, node: &str) -> bool {
        let withdrawn = self.offers.remove(node);
        if let Some(offers) = &withdrawn {
            self.by_expiry.remove(&(offers.expires, node.to_owned()));
        }
        withdrawn.is_some()
    }

    /// Removes expired offers and returns their nodes; forgets those that expired long ago.
    pub fn expire(&mut self, now: Instant) -> Vec<String> {
        let mut expired_now = Vec::new();
        while self.by_expiry.first().is_some_and(|(at, _)| *at <= now) {
            let Some((at, node)) = self.by_expiry.pop_first() else { break };
            self.offers.remove(&node);
            self.expired.insert(node.clone(), at + self.times.linger);
            expired_now.push(node);
        }
        self.expired.retain(|_, until| *until > now);
        expired_now
    }

    /// The last offer of a node, whether or not it has expired.
    pub fn get(&self, node: &str) -> Option<&T> {
        self.offers.get(node).map(|offers| &offers.offer)
    }

    /// The valid offer of a node.
    pub fn viable(&self, node: &str, now: Instant) -> Option<&T> {
        self.offers.get(node).filter(|offers| offers.expires > now).map(|offers| &offers.offer)
    }

    /// Whether a node's offer has expired a short while ago.
    pub fn has_expired(&self, node: &str, now: Instant) -> bool {
        match self.offers.get(node) {
            Some(offers) => offers.expires <= now,
            None => self.expired.get(node).is_some_and(|until| *until > now),
        }
    }

    /// Counts that a pod was placed on an offer.
    pub fn record_use(&mut self, node: &str) {
        if let Some(offers) = self.offers.get_mut(node) {
            offers.used += 1;
        }
    }

    /// A node refused a pod (by uid).
    pub fn record_refusal(&mut self, pod: &str, node: &str, now: Instant) {
        let (pair, until) = ((pod.to_owned(), node.to_owned()), now + self.times.refuse);
        if let Some(before) = self.refusals.insert(pair.clone(), until) {
            self.refusals_by_end.remove(&(before, pair.clone()));
        }
        self.refusals_by_end.insert((until, pair));
    }

    /// Removes refusals that no longer stand and returns pods (by uid) and nodes.
    pub fn expire_refusals(&mut self, now: Instant) -> Vec<(String, String)> {
        let mut expired_now = Vec::new();
        while self.refusals_by_end.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, pair)) = self.refusals_by_end.pop_first() else { break };
            self.refusals.remove(&pair);
            expired_now.push(pair);
        }
        expired_now
    }

    pub fn is_refusing(&self, pod: &str, node: &str) -> bool {
        !self.refusals.is_empty() && self.refusals.contains_key(&(pod.to_owned(), node.to_owned()))
    }

    /// The nodes whose refusal of a pod still stands.
    pub fn refusing_nodes<'a>(&'a self, pod: &'a str) -> impl Iterator<Item = &'a str> {
        self.refusals.keys().filter(move |(uid, _)| uid == pod).map(|(_, node)| node.as_str())
    }

    /// When the next offer or refusal expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let offer = self.by_expiry.first().map(|(at, _)| *at);
        let refusal = self.refusals_by_end.first().map(|(at, _)| *at);
        offer.into_iter().chain(refusal).min()
    }

    pub fn len(&self) -> usize {
        self.offers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    pub fn summaries(&self, now: Instant) -> Vec<OfferSummary<'_, T>> {
        let mut all: Vec<OfferSummary<'_, T>> = self
            .offers
            .iter()
            .map(|(node, offers)| OfferSummary {
                node,
                offer: &offers.offer,
                age: now.saturating_duration_since(offers.received),
                expires_in: offers.expires.saturating_duration_since(now),
                used: offers.used,
            })
            .collect();
        all.sort_by_key(|summaries| summaries.node);
        all
    }
}

#[cfg(test)]
mod tests;
