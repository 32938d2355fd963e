//! Correlation of events: which occurrences share an event, and which writes the budget of an object allows. Pure.

use std::collections::{HashMap, hash_map::Entry};

use jiff::{SignedDuration, Timestamp};

use crate::recorder::{EventSource, EventType, Occurrence};

/// Different messages of one reason about one object before they are combined.
const SIMILAR_EVENTS: usize = 10;
/// How long an event is counted up before the same message makes a new one.
const WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// Writes about one object by one component at once, and how long until one more is allowed.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;
/// How many objects and reasons are remembered.
const CACHE_SIZE: usize = 4096;
/// The API refuses longer ones.
const LONGEST_MESSAGE: usize = 1024;
const COMBINED: &str = "(combined from similar events)";

/// Occurrences that may be combined.
#[derive(Clone, PartialEq, Eq, Hash)]
struct AggregateKey {
    object: ObjectKey,
    field_path: String,
    reason: String,
    event_type: EventType,
}

/// An object as one component reports on it: they share a budget.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ObjectKey {
    source: EventSource,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

impl From<&Occurrence> for AggregateKey {
    fn from(occurrence: &Occurrence) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let involved = &occurrence.involved;
        Self {
            object: ObjectKey {
                source: occurrence.source.clone(),
                kind: text(&involved.kind),
                namespace: text(&involved.namespace),
                name: text(&involved.name),
                uid: text(&involved.uid),
            },
            field_path: text(&involved.field_path),
            reason: occurrence.note.reason.clone().into_owned(),
            event_type: occurrence.note.event_type,
        }
    }
}

#[derive(Default)]
struct Aggregate {
    by_message: HashMap<String, EventRecord>,
    combined: Option<EventRecord>,
    last: Timestamp,
}

/// An event with its count; without a uid it is not in the API yet.
#[derive(Clone, Debug)]
struct EventRecord {
    name: String,
    uid: Option<String>,
    count: i32,
    first: Timestamp,
    last: Timestamp,
}

/// An event to write: to be created, or, with a uid, to get another count.
#[derive(Clone, Debug)]
pub struct EventWrite {
    pub name: String,
    pub uid: Option<String>,
    pub occurrence: Occurrence,
    pub count: i32,
    pub first: Timestamp,
    pub last: Timestamp,
}

struct TokenBucket {
    tokens: f64,
    at: Timestamp,
}

#[derive(Default)]
pub struct Correlator {
    aggregates: HashMap<AggregateKey, Aggregate>,
    budgets: HashMap<ObjectKey, TokenBucket>,
    last_name: i128,
}

impl Correlator {
    /// What has to be written now that these were recorded: each event once, in the order of first occurrence, as far
    /// as the budgets of their objects go.
    pub fn correlate(&mut self, occurrences: impl Iterator<Item = Occurrence>, now: Timestamp) -> Vec<EventWrite> {
        let mut writes: Vec<EventWrite> = Vec::new();
        let mut index: HashMap<String, usize> = HashMap::new();
        for occurrence in occurrences {
            let write = self.observe(occurrence, now);
            match index.entry(write.name.clone()) {
                Entry::Occupied(at) => writes[*at.get()] = write,
                Entry::Vacant(at) => {
                    at.insert(writes.len());
                    writes.push(write);
                }
            }
        }
        writes.retain(|write| self.take_token(&write.occurrence, now));
        self.forget_old(now);
        writes
    }

    /// An event is in the API: its count can be raised from now on. Without a uid it is there no longer.
    pub fn set_written(&mut self, occurrence: &Occurrence, name: &str, uid: Option<String>) {
        let Some(aggregate) = self.aggregates.get_mut(&AggregateKey::from(occurrence)) else { return };
        let records = aggregate.by_message.values_mut().chain(&mut aggregate.combined);
        records.filter(|record| record.name == name).for_each(|record| record.uid.clone_from(&uid));
    }

