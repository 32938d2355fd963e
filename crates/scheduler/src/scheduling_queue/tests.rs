use proptest::prelude::*;

use super::*;

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 1.0);
const SECOND: Duration = Duration::from_secs(1);

fn queue() -> SchedulingQueue<&'static str, u8> {
    SchedulingQueue::new(BACKOFF, 7)
}

fn created(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn take(queue: &mut SchedulingQueue<&'static str, u8>, now: Instant) -> Vec<&'static str> {
    queue.pop_batch(usize::MAX, now).into_iter().map(|taken| taken.pod).collect()
}

#[test]
fn the_important_come_first_and_then_the_old() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add("young", 0, created(9), 0, now);
    queue.add("old", 0, created(1), 0, now);
    queue.add("late", 0, created(9), 0, now);
    queue.add("important", 5, created(99), 0, now);
    assert_eq!(queue.pop_batch(2, now).len(), 2);
    assert_eq!(take(&mut queue, now), ["young", "late"]);
    assert_eq!(take(&mut queue, now), [""; 0], "all are out");
}

#[test]
fn ceilings_double_up_to_the_longest() {
    let seconds: Vec<u64> = (1..10).map(|n| BACKOFF.ceiling(n).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(BACKOFF.ceiling(u32::MAX), BACKOFF.longest);
}

#[test]
fn who_fits_nowhere_sets_no_timer_while_nothing_changes() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add("a", 0, created(1), 0, now);
    take(&mut queue, now);
    queue.mark_unschedulable(&"a", now);
    assert_eq!(queue.next_deadline(now), None);
    assert_eq!(take(&mut queue, now + 3600 * SECOND), [""; 0]);
    queue.start_backoff_timers();
    let due = queue.next_deadline(now).expect("a timer");
    assert!(due <= now + SECOND);
    assert_eq!(take(&mut queue, due), ["a"]);
    queue.mark_unschedulable(&"a", due);
    assert_eq!(queue.next_deadline(due), None, "nothing changed since");
}

#[test]
fn a_change_that_helps_cuts_the_back_off_short_for_its_class_alone() {
    let (mut queue, now) = (queue(), Instant::now());
    for (pod, class) in [("a", 1), ("b", 1), ("c", 2)] {
        queue.add(pod, 0, created(1), class, now);
    }
    take(&mut queue, now);
    for pod in ["a", "b", "c"] {
        queue.mark_unschedulable(&pod, now);
    }
    let mut asked = vec![];
    let moved = queue.move_to_active(now, |class| {
        asked.push(*class);
        *class == 1
    });
    asked.sort();
    assert_eq!((moved, asked), (2, vec![1, 2]), "a class is judged once");
    assert_eq!(take(&mut queue, now), ["a", "b"]);
    assert!(queue.next_deadline(now).is_some_and(|due| due > now), "the other waits for its back-off");
}

#[test]
fn who_failed_is_tried_again_by_itself() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add("a", 0, created(1), 0, now);
    let mut longest = Duration::ZERO;
    let mut at = now;
    for failures in 1..=40 {
        assert_eq!(take(&mut queue, at), ["a"]);
        queue.mark_failed(&"a", at);
        let waiting = &queue.waiting_pods(at)[0];
        assert!(waiting.delay < BACKOFF.ceiling(failures), "{waiting:?}");
        longest = longest.max(waiting.delay);
        assert_eq!(queue.move_to_active(at, |_| true), 0, "no change makes it active");
        at = queue.next_deadline(at).unwrap();
    }
    assert!(longest > 30 * SECOND, "it uses the whole span: {longest:?}");
}

#[test]
fn what_may_have_changed_unseen_is_tried_in_any_case() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add("a", 0, created(1), 0, now);
    take(&mut queue, now);
    queue.mark_unschedulable(&"a", now);
    queue.retry_after_backoff(&"a");
    let due = queue.next_deadline(now).expect("a timer");
    assert!(due <= now + SECOND && queue.unschedulable.is_empty() && queue.without_timer.is_empty());
    assert_eq!(take(&mut queue, due), ["a"]);
    queue.retry_after_backoff(&"a");
    assert_eq!(queue.next_deadline(due), None, "it is out");
}

#[test]
fn a_pod_that_became_another_is_tried_at_once() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add("a", 0, created(1), 1, now);
    take(&mut queue, now);
    queue.mark_unschedulable(&"a", now);
    queue.add("a", 0, created(1), 1, now);
    assert_eq!(queue.next_deadline(now), None, "the same");
    queue.add("a", 0, created(1), 2, now);
    assert_eq!(take(&mut queue, now), ["a"]);
    queue.add("a", 0, created(1), 3, now);
    assert_eq!(take(&mut queue, now), [""; 0], "while out it is not taken twice");
    queue.activate(&"a", now);
    assert_eq!(take(&mut queue, now), ["a"]);
}

