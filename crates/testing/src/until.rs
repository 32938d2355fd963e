//! Waiting for a condition, with a deadline whose message names the condition and the caller.
//!
//! A test that waits for a state passes as soon as the state is there, so the deadline can be generous: it bounds a test
//! that fails, and says nothing about speed.

use std::{
    panic::Location,
    thread,
    time::{Duration, Instant},
};

/// The longest wait for one condition: four times what a pod may take to end by default.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// How long a thread sleeps before it looks again: most looks run a program.
const INTERVAL: Duration = Duration::from_millis(20);
/// The same within a process, where a look costs little.
const ASYNC_INTERVAL: Duration = Duration::from_millis(5);

/// What a look returns: whether the condition holds, or what was waited for.
pub trait Condition {
    type Found;

    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Looks until the condition holds, and panics with `what` after [`DEADLINE`].
#[track_caller]
pub fn eventually<C: Condition>(what: &str, mut look: impl FnMut() -> C) -> C::Found {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        thread::sleep(INTERVAL);
    }
}

/// [`eventually`] on tokio's clock, which may be paused. A look that hangs is ended at the deadline too.
#[track_caller]
pub fn until<C: Condition>(what: &str, mut look: impl AsyncFnMut() -> C) -> impl Future<Output = C::Found> {
    let caller = Location::caller();
    async move {
        let wait = async {
            loop {
                if let Some(found) = look().await.found() {
                    return found;
                }
                tokio::time::sleep(ASYNC_INTERVAL).await;
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(found) => found,
            Err(_) => panic!("not within {DEADLINE:?}: {what} (waited for at {caller})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for_is_returned_once_it_is_there() {
        let mut looks = 0;
        let third = until("a third look", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third.await, 3);
        until("what holds at once", async || true).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 120s: the moon (waited for at crates/testing/src/until.rs")]
    async fn a_look_that_hangs_fails_at_the_deadline_and_names_what_was_waited_for() {
        until("the moon", async || std::future::pending::<bool>().await).await;
    }

    #[test]
    fn a_thread_waits_likewise() {
        let mut looks = 0;
        let second = eventually("a second look", || {
            looks += 1;
            (looks == 2).then_some("found")
        });
        assert_eq!(second, "found");
    }
}
