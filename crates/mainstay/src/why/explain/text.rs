//! Words that all explanations share: names, ages, counts, events.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::Event,
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};

/// `pod default/web`, `node worker-1`.
pub fn subject(kind: &str, meta: &ObjectMeta) -> String {
    let name = name(meta);
    meta.namespace.as_ref().map_or_else(|| format!("{kind} {name}"), |namespace| format!("{kind} {namespace}/{name}"))
}

pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// kubectl for objects in the namespace of this one.
pub fn kubectl(meta: &ObjectMeta) -> String {
    meta.namespace.as_ref().map_or_else(|| "kubectl".to_owned(), |namespace| format!("kubectl -n {namespace}"))
}

/// `5s`, `2m10s`, `3h5m`, `9d1h`: the two largest units.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).max(SignedDuration::ZERO).as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes}m"),
        (days, hours, _) => format!("{days}d{hours}h"),
    }
}

pub fn age_of(time: Option<&Time>, now: Timestamp) -> Option<String> {
    time.map(|Time(at)| age(*at, now))
}

/// `1 pod`, `2 pods`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// `once`, `5 times`.
pub fn times(number: i32) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times") }
}

/// Without a full stop at the end, so that it can stand within a sentence.
pub fn clause(message: &str) -> &str {
    message.trim().trim_end_matches('.')
}

/// The beginning of a line that may be of any length.
pub fn shortened(line: &str) -> String {
    const LONGEST: usize = 300;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Objects as a shell's `kubectl get` would name them, the first few.
pub fn few(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Why an object that is being deleted is still there, if finalizers are the reason.
pub fn finalizers(meta: &ObjectMeta) -> Option<String> {
    let names: Vec<&str> = meta.finalizers.iter().flatten().map(String::as_str).collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("finalizer {one} is not removed")),
        all => Some(format!("finalizers {} are not removed", all.join(", "))),
    }
}

/// One line per event, oldest first.
pub fn history(events: &[Event], now: Timestamp) -> Vec<String> {
    let mut dated: Vec<(Timestamp, &Event)> =
        events.iter().filter_map(|event| Some((first_time(event)?, event))).collect();
    // Some carry whole seconds only: within one, the resource version tells who came first.
    dated.sort_by_key(|(at, event)| (at.as_second(), resource_version(event)));
    let line = |(at, event): (Timestamp, &Event)| {
        let times = repetitions(event);
        let times = if times > 1 { format!(" ({times} times)") } else { String::new() };
        let (reason, message) = (event.reason.as_deref(), event.message.as_deref());
        format!("{:>8} ago  {}{times}: {}", age(at, now), reason.unwrap_or_default(), message.unwrap_or_default())
    };
    dated.into_iter().map(line).collect()
}

/// The newest event of one of these reasons.
pub fn newest<'a>(events: &'a [Event], reasons: &[&str]) -> Option<&'a Event> {
    let matching = events.iter().filter(|event| event.reason.as_deref().is_some_and(|r| reasons.contains(&r)));
    matching.max_by_key(|event| (last_time(event), resource_version(event)))
}

/// `6 attempts in 37s`, if there was more than one.
pub fn attempts(event: &Event, now: Timestamp) -> Option<String> {
    let (times, first) = (repetitions(event), first_time(event)?);
    (times > 1).then(|| format!("{times} attempts in {}", age(first, now)))
}

fn repetitions(event: &Event) -> i32 {
    event.count.or(event.series.as_ref().and_then(|series| series.count)).unwrap_or(1)
}

fn first_time(event: &Event) -> Option<Timestamp> {
    let first = event.first_timestamp.as_ref().map(|Time(at)| *at);
    first.or_else(|| creation_time(event))
}

fn last_time(event: &Event) -> Option<Timestamp> {
    let observed = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let last = event.last_timestamp.as_ref().map(|Time(at)| *at);
    observed.map(|MicroTime(at)| *at).or(last).or_else(|| creation_time(event))
}

fn creation_time(event: &Event) -> Option<Timestamp> {
    let made = event.event_time.as_ref().map(|MicroTime(at)| *at);
    made.or(event.metadata.creation_timestamp.as_ref().map(|Time(at)| *at))
}

fn resource_version(event: &Event) -> u64 {
    event.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        let ages = ["2026-01-09T23:59:55Z", "2026-01-09T23:57:50Z", "2026-01-09T20:55:00Z", "2026-01-01T00:00:00Z"];
        assert_eq!(ages.map(|at| age(at.parse().unwrap(), now)), ["5s", "2m10s", "3h5m", "9d0h"]);
        assert_eq!(age("2026-01-11T00:00:00Z".parse().unwrap(), now), "0s", "clocks differ");
    }

    #[test]
    fn endless_lines_are_not_printed() {
        assert_eq!(shortened(&"ä".repeat(301)), format!("{}…", "ä".repeat(300)));
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (1..=7).map(|n| format!("p{n}")).collect();
        assert_eq!(few(&names), "p1, p2, p3, p4, p5 and 2 more");
    }
}
