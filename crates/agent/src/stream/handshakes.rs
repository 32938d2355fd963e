//! Limits the connections to the agent's port whose TLS handshake is not done.
//!
//! Whoever reaches the port may open connections, every pod of the machine included, and each takes a file of the agent, which needs
//! some itself: without them the fence file cannot be written, and unique pods stop. A handshake takes milliseconds, and whoever does
//! not finish it waits for nothing. So a newcomer is always let in: where its source address has its share already, or all shares are
//! taken, the oldest connection of that source, or of the one with the most, is closed in its place.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::Arc,
};

use mainstay_tls::source_network;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// In all.
const MOST: usize = 256;
const MOST_PER_SOURCE: usize = 32;

#[derive(Default)]
pub struct Handshakes {
    /// By source, the oldest first.
    waiting: Mutex<BTreeMap<IpAddr, VecDeque<CancellationToken>>>,
}

/// The place of one connection, given back when dropped.
pub struct Handshake {
    handshakes: Arc<Handshakes>,
    source: IpAddr,
    evicted: CancellationToken,
}

impl Handshakes {
    pub fn admit(self: &Arc<Self>, source: IpAddr) -> Handshake {
        let (source, evicted) = (source_network(source), CancellationToken::new());
        let mut waiting = self.waiting.lock();
        let count: usize = waiting.values().map(VecDeque::len).sum();
        let own = waiting.get(&source).map_or(0, VecDeque::len);
        let crowded = if own >= MOST_PER_SOURCE {
            Some(source)
        } else if count >= MOST {
            waiting.iter().max_by_key(|(_, of_source)| of_source.len()).map(|(source, _)| *source)
        } else {
            None
        };
        if let Some(oldest) = crowded.and_then(|source| waiting.get_mut(&source)?.pop_front()) {
            oldest.cancel();
        }
        waiting.entry(source).or_default().push_back(evicted.clone());
        drop(waiting);
        Handshake { handshakes: self.clone(), source, evicted }
    }
}

impl Handshake {
    /// Waits until another connection takes this one's place.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        // One that was evicted has no place any more, and its token is cancelled. Those of others are not.
        self.evicted.cancel();
        let mut waiting = self.handshakes.waiting.lock();
        if let Some(of_source) = waiting.get_mut(&self.source) {
            of_source.retain(|token| !token.is_cancelled());
            if of_source.is_empty() {
                waiting.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(last: u8) -> IpAddr {
        [10, 244, 0, last].into()
    }

    #[test]
    fn who_holds_many_gives_way_to_its_own_newcomers_and_to_nobody_elses_harm() {
        let handshakes = Arc::new(Handshakes::default());
        let other = handshakes.admit([192, 0, 2, 1].into());
        let mut held: Vec<Handshake> = (0..MOST_PER_SOURCE).map(|_| handshakes.admit(pod(1))).collect();
        assert!(held.iter().all(|handshake| !handshake.evicted.is_cancelled()));
        held.push(handshakes.admit(pod(1)));
        let evicted: Vec<bool> = held.iter().map(|handshake| handshake.evicted.is_cancelled()).collect();
        assert_eq!(evicted.iter().filter(|evicted| **evicted).count(), 1);
        assert!(evicted[0] && !other.evicted.is_cancelled());
        assert_eq!(handshakes.waiting.lock()[&pod(1)].len(), MOST_PER_SOURCE);
        drop((held, other));
        assert!(handshakes.waiting.lock().is_empty());
    }

    #[test]
    fn all_sources_together_have_no_more_than_the_whole_and_a_newcomer_is_let_in() {
        let handshakes = Arc::new(Handshakes::default());
        let held: Vec<Handshake> =
            (0..=255).flat_map(|n| (0..2).map(move |_| n)).map(|n| handshakes.admit(pod(n))).collect();
        let left = held.iter().filter(|handshake| !handshake.evicted.is_cancelled()).count();
        assert_eq!(left, MOST);
        let node = handshakes.admit([192, 0, 2, 1].into());
        assert!(!node.evicted.is_cancelled());
        assert_eq!(held.iter().filter(|handshake| !handshake.evicted.is_cancelled()).count(), MOST - 1);
    }
}
