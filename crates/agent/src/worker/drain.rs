//! How long a pod that ends keeps running for connections that may still be sent to it. Pure.
//!
//! Other machines get some time to say that they have stopped. It begins when this machine's own table no longer has the pod: that may be
//! late, while another server takes over from the one that would have said so. In any case no more than half of the pod's grace is waited.

use std::time::Duration;

use jiff::Timestamp;

/// How often this machine's own table is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long others get.
    patience: Duration,
    /// When this machine was last seen to send to the pod, or the pod began to end.
    sent_at: Timestamp,
    latest: Timestamp,
}

impl Drain {
    /// Nothing is waited for without patience, or if nobody sends to the pod.
    pub fn begin(now: Timestamp, deadline: Timestamp, patience: Duration, is_reached: bool) -> Self {
        let left = Duration::try_from(now.until(deadline).unwrap_or_default()).unwrap_or_default();
        let longest = if patience.is_zero() || !is_reached { Duration::ZERO } else { left / 2 };
        Self { patience, sent_at: now, latest: now + longest }
    }

    /// When to stop waiting, or to look again.
    pub fn until(&mut self, now: Timestamp, sends: bool) -> Timestamp {
        let until = if sends {
            self.sent_at = now;
            now + self.patience.min(LOOK_AGAIN)
        } else {
            self.sent_at + self.patience
        };
        until.min(self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn at_second(seconds: f64) -> Timestamp {
        Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap()
    }

    #[test]
    fn others_get_their_time_from_when_this_machine_has_stopped() {
        let mut drain = Drain::begin(at_second(0.0), at_second(30.0), PATIENCE, true);
        assert_eq!(drain.until(at_second(0.0), false), at_second(5.0), "it has heard at once");
        assert_eq!(drain.until(at_second(0.0), true), at_second(0.5));
        assert_eq!(drain.until(at_second(8.0), true), at_second(8.5), "nobody said so for long");
        assert_eq!(drain.until(at_second(8.5), false), at_second(13.0));
    }

    #[test]
    fn half_of_the_grace_is_left_for_stopping() {
        let mut drain = Drain::begin(at_second(0.0), at_second(30.0), PATIENCE, true);
        assert_eq!(drain.until(at_second(14.8), true), at_second(15.0));
        assert_eq!(drain.until(at_second(15.0), true), at_second(15.0), "it is over");
        let mut short = Drain::begin(at_second(0.0), at_second(4.0), PATIENCE, true);
        assert_eq!(short.until(at_second(0.0), false), at_second(2.0));
    }

    #[test]
    fn who_is_not_reached_or_must_not_wait_does_not() {
        for (patience, is_reached) in [(PATIENCE, false), (Duration::ZERO, true)] {
            assert_eq!(
                Drain::begin(at_second(0.0), at_second(30.0), patience, is_reached).until(at_second(0.0), true),
                at_second(0.0)
            );
        }
    }
}
