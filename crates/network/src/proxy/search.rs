//! The search of one connection for a backend. Pure.
//!
//! Backends are tried one after the other, each once per round. If all of them failed, the connection waits and
//! tries again: right after a replacement has started, the kernel still refuses for it until its process
//! listens. The first pause is short because that is a matter of milliseconds, the last is half a second because a
//! thousand connections that wait must not keep a machine busy. A change of the backends ends every pause.

use std::{
    net::SocketAddrV4,
    sync::Arc,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long a backend may take to answer while there is another to try. The kernel repeats a lost packet after one
/// second; the next attempt does as well.
const ANSWER: Duration = Duration::from_secs(1);
/// The same for the last one: a packet may be lost once.
const LAST_ANSWER: Duration = Duration::from_secs(3);
/// How long backends that were not tried yet are tried at all, if nothing is held for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a frontend says about its connections.
#[derive(Clone, Debug)]
pub struct Plan {
    pub backends: Arc<[SocketAddrV4]>,
    pub affinity: Option<Duration>,
    /// Zero: refused at once.
    pub hold: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Try { backend: SocketAddrV4, within: Duration },
    Wait { until: Instant },
    Refuse,
}

#[derive(Debug)]
pub struct Search {
    accepted: Instant,
    round: Option<Arc<[SocketAddrV4]>>,
    first: u32,
    tried: u32,
    /// After a round in vain, as long as the backends are the same.
    pause: Option<Duration>,
    /// Clients stay with their backends here.
    stays: bool,
}

impl Search {
    pub fn new(accepted: Instant) -> Self {
        Self { accepted, round: None, first: 0, tried: 0, pause: None, stays: false }
    }

    /// What to do now that nothing is under way. `first` names the backend to begin with.
    pub fn next(&mut self, plan: &Plan, now: Instant, first: impl FnOnce(&[SocketAddrV4]) -> usize) -> Next {
        let waited = now.duration_since(self.accepted);
        if plan.backends.is_empty() {
            self.round = None;
            return if waited < plan.hold { Next::Wait { until: self.accepted + plan.hold } } else { Next::Refuse };
        }
        if !self.round.as_ref().is_some_and(|round| Arc::ptr_eq(round, &plan.backends)) {
            self.round = Some(plan.backends.clone());
            (self.first, self.tried, self.pause) = (first(&plan.backends) as u32, 0, None);
            self.stays = plan.affinity.is_some();
        }
        let count = plan.backends.len() as u32;
        let patience = if self.pause.is_none() { plan.hold.max(PATIENCE) } else { plan.hold };
        if self.tried < count && waited < patience {
            let backend = plan.backends[((self.first + self.tried) % count) as usize];
            self.tried += 1;
            let within = if self.tried < count { ANSWER } else { LAST_ANSWER };
            return Next::Try { backend, within };
        }
        if waited >= plan.hold {
            return Next::Refuse;
        }
        let pause = self.pause.map_or(FIRST_PAUSE, |last| (last * 2).min(LAST_PAUSE));
        (self.pause, self.tried) = (Some(pause), 0);
        Next::Wait { until: (now + pause).min(self.accepted + plan.hold) }
    }

    /// Whether the next connection of this client is to go to the same backend.
    pub fn stays(&self) -> bool {
        self.stays
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const A: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 1), 80);
    const B: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 2), 80);

    fn plan(backends: &[SocketAddrV4], hold: u64) -> Plan {
        Plan { backends: backends.into(), affinity: None, hold: Duration::from_millis(hold) }
    }

    fn after(start: Instant, milliseconds: u64) -> Instant {
        start + Duration::from_millis(milliseconds)
    }

    fn tries(next: Next) -> SocketAddrV4 {
        match next {
            Next::Try { backend, .. } => backend,
            other => panic!("{other:?} instead of an attempt"),
        }
    }

    #[test]
    fn without_backends_it_waits_out_the_hold_and_not_longer() {
        let start = Instant::now();
        let mut search = Search::new(start);
        let plan = plan(&[], 100);
        assert_eq!(search.next(&plan, start, |_| 0), Next::Wait { until: after(start, 100) });
        assert_eq!(search.next(&plan, after(start, 100), |_| 0), Next::Refuse);
    }

    #[test]
    fn without_a_hold_it_is_refused_at_once() {
        let start = Instant::now();
        assert_eq!(Search::new(start).next(&plan(&[], 0), start, |_| 0), Next::Refuse);
    }

    #[test]
    fn every_backend_is_tried_once_before_it_is_refused() {
        let start = Instant::now();
        let (mut search, plan) = (Search::new(start), plan(&[A, B], 0));
        assert_eq!(search.next(&plan, start, |_| 1), Next::Try { backend: B, within: ANSWER });
        assert_eq!(search.next(&plan, after(start, 900), |_| 1), Next::Try { backend: A, within: LAST_ANSWER });
        assert_eq!(search.next(&plan, after(start, 950), |_| 1), Next::Refuse);
    }

    #[test]
    fn pauses_between_rounds_grow_to_half_a_second_and_end_with_the_hold() {
        let start = Instant::now();
        let (mut search, plan) = (Search::new(start), plan(&[A], 2000));
        let (mut now, mut pauses) = (start, Vec::new());
        loop {
            match search.next(&plan, now, |_| 0) {
                Next::Try { .. } => {}
                Next::Wait { until } => {
                    pauses.push(until.duration_since(now).as_millis());
                    now = until;
                }
                Next::Refuse => break,
            }
        }
        assert_eq!(pauses, [50, 100, 200, 400, 500, 500, 250]);
        assert_eq!(now, after(start, 2000));
    }

    #[test]
    fn a_changed_set_of_backends_is_tried_without_a_pause() {
        let start = Instant::now();
        let (mut search, before) = (Search::new(start), plan(&[A], 1000));
        assert_eq!(tries(search.next(&before, start, |_| 0)), A);
        assert!(matches!(search.next(&before, after(start, 1), |_| 0), Next::Wait { .. }));
        assert_eq!(tries(search.next(&plan(&[B], 1000), after(start, 2), |_| 0)), B);
    }

    proptest! {
        /// Whatever changes while it searches: nobody is refused within the hold, nobody waits beyond it, and no backend is
        /// tried twice without a pause.
        #[test]
        fn it_ends_with_the_hold_and_not_before(
            hold in 0u64..20_000,
            steps in vec((vec(1u8..6, 0..4), 1u64..3_000, any::<bool>()), 1..60),
        ) {
            let start = Instant::now();
            let (mut search, mut now) = (Search::new(start), start);
            for (hosts, failing, changes) in steps {
                let mut backends: Vec<_> = hosts.iter().map(|host| SocketAddrV4::new([10, 0, 0, *host].into(), 80)).collect();
                backends.dedup();
                let plan = plan(&backends, hold);
                let mut tried = Vec::new();
                loop {
                    match search.next(&plan, now, |backends| backends.len() - 1) {
                        Next::Try { backend, within } => {
                            prop_assert!(tried.len() < backends.len() && backends.contains(&backend));
                            tried.push(backend);
                            now += within.min(Duration::from_millis(failing));
                        }
                        Next::Wait { until } => {
                            prop_assert!(until > now && until <= after(start, hold));
                            tried.clear();
                            now = if changes { now + (until - now) / 2 } else { until };
                            if changes {
                                break;
                            }
                        }
                        Next::Refuse => {
                            prop_assert!(now >= after(start, hold));
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}
