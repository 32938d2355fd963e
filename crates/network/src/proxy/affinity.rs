//! Session affinity of the user-space proxy: which client keeps which backend.
//!
//! Connections of one client reach any of the threads, so they share this. Its size is bounded: when it is full,
//! expired entries are evicted, and if there are none, the quarter that expires next. Those clients are then balanced
//! like new ones, as after a restart of this process.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use crate::services::frontend::Frontend;

const MAX_CLIENTS: usize = 1 << 16;

#[derive(Default)]
pub struct Affinity {
    clients: HashMap<(Frontend, Ipv4Addr), AffinityEntry>,
}

struct AffinityEntry {
    backend: SocketAddrV4,
    until: Instant,
}

impl Affinity {
    pub fn backend(&self, frontend: Frontend, client: Ipv4Addr, now: Instant) -> Option<SocketAddrV4> {
        self.clients.get(&(frontend, client)).filter(|entry| now < entry.until).map(|entry| entry.backend)
    }

    /// Renews the entry from now on.
    pub fn remember(
        &mut self,
        frontend: Frontend,
        client: Ipv4Addr,
        backend: SocketAddrV4,
        now: Instant,
        time: Duration,
    ) {
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&(frontend, client)) {
            self.make_room(now);
        }
        self.clients.insert((frontend, client), AffinityEntry { backend, until: now + time });
    }

    pub fn forget(&mut self, frontend: Frontend) {
        self.clients.retain(|(other, _), _| *other != frontend);
    }

    fn make_room(&mut self, now: Instant) {
        self.clients.retain(|_, entry| now < entry.until);
        if self.clients.len() < MAX_CLIENTS {
            return;
        }
        let mut ends: Vec<Instant> = self.clients.values().map(|entry| entry.until).collect();
        let (_, last_to_go, _) = ends.select_nth_unstable(MAX_CLIENTS / 4);
        let last_to_go = *last_to_go;
        self.clients.retain(|_, entry| entry.until > last_to_go);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Protocol;

    const FRONTEND: Frontend = Frontend { address: None, protocol: Protocol::Tcp, port: 80 };
    const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn affinity_expires_after_the_last_connection() {
        let (mut affinity, start, client) = (Affinity::default(), Instant::now(), Ipv4Addr::LOCALHOST);
        affinity.remember(FRONTEND, client, BACKEND, start, HOUR);
        affinity.remember(FRONTEND, client, BACKEND, start + HOUR / 2, HOUR);
        assert_eq!(affinity.backend(FRONTEND, client, start + HOUR), Some(BACKEND));
        assert_eq!(affinity.backend(FRONTEND, client, start + HOUR * 3 / 2), None);
        assert_eq!(affinity.backend(FRONTEND, Ipv4Addr::UNSPECIFIED, start), None);
    }

    #[test]
    fn entries_that_expire_soonest_are_evicted() {
        let (mut affinity, start) = (Affinity::default(), Instant::now());
        let client = |number: usize| Ipv4Addr::from_bits(number as u32);
        for number in 0..MAX_CLIENTS + 1 {
            affinity.remember(FRONTEND, client(number), BACKEND, start + Duration::from_millis(number as u64), HOUR);
        }
        let now = start + HOUR / 2;
        assert!(affinity.clients.len() <= MAX_CLIENTS);
        assert_eq!(affinity.backend(FRONTEND, client(0), now), None);
        assert_eq!(affinity.backend(FRONTEND, client(MAX_CLIENTS / 2), now), Some(BACKEND));
        assert_eq!(affinity.backend(FRONTEND, client(MAX_CLIENTS), now), Some(BACKEND));
    }
}
