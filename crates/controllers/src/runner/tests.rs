use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::shell::Plan;

/// Counts its turns; fails the first few, and knows how many ran at once for one key.
#[derive(Default)]
struct Counter {
    turns: AtomicUsize,
    failures_left: AtomicUsize,
    at_work: AtomicUsize,
    most_at_work: AtomicUsize,
    takes: Duration,
    again_after: Option<i64>,
}

impl Controller for Counter {
    const NAME: &'static str = "counter";
    type Key = u32;
    type World = Option<i64>;
    type Action = ();
    type Status = ();

    async fn observe(&self, _key: &u32) -> Result<Option<Self::World>, Failure> {
        self.turns.fetch_add(1, Ordering::SeqCst);
        let now = self.at_work.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_work.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        self.at_work.fetch_sub(1, Ordering::SeqCst);
        let fail = self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match fail {
            Ok(_) => Err(Failure::new("fail on purpose", kube::Error::TlsRequired)),
            Err(_) => Ok(Some(self.again_after)),
        }
    }

    fn plan(world: &Self::World, now: Timestamp) -> Plan<(), ()> {
        Plan { wake_at: world.map(|s| now + jiff::SignedDuration::from_secs(s)), ..Plan::default() }
    }

    async fn apply(&self, _key: &u32, _action: ()) -> Result<(), Failure> {
        Ok(())
    }
}

struct Running {
    counter: Arc<Counter>,
    queue: Arc<Queue<u32>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn start(counter: Counter) -> Running {
    let (counter, queue, stop) = (Arc::new(counter), Queue::new(), CancellationToken::new());
    let task = tokio::spawn(run(counter.clone(), queue.clone(), Limits::default(), stop.clone()));
    Running { counter, queue, stop, task }
}

impl Running {
    async fn after(&self, seconds: u64) -> usize {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        self.counter.turns.load(Ordering::SeqCst)
    }
}

// Time is paused in these tests: sleeping is how it advances.

#[tokio::test(start_paused = true)]
async fn one_key_has_one_runner_and_wakes_while_it_works_are_one_more_turn() {
    let running = start(Counter { takes: Duration::from_secs(10), ..Counter::default() });
    running.queue.wake(1);
    assert_eq!(running.after(1).await, 1);
    for _ in 0..5 {
        running.queue.wake(1);
    }
    assert_eq!(running.after(30).await, 2);
    assert_eq!(running.counter.most_at_work.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn no_more_turns_than_allowed_are_under_way() {
    let running = start(Counter { takes: Duration::from_secs(1), ..Counter::default() });
    (0..50).for_each(|key| running.queue.wake(key));
    assert_eq!(running.after(60).await, 50);
    assert_eq!(running.counter.most_at_work.load(Ordering::SeqCst), Limits::default().width);
}

#[tokio::test(start_paused = true)]
async fn failures_pause_a_second_then_twice_as_long_up_to_a_minute() {
    let running = start(Counter { failures_left: AtomicUsize::new(100), ..Counter::default() });
    running.queue.wake(1);
    let mut seen = Vec::new();
    for _ in 0..32 {
        seen.push(running.after(1).await);
    }
    // at 0, 1, 3, 7, 15, 31 seconds
    assert_eq!([seen[0], seen[1], seen[3], seen[7], seen[15], seen[31]], [1, 2, 3, 4, 5, 6]);
    let before = running.after(600).await;
    assert_eq!(running.after(600).await - before, 10);
}

#[tokio::test(start_paused = true)]
async fn waking_a_key_cuts_its_pause_short() {
    let running = start(Counter { failures_left: AtomicUsize::new(6), ..Counter::default() });
    running.queue.wake(1);
    assert_eq!(running.after(32).await, 6);
    running.queue.wake(1);
    assert_eq!(running.after(1).await, 7);
    assert_eq!(running.after(3600).await, 7, "a success ends the retries");
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_when_to_look_again() {
    let running = start(Counter { again_after: Some(30), ..Counter::default() });
    running.queue.wake(1);
    assert_eq!(running.after(100).await, 4);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_the_turn_under_way_and_starts_no_other() {
    let running = start(Counter { takes: Duration::from_secs(10), ..Counter::default() });
    running.queue.wake(1);
    assert_eq!(running.after(1).await, 1);
    running.stop.cancel();
    running.queue.wake(2);
    running.task.await.unwrap();
    assert_eq!(running.counter.turns.load(Ordering::SeqCst), 1);
    assert_eq!(running.counter.at_work.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_queue_remembers_nothing() {
    let running = start(Counter::default());
    (0..100).for_each(|key| running.queue.wake(key));
    assert_eq!(running.after(1).await, 100);
    let state = running.queue.state.lock();
    assert!(state.slots.is_empty() && state.due.is_empty());
}
