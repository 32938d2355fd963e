//! A circuit breaker per webhook backend: one that cannot be reached is not waited for by every request.
//!
//! After a few failures in a row the circuit opens: calls fail at once with the last reason. From time to time one call is
//! let through; if it succeeds, the circuit closes. Only failures to reach a backend count, never what it answers.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Failures in a row that open the circuit.
const THRESHOLD: u32 = 5;
/// How long an open circuit refuses calls before it lets one through.
const COOLDOWN: Duration = Duration::from_secs(2);
/// Backends that are remembered; of more, those without an open circuit are forgotten.
const MOST_BACKENDS: usize = 1024;

#[derive(Default)]
struct Circuit {
    failures: u32,
    open_until: Option<Instant>,
    reason: String,
}

#[derive(Default)]
pub struct CircuitBreaker {
    circuits: Mutex<HashMap<String, Circuit>>,
}

impl CircuitBreaker {
    /// Why a backend is not called now, if it is known to be dead.
    pub fn open_reason(&self, backend: &str, now: Instant) -> Option<String> {
        let mut circuits = self.circuits.lock();
        let circuit = circuits.get_mut(backend)?;
        if now < circuit.open_until? {
            return Some(circuit.reason.clone());
        }
        circuit.open_until = Some(now + COOLDOWN); // this call tries; others wait for its outcome
        None
    }

    pub fn record_success(&self, backend: &str) {
        self.circuits.lock().remove(backend);
    }

    pub fn record_failure(&self, backend: &str, reason: &str, now: Instant) {
        let mut circuits = self.circuits.lock();
        if circuits.len() >= MOST_BACKENDS {
            circuits.retain(|_, circuit| circuit.open_until.is_some_and(|until| now < until));
        }
        if circuits.len() >= MOST_BACKENDS {
            return;
        }
        let circuit = circuits.entry(backend.to_owned()).or_default();
        circuit.failures += 1;
        reason.clone_into(&mut circuit.reason);
        if circuit.failures >= THRESHOLD {
            circuit.open_until = Some(now + COOLDOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_backend_is_tried_by_one_call_at_a_time() {
        let (breaker, start) = (CircuitBreaker::default(), Instant::now());
        for _ in 0..THRESHOLD {
            assert_eq!(breaker.open_reason("a", start), None);
            breaker.record_failure("a", "refused", start);
        }
        assert_eq!(breaker.open_reason("a", start).as_deref(), Some("refused"));
        assert_eq!(breaker.open_reason("b", start), None, "another backend");
        let later = start + COOLDOWN;
        assert_eq!(breaker.open_reason("a", later), None, "one tries");
        assert!(breaker.open_reason("a", later).is_some(), "and only one");
        breaker.record_success("a");
        assert_eq!(breaker.open_reason("a", later), None);
    }

    #[test]
    fn very_many_backends_take_bounded_memory() {
        let (breaker, now) = (CircuitBreaker::default(), Instant::now());
        for index in 0..3 * MOST_BACKENDS {
            breaker.record_failure(&index.to_string(), "x", now);
        }
        assert!(breaker.circuits.lock().len() <= MOST_BACKENDS);
    }
}