    fn observe(&mut self, mut occurrence: Occurrence, now: Timestamp) -> EventWrite {
        let aggregate = self.aggregates.entry(AggregateKey::from(&occurrence)).or_default();
        aggregate.last = now;
        aggregate.by_message.retain(|_, record| now.duration_since(record.last) < WINDOW);
        aggregate.combined = aggregate.combined.take().filter(|record| now.duration_since(record.last) < WINDOW);
        let message = occurrence.note.message.clone();
        let single = aggregate.by_message.contains_key(&message) || aggregate.by_message.len() < SIMILAR_EVENTS;
        if !single {
            occurrence.note.message = format!("{COMBINED}: {message}");
        }
        shorten(&mut occurrence.note.message);
        let known = if single { aggregate.by_message.get_mut(&message) } else { aggregate.combined.as_mut() };
        if let Some(record) = known {
            record.count = record.count.saturating_add(1);
            record.last = now;
            let EventRecord { name, uid, count, first, last } = record.clone();
            return EventWrite { name, uid, occurrence, count, first, last };
        }
        self.last_name = now.as_nanosecond().max(self.last_name + 1);
        let name = format!("{}.{:x}", occurrence.involved.name.as_deref().unwrap_or_default(), self.last_name);
        let record = EventRecord { name: name.clone(), uid: None, count: 1, first: now, last: now };
        if single {
            aggregate.by_message.insert(message, record);
        } else {
            aggregate.combined = Some(record);
        }
        EventWrite { name, uid: None, occurrence, count: 1, first: now, last: now }
    }