#[test]
fn whoever_leaves_leaves_no_trace() {
    let (mut queue, now) = (queue(), Instant::now());
    for pod in ["ready", "out", "unfit", "timed", "failed"] {
        queue.add(pod, 0, created(1), 0, now);
        if pod != "ready" {
            queue.pop_batch(usize::MAX, now);
        }
        match pod {
            "unfit" => queue.mark_unschedulable(&pod, now),
            "timed" => {
                queue.mark_unschedulable(&pod, now);
                queue.start_backoff_timers();
            }
            "failed" => queue.mark_failed(&pod, now),
            _ => {}
        }
        assert!(queue.remove(&pod) && !queue.remove(&pod));
        assert!(queue.is_empty() && queue.active.is_empty() && queue.timers.is_empty() && queue.by_arrival.is_empty());
        assert!(queue.unschedulable.is_empty() && queue.without_timer.is_empty());
    }
}

#[test]
fn deadlines_and_delays_are_reported_to_people() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add("asleep", 0, created(1), 0, now);
    take(&mut queue, now);
    queue.mark_unschedulable(&"asleep", now);
    queue.add("ready", 9, created(2), 1, now);
    let waiting = queue.waiting_pods(now);
    assert_eq!((waiting[0].pod, waiting[0].due_in, waiting[0].failures), ("ready", Some(Duration::ZERO), 0));
    assert_eq!((waiting[1].pod, waiting[1].due_in, waiting[1].failures), ("asleep", None, 1));
    queue.start_backoff_timers();
    let waiting = queue.waiting_pods(now);
    assert_eq!(waiting[1].due_in, Some(waiting[1].delay));
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, i32, u8),
    Remove(u8),
    Take(usize),
    Unschedulable(u8),
    BackingOff(u8),
    Back(u8),
    Wake(u8),
    Stir,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..12u8;
    let step = prop_oneof![
        (pod.clone(), 0..3, 0..4u8).prop_map(|(pod, priority, class)| Step::Add(pod, priority, class)),
        pod.clone().prop_map(Step::Remove),
        (0..5usize).prop_map(Step::Take),
        pod.clone().prop_map(Step::Unschedulable),
        pod.clone().prop_map(Step::BackingOff),
        pod.prop_map(Step::Back),
        (0..4u8).prop_map(Step::Wake),
        Just(Step::Stir),
        (0..5_000u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Whatever happens: everybody is in exactly one place, nobody is lost, nobody is taken twice, and after
    /// a change that helps everybody all but those out and those that failed are ready.
    #[test]
    fn nobody_is_lost_or_taken_twice(steps in steps()) {
        let mut queue: SchedulingQueue<u8, u8> = SchedulingQueue::new(BACKOFF, 1);
        let mut out = BTreeSet::new();
        let mut known = BTreeSet::new();
        let mut now = Instant::now();
        for step in steps {
            match step {
                Step::Add(pod, priority, class) => {
                    queue.add(pod, priority, created(i64::from(pod)), class, now);
                    known.insert(pod);
                }
                Step::Remove(pod) => {
                    prop_assert_eq!(queue.remove(&pod), known.remove(&pod));
                    out.remove(&pod);
                }
                Step::Take(most) => {
                    let taken = queue.pop_batch(most, now);
                    prop_assert!(taken.len() <= most);
                    for PoppedPod { pod, .. } in taken {
                        prop_assert!(known.contains(&pod) && out.insert(pod), "{} twice", pod);
                    }
                }
                Step::Unschedulable(pod) => {
                    queue.mark_unschedulable(&pod, now);
                    out.remove(&pod);
                }
                Step::BackingOff(pod) => {
                    queue.mark_failed(&pod, now);
                    out.remove(&pod);
                }
                Step::Back(pod) => {
                    queue.activate(&pod, now);
                    out.remove(&pod);
                }
                Step::Wake(class) => {
                    queue.move_to_active(now, |other| *other == class);
                }
                Step::Stir => queue.start_backoff_timers(),
                Step::Pass(millis) => now += Duration::from_millis(millis),
            }
            let count = |wanted: fn(QueueState) -> bool| queue.entries.values().filter(|e| wanted(e.state)).count();
            prop_assert_eq!(queue.len(), known.len());
            prop_assert_eq!(queue.by_arrival.len(), known.len());
            prop_assert_eq!(queue.active.len(), count(|state| state == QueueState::Active));
            prop_assert_eq!(queue.unschedulable.values().map(BTreeSet::len).sum::<usize>(), count(|s| matches!(s, QueueState::Unschedulable { .. })));
            prop_assert_eq!(queue.without_timer.len(), count(|state| state == QueueState::Unschedulable { timer: false }));
            prop_assert_eq!(queue.timers.len(), count(|s| matches!(s, QueueState::BackingOff | QueueState::Unschedulable { timer: true })));
            prop_assert_eq!(count(|state| state == QueueState::InFlight), out.len());
        }
        queue.move_to_active(now, |_| true);
        now += BACKOFF.longest;
        let taken = queue.pop_batch(usize::MAX, now);
        prop_assert_eq!(taken.len(), known.len() - out.len());
        let ranks: Vec<QueueOrder> = taken.iter().map(|taken| queue.entries[&taken.pod].order).collect();
        prop_assert!(ranks.is_sorted());
    }
}
