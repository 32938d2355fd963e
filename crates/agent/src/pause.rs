//! How long a watch that fails waits before it is tried again.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

const SHORTEST: Duration = Duration::from_millis(100);
/// Short enough that a server which comes back finds all machines listening before much has changed.
const LONGEST: Duration = Duration::from_secs(1);
/// A failure so long after the last one is a new one.
const APART: Duration = Duration::from_secs(5);

/// Doubles from one failure to the next. That a watch begins anew does not count as success: it does so before every attempt.
pub struct Pause {
    next: Duration,
    last: Option<Instant>,
}

impl Default for Pause {
    fn default() -> Self {
        Self { next: SHORTEST, last: None }
    }
}

impl Iterator for Pause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now - last > APART) {
            self.next = SHORTEST;
        }
        let next = (self.next * 2).min(LONGEST);
        Some(std::mem::replace(&mut self.next, next))
    }
}

impl Backoff for Pause {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_second_and_begin_anew_after_a_while_without_failures() {
        let mut pause = Pause::default();
        let mut waited = Vec::new();
        for _ in 0..6 {
            let next = pause.next().unwrap();
            waited.push(next.as_millis());
            tokio::time::sleep(next).await;
            pause.reset();
        }
        assert_eq!(waited, [100, 200, 400, 800, 1000, 1000]);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(pause.next(), Some(SHORTEST));
    }
}