    fn take_token(&mut self, occurrence: &Occurrence, now: Timestamp) -> bool {
        let object = AggregateKey::from(occurrence).object;
        let bucket = self.budgets.entry(object).or_insert(TokenBucket { tokens: BURST, at: now });
        let refilled = now.duration_since(bucket.at).as_secs_f64().max(0.0) / REFILL_SECONDS;
        (bucket.tokens, bucket.at) = ((bucket.tokens + refilled).min(BURST), now);
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    fn forget_old(&mut self, now: Timestamp) {
        if self.aggregates.len() > CACHE_SIZE {
            self.aggregates.retain(|_, aggregate| now.duration_since(aggregate.last) < WINDOW);
        }
        if self.aggregates.len() > CACHE_SIZE {
            self.aggregates.clear(); // counts begin anew; nothing else is lost
        }
        if self.budgets.len() > CACHE_SIZE {
            let full_after = SignedDuration::from_secs((BURST * REFILL_SECONDS) as i64);
            self.budgets.retain(|_, bucket| now.duration_since(bucket.at) < full_after);
        }
        if self.budgets.len() > CACHE_SIZE {
            self.budgets.clear();
        }
    }
}

fn shorten(message: &mut String) {
    if message.len() > LONGEST_MESSAGE {
        let end = (0..=LONGEST_MESSAGE).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use proptest::prelude::*;

    use super::*;
    use crate::recorder::EventNote;

    fn occurrence(uid: &str, message: &str) -> Occurrence {
        Occurrence {
            source: EventSource { component: "c".into(), instance: "".into() },
            involved: ObjectReference { uid: Some(uid.into()), name: Some("web".into()), ..ObjectReference::default() },
            note: EventNote::normal("SuccessfulCreate", message),
        }
    }

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_same_message_again_raises_a_count() {
        let mut correlator = Correlator::default();
        let first = correlator.correlate([occurrence("u", "a"), occurrence("u", "a")].into_iter(), at_second(1));
        assert_eq!((first.len(), first[0].count, first[0].uid.clone()), (1, 2, None));
        correlator.set_written(&first[0].occurrence, &first[0].name, Some("event-uid".into()));
        let again = correlator.correlate([occurrence("u", "a")].into_iter(), at_second(5));
        assert_eq!((again[0].count, again[0].first, again[0].last), (3, at_second(1), at_second(5)));
        assert_eq!((&again[0].name, again[0].uid.as_deref()), (&first[0].name, Some("event-uid")));
        let late = correlator.correlate([occurrence("u", "a")].into_iter(), at_second(5 + 600));
        assert_eq!((late[0].count, late[0].uid.clone()), (1, None));
    }

    #[test]
    fn what_is_no_longer_in_the_api_is_created_anew_with_its_count() {
        let mut correlator = Correlator::default();
        let first = correlator.correlate([occurrence("u", "a")].into_iter(), at_second(1));
        correlator.set_written(&first[0].occurrence, &first[0].name, Some("event-uid".into()));
        correlator.set_written(&first[0].occurrence, &first[0].name, None);
        let again = correlator.correlate([occurrence("u", "a")].into_iter(), at_second(2));
        assert_eq!((again[0].count, again[0].uid.clone()), (2, None));
    }

    #[test]
    fn the_eleventh_different_message_is_combined_with_those_after_it() {
        let mut correlator = Correlator::default();
        let all =
            correlator.correlate((0..5000).map(|n| occurrence("u", &format!("Created pod: web-{n}"))), at_second(1));
        assert_eq!(all.len(), 11);
        assert_eq!(all.iter().map(|write| write.count).sum::<i32>(), 5000);
        assert_eq!(all[9].occurrence.note.message, "Created pod: web-9");
        assert_eq!(all[10].occurrence.note.message, "(combined from similar events): Created pod: web-4999");
        correlator.set_written(&all[10].occurrence, &all[10].name, Some("combined".into()));
        let more = [occurrence("u", "Created pod: late"), occurrence("v", "Created pod: x")];
        let more = correlator.correlate(more.into_iter(), at_second(2));
        assert_eq!((more[0].count, more[0].uid.as_deref()), (4991, Some("combined")));
        assert_eq!((more[1].count, more[1].uid.as_deref()), (1, None), "another object is counted for itself");
    }

    #[test]
    fn an_object_has_25_writes_and_one_more_every_five_minutes() {
        let mut correlator = Correlator::default();
        let mut write = |second: i64| correlator.correlate([occurrence("u", "a")].into_iter(), at_second(second)).pop();
        for _ in 0..25 {
            assert!(write(1).is_some());
        }
        assert!(write(1).is_none());
        assert!(write(300).is_none());
        let later = write(301).expect("the budget has refilled by one");
        assert_eq!(later.count, 28, "what was held back is counted");
        assert!(write(302).is_none());
        assert!(correlator.correlate([occurrence("v", "a")].into_iter(), at_second(302)).pop().is_some());
    }

    #[test]
    fn parts_of_an_object_are_distinguished_and_long_messages_shortened() {
        let mut correlator = Correlator::default();
        let mut part = occurrence("u", "a");
        part.involved.field_path = Some("spec.containers{main}".into());
        let writes = correlator
            .correlate([occurrence("u", "a"), part, occurrence("u", &"é".repeat(600))].into_iter(), at_second(1));
        assert_eq!(writes.len(), 3);
        assert_eq!(writes[2].occurrence.note.message.len(), 1024);
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        correlator.correlate((0..2 * CACHE_SIZE).map(|n| occurrence(&n.to_string(), "a")), at_second(1));
        assert!(correlator.aggregates.len() <= CACHE_SIZE && correlator.budgets.len() <= CACHE_SIZE);
    }

    proptest! {
        #[test]
        fn names_are_unique_and_no_count_is_lost(messages in proptest::collection::vec((0..3u8, 0..30u8), 1..200)) {
            let mut correlator = Correlator::default();
            let all = messages.iter().map(|(uid, message)| occurrence(&uid.to_string(), &message.to_string()));
            let writes = correlator.correlate(all, at_second(1));
            let names: std::collections::HashSet<_> = writes.iter().map(|write| &write.name).collect();
            prop_assert_eq!(names.len(), writes.len());
            prop_assert_eq!(writes.iter().map(|write| write.count as usize).sum::<usize>(), messages.len());
        }
    }
}
