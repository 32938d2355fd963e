//! Limits unfinished TLS handshakes per source address: beyond its share a new connection replaces the oldest.
//!
//! A handshake takes milliseconds, and whoever does not finish it waits for nothing. So where a source has as many as
//! it may, a new connection takes the place of the one that has waited longest: silent connections keep out neither the node behind the
//! same address as a pod, nor an administrator on the server's own machine.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::fairness::{FairLimit, Flow, Permit};

pub struct Handshakes {
    limit: Arc<FairLimit>,
    waiting: Mutex<HandshakeQueue>,
}

#[derive(Default)]
struct HandshakeQueue {
    next: u64,
    /// By their numbers, and so by age.
    of_flow: HashMap<Flow, BTreeMap<u64, HandshakeSlot>>,
}

/// The permit lies here and not with the connection, so that it is free at once when the place is taken away.
struct HandshakeSlot {
    evicted: CancellationToken,
    _permit: Permit,
}

/// A connection that may shake hands, until it is dropped or another takes its place.
pub struct Handshake {
    all: Arc<Handshakes>,
    flow: Flow,
    number: u64,
    evicted: CancellationToken,
}

impl Handshakes {
    pub fn new(limit: Arc<FairLimit>) -> Arc<Self> {
        Arc::new(Self { limit, waiting: Mutex::default() })
    }

    /// A place for a new connection from this address. None if there is no room, and none of its own to take.
    pub fn admit(self: &Arc<Self>, source: IpAddr) -> Option<Handshake> {
        let flow = Flow::of_source(source);
        let mut waiting = self.waiting.lock();
        let permit = match self.limit.acquire(flow, 1) {
            Ok(permit) => permit,
            Err(_) => {
                let (_, longest) = waiting.of_flow.get_mut(&flow)?.pop_first()?;
                longest.evicted.cancel();
                drop(longest);
                self.limit.acquire(flow, 1).ok()?
            }
        };
        waiting.next += 1;
        let (number, evicted) = (waiting.next, CancellationToken::new());
        let place = HandshakeSlot { evicted: evicted.clone(), _permit: permit };
        waiting.of_flow.entry(flow).or_default().insert(number, place);
        Some(Handshake { all: self.clone(), flow, number, evicted })
    }
}

impl Handshake {
    /// Returns once another connection has the place.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut waiting = self.all.waiting.lock();
        if let Some(places) = waiting.of_flow.get_mut(&self.flow) {
            places.remove(&self.number);
            if places.is_empty() {
                waiting.of_flow.remove(&self.flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_takes_the_place_of_the_one_of_its_source_that_waited_longest() {
        let handshakes = Handshakes::new(FairLimit::new(20, 10));
        let [own, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let elsewhere = handshakes.admit(other).unwrap();
        let first: Vec<_> = (0..2).map(|_| handshakes.admit(own).unwrap()).collect();
        assert!(first.iter().all(|handshake| !handshake.evicted.is_cancelled()));
        let third = handshakes.admit(own).unwrap();
        assert!(first[0].evicted.is_cancelled() && !first[1].evicted.is_cancelled());
        drop(first);
        let fourth = handshakes.admit(own).unwrap();
        assert!(!third.evicted.is_cancelled() && !fourth.evicted.is_cancelled(), "one place was free");
        assert!(!elsewhere.evicted.is_cancelled());
        drop((third, fourth, elsewhere));
        assert!(handshakes.waiting.lock().of_flow.is_empty());
    }

    #[test]
    fn nobody_loses_a_place_to_another_source() {
        let handshakes = Handshakes::new(FairLimit::new(0, 10));
        assert!(handshakes.admit([10, 0, 0, 1].into()).is_none());
    }
}
