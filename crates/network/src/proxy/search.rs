//! Which backend a connection tries next, and how long it waits. Pure.
//!
//! Backends are tried one after the other, each once per round. If all of them failed, the connection waits and tries
//! again: right after a replacement has started, its kernel still answers with RST until the process listens. The
//! first pause is short because that is a matter of milliseconds, the last is half a second because a thousand
//! waiting connections must not keep a machine busy. A change of the backends ends every pause.

use std::{
    net::SocketAddrV4,
    sync::Arc,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// Timeout of a connection attempt while there is another backend to try. The kernel retransmits a lost SYN after one
/// second; the next attempt is as good.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for the last backend: one SYN may be lost.
pub const LAST_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long untried backends are tried even if the hold time is shorter.
const MIN_SEARCH_TIME: Duration = Duration::from_secs(5);

/// What the table has for a frontend.
#[derive(Clone, Debug)]
pub struct FrontendPolicy {
    pub backends: Arc<[SocketAddrV4]>,
    pub affinity: Option<Duration>,
    /// Zero: reset at once.
    pub hold: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    Connect { backend: SocketAddrV4, within: Duration },
    Wait { until: Instant },
    Reset,
}

#[derive(Debug)]
pub struct BackendSearch {
    accepted: Instant,
    round: Option<Arc<[SocketAddrV4]>>,
    first: u32,
    tried: u32,
    /// Set after a round in which all failed, as long as the backends are the same.
    pause: Option<Duration>,
    /// The frontend has session affinity.
    has_affinity: bool,
}

impl BackendSearch {
    pub fn new(accepted: Instant) -> Self {
        Self { accepted, round: None, first: 0, tried: 0, pause: None, has_affinity: false }
    }

    /// The next step while no attempt is under way. `first` chooses the backend to begin with.
    pub fn next(
        &mut self,
        policy: &FrontendPolicy,
        now: Instant,
        first: impl FnOnce(&[SocketAddrV4]) -> usize,
    ) -> SearchStep {
        let waited = now.duration_since(self.accepted);
        if policy.backends.is_empty() {
            self.round = None;
            return if waited < policy.hold {
                SearchStep::Wait { until: self.accepted + policy.hold }
            } else {
                SearchStep::Reset
            };
        }
        if !self.round.as_ref().is_some_and(|round| Arc::ptr_eq(round, &policy.backends)) {
            self.round = Some(policy.backends.clone());
            (self.first, self.tried, self.pause) = (first(&policy.backends) as u32, 0, None);
            self.has_affinity = policy.affinity.is_some();
        }
        let count = policy.backends.len() as u32;
        let patience = if self.pause.is_none() { policy.hold.max(MIN_SEARCH_TIME) } else { policy.hold };
        if self.tried < count && waited < patience {
            let backend = policy.backends[((self.first + self.tried) % count) as usize];
            self.tried += 1;
            let within = if self.tried < count { CONNECT_TIMEOUT } else { LAST_CONNECT_TIMEOUT };
            return SearchStep::Connect { backend, within };
        }
        if waited >= policy.hold {
            return SearchStep::Reset;
        }
        let pause = self.pause.map_or(FIRST_PAUSE, |last| (last * 2).min(LAST_PAUSE));
        (self.pause, self.tried) = (Some(pause), 0);
        SearchStep::Wait { until: (now + pause).min(self.accepted + policy.hold) }
    }

    /// Whether the frontend has session affinity.
    pub fn has_affinity(&self) -> bool {
        self.has_affinity
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const A: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 1), 80);
    const B: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 2), 80);

    fn policy(backends: &[SocketAddrV4], hold: u64) -> FrontendPolicy {
        FrontendPolicy { backends: backends.into(), affinity: None, hold: Duration::from_millis(hold) }
    }

    fn after(start: Instant, milliseconds: u64) -> Instant {
        start + Duration::from_millis(milliseconds)
    }

    fn tries(next: SearchStep) -> SocketAddrV4 {
        match next {
            SearchStep::Connect { backend, .. } => backend,
            other => panic!("{other:?} instead of an attempt"),
        }
    }

    #[test]
    fn without_backends_it_waits_out_the_hold_and_not_longer() {
        let start = Instant::now();
        let mut search = BackendSearch::new(start);
        let policy = policy(&[], 100);
        assert_eq!(search.next(&policy, start, |_| 0), SearchStep::Wait { until: after(start, 100) });
        assert_eq!(search.next(&policy, after(start, 100), |_| 0), SearchStep::Reset);
    }

    #[test]
    fn without_a_hold_it_is_reset_at_once() {
        let start = Instant::now();
        assert_eq!(BackendSearch::new(start).next(&policy(&[], 0), start, |_| 0), SearchStep::Reset);
    }

    #[test]
    fn every_backend_is_tried_once_before_the_reset() {
        let start = Instant::now();
        let (mut search, policy) = (BackendSearch::new(start), policy(&[A, B], 0));
        assert_eq!(search.next(&policy, start, |_| 1), SearchStep::Connect { backend: B, within: CONNECT_TIMEOUT });
        assert_eq!(
            search.next(&policy, after(start, 900), |_| 1),
            SearchStep::Connect { backend: A, within: LAST_CONNECT_TIMEOUT }
        );
        assert_eq!(search.next(&policy, after(start, 950), |_| 1), SearchStep::Reset);
    }

    #[test]
    fn pauses_between_rounds_grow_to_half_a_second_and_end_with_the_hold() {
        let start = Instant::now();
        let (mut search, policy) = (BackendSearch::new(start), policy(&[A], 2000));
        let (mut now, mut pauses) = (start, Vec::new());
        loop {
            match search.next(&policy, now, |_| 0) {
                SearchStep::Connect { .. } => {}
                SearchStep::Wait { until } => {
                    pauses.push(until.duration_since(now).as_millis());
                    now = until;
                }
                SearchStep::Reset => break,
            }
        }
        assert_eq!(pauses, [50, 100, 200, 400, 500, 500, 250]);
        assert_eq!(now, after(start, 2000));
    }

    #[test]
    fn a_changed_set_of_backends_is_tried_without_a_pause() {
        let start = Instant::now();
        let (mut search, before) = (BackendSearch::new(start), policy(&[A], 1000));
        assert_eq!(tries(search.next(&before, start, |_| 0)), A);
        assert!(matches!(search.next(&before, after(start, 1), |_| 0), SearchStep::Wait { .. }));
        assert_eq!(tries(search.next(&policy(&[B], 1000), after(start, 2), |_| 0)), B);
    }

    proptest! {
        /// Whatever changes meanwhile: no connection is reset within the hold time or waits beyond it, and no backend
        /// is tried twice without a pause.
        #[test]
        fn it_ends_with_the_hold_and_not_before(
            hold in 0u64..20_000,
            steps in vec((vec(1u8..6, 0..4), 1u64..3_000, any::<bool>()), 1..60),
        ) {
            let start = Instant::now();
            let (mut search, mut now) = (BackendSearch::new(start), start);
            for (hosts, failing, changes) in steps {
                let mut backends: Vec<_> = hosts.iter().map(|host| SocketAddrV4::new([10, 0, 0, *host].into(), 80)).collect();
                backends.dedup();
                let policy = policy(&backends, hold);
                let mut tried = Vec::new();
                loop {
                    match search.next(&policy, now, |backends| backends.len() - 1) {
                        SearchStep::Connect { backend, within } => {
                            prop_assert!(tried.len() < backends.len() && backends.contains(&backend));
                            tried.push(backend);
                            now += within.min(Duration::from_millis(failing));
                        }
                        SearchStep::Wait { until } => {
                            prop_assert!(until > now && until <= after(start, hold));
                            tried.clear();
                            now = if changes { now + (until - now) / 2 } else { until };
                            if changes {
                                break;
                            }
                        }
                        SearchStep::Reset => {
                            prop_assert!(now >= after(start, hold));
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}
