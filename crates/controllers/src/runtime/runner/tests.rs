use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;

use super::*;
use crate::runtime::Plan;

/// Counts its reconciles; fails the first few, and knows how many ran at once for one key.
#[derive(Default)]
struct Counter {
    reconciles: AtomicUsize,
    failures_left: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
    takes: Duration,
    again_after: Option<i64>,
}

impl Controller for Counter {
    const NAME: &'static str = "counter";
    type Key = u32;
    type World = Option<i64>;
    type Action = ();
    type Outcome = ();
    type Status = ();

    async fn observe(&self, _key: &u32) -> Result<Option<Self::World>, ApiError> {
        self.reconciles.fetch_add(1, Ordering::SeqCst);
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        let fail = self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match fail {
            Ok(_) => Err(ApiError::new("fail on purpose", kube::Error::TlsRequired)),
            Err(_) => Ok(Some(self.again_after)),
        }
    }

    fn plan(world: &Self::World, now: Timestamp) -> Plan<(), ()> {
        Plan { requeue_at: world.map(|s| now + jiff::SignedDuration::from_secs(s)), ..Plan::default() }
    }

    async fn apply(&self, _key: &u32, _action: ()) -> Result<(), ApiError> {
        Ok(())
    }
}

struct Running {
    counter: Arc<Counter>,
    queue: Arc<WorkQueue<u32>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn start(counter: Counter) -> Running {
    let metrics = ControllerMetrics::default();
    let (counter, queue, stop) = (Arc::new(counter), WorkQueue::new("counter", &metrics), CancellationToken::new());
    let task = {
        let (counter, queue, stop) = (counter.clone(), queue.clone(), stop.clone());
        tokio::spawn(async move { run(&metrics, &Clock::default(), counter, queue, Limits::default(), stop).await })
    };
    Running { counter, queue, stop, task }
}

impl Running {
    async fn after(&self, seconds: u64) -> usize {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        self.counter.reconciles.load(Ordering::SeqCst)
    }
}

// Time is paused in these tests: sleeping is how it advances.

#[tokio::test(start_paused = true)]
async fn one_key_has_one_runner_and_adds_while_it_runs_are_one_more_reconcile() {
    let running = start(Counter { takes: Duration::from_secs(10), ..Counter::default() });
    running.queue.add(1);
    assert_eq!(running.after(1).await, 1);
    for _ in 0..5 {
        running.queue.add(1);
    }
    assert_eq!(running.after(30).await, 2);
    assert_eq!(running.counter.most_running.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn no_more_reconciles_than_allowed_are_under_way() {
    let running = start(Counter { takes: Duration::from_secs(1), ..Counter::default() });
    (0..50).for_each(|key| running.queue.add(key));
    assert_eq!(running.after(60).await, 50);
    assert_eq!(running.counter.most_running.load(Ordering::SeqCst), Limits::default().concurrent_reconciles);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_a_second_then_twice_as_long_up_to_a_minute() {
    let running = start(Counter { failures_left: AtomicUsize::new(100), ..Counter::default() });
    running.queue.add(1);
    let mut observed = Vec::new();
    for _ in 0..32 {
        observed.push(running.after(1).await);
    }
    // at 0, 1, 3, 7, 15, 31 seconds
    assert_eq!([observed[0], observed[1], observed[3], observed[7], observed[15], observed[31]], [1, 2, 3, 4, 5, 6]);
    let before = running.after(600).await;
    assert_eq!(running.after(600).await - before, 10);
}

#[tokio::test(start_paused = true)]
async fn adding_a_key_cuts_its_backoff_short() {
    let running = start(Counter { failures_left: AtomicUsize::new(6), ..Counter::default() });
    running.queue.add(1);
    assert_eq!(running.after(32).await, 6);
    running.queue.add(1);
    assert_eq!(running.after(1).await, 7);
    assert_eq!(running.after(3600).await, 7, "a success ends the retries");
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_when_to_reconcile_again() {
    let running = start(Counter { again_after: Some(30), ..Counter::default() });
    running.queue.add(1);
    assert_eq!(running.after(100).await, 4);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_the_reconcile_under_way_and_starts_no_other() {
    let running = start(Counter { takes: Duration::from_secs(10), ..Counter::default() });
    running.queue.add(1);
    assert_eq!(running.after(1).await, 1);
    running.stop.cancel();
    running.queue.add(2);
    running.task.await.unwrap();
    assert_eq!(running.counter.reconciles.load(Ordering::SeqCst), 1);
    assert_eq!(running.counter.running.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_queue_remembers_nothing() {
    let running = start(Counter::default());
    (0..100).for_each(|key| running.queue.add(key));
    assert_eq!(running.after(1).await, 100);
    assert!(running.queue.is_idle());
}
