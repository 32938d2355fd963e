//! What becomes of something said: a new event, one more count of an old one, or nothing. Pure.
//!
//! The rules are upstream's: the same words again within ten minutes count up; after ten different messages of one
//! kind the rest are combined; an object has a budget of 25 events that refills slowly.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{Kind, QueuedEvent};

const COMPONENT: &str = "mainstay-agent";
const WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// Different messages of one kind before they are combined.
const DIFFERENT: usize = 10;
/// What an object may say at once, and how long until it may say one more.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;
/// Objects remembered; beyond, those silent for long are forgotten.
const MOST: usize = 4096;
const LONGEST_MESSAGE: usize = 1024;

pub struct Written {
    pub event: Event,
    /// The event is there already, and only counts up.
    pub again: bool,
    key: Key,
}

/// Whose event: object and part of it, kind and reason.
type Group = (String, String, bool, &'static str);
type Key = (Group, String);

pub struct Tally {
    host: String,
    events: HashMap<Key, Event>,
    groups: HashMap<Group, (Timestamp, Vec<String>)>,
    budgets: HashMap<String, (f64, Timestamp)>,
    last_name: u128,
}

impl Tally {
    pub fn new(host: &str) -> Self {
        let (events, groups, budgets) = Default::default();
        Self { host: host.to_owned(), events, groups, budgets, last_name: 0 }
    }

    /// Nothing if this object has said too much. Harmless to repeat until [`Tally::keep`].
    pub fn count(&mut self, said: &QueuedEvent, now: Timestamp) -> Option<Written> {
        self.forget(now);
        let about = &said.about;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let object = format!("{}/{}/{}", text(&about.kind), text(&about.namespace), text(&about.uid));
        let group = (object.clone(), text(&about.field_path), said.kind == Kind::Warning, said.reason);
        let (_, messages) = self.groups.entry(group.clone()).or_insert_with(|| (now, Vec::new()));
        let known = messages.contains(&said.message);
        if !known && messages.len() < DIFFERENT {
            messages.push(said.message.clone());
        }
        let combined = !known && messages.len() >= DIFFERENT && messages.last() != Some(&said.message);
        let key = (group, if combined { String::new() } else { said.message.clone() });
        if let Some(before) = self.events.get(&key) {
            let mut event = before.clone();
            event.count = Some(event.count.unwrap_or(1).saturating_add(1));
            event.last_timestamp = Some(Time(now));
            event.message = Some(shown(said, combined));
            return Some(Written { event, again: true, key });
        }
        let (left, since) = self.budgets.get(&object).copied().unwrap_or((BURST, now));
        let left = (left + now.duration_since(since).as_secs_f64() / REFILL_SECONDS).min(BURST);
        if left < 1.0 {
            return None;
        }
        Some(Written { event: self.event(said, shown(said, combined), now), again: false, key })
    }

    /// It has been written.
    pub fn keep(&mut self, written: Written) {
        let Written { event, again, key } = written;
        if !again {
            let now = event.last_timestamp.as_ref().map_or_else(Timestamp::default, |time| time.0);
            let (left, since) = self.budgets.get(&key.0.0).copied().unwrap_or((BURST, now));
            let left = (left + now.duration_since(since).as_secs_f64() / REFILL_SECONDS).min(BURST);
            self.budgets.insert(key.0.0.clone(), (left - 1.0, now));
        }
        self.events.insert(key, event);
    }

    fn event(&mut self, said: &QueuedEvent, message: String, now: Timestamp) -> Event {
        // Two at the same instant need two names.
        self.last_name = (now.as_nanosecond().max(0) as u128).max(self.last_name + 1);
        let name = format!("{}.{:x}", said.about.name.as_deref().unwrap_or_default(), self.last_name);
        let namespace = said.about.namespace.clone().filter(|namespace| !namespace.is_empty());
        let kind = match said.kind {
            Kind::Normal => "Normal",
            Kind::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference { ..said.about.clone() },
            reason: Some(said.reason.to_owned()),
            message: Some(message),
            type_: Some(kind.to_owned()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(self.host.clone()) }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.host.clone()),
            ..Event::default()
        }
    }

    fn forget(&mut self, now: Timestamp) {
        let recent =
            |event: &Event| event.last_timestamp.as_ref().is_some_and(|time| now.duration_since(time.0) < WINDOW);
        self.events.retain(|_, event| recent(event));
        self.groups.retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
        if self.budgets.len() > MOST {
            self.budgets.retain(|_, (_, since)| now.duration_since(*since) < WINDOW);
        }
    }
}

fn shown(said: &QueuedEvent, combined: bool) -> String {
    let text =
        if combined { format!("(combined from similar events): {}", said.message) } else { said.message.clone() };
    match text.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, message: &str) -> QueuedEvent {
        let about = ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some("shop".into()),
            name: Some(name.into()),
            uid: Some(name.into()),
            ..ObjectReference::default()
        };
        QueuedEvent { about, kind: Kind::Warning, reason: "BackOff", message: message.into() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn write(tally: &mut Tally, said: &QueuedEvent, second: i64) -> Option<Event> {
        let written = tally.count(said, at(second))?;
        let event = written.event.clone();
        tally.keep(written);
        Some(event)
    }

    #[test]
    fn an_event_says_who_what_and_where() {
        let event = write(&mut Tally::new("m1"), &said("web", "it crashed"), 0).unwrap();
        assert_eq!(event.metadata.name.unwrap(), format!("web.{:x}", at(0).as_nanosecond()));
        assert_eq!((event.metadata.namespace.as_deref(), event.count), (Some("shop"), Some(1)));
        let source = event.source.unwrap();
        assert_eq!((source.component.as_deref(), source.host.as_deref()), (Some("mainstay-agent"), Some("m1")));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }

    #[test]
    fn the_same_words_count_up_until_they_are_forgotten() {
        let mut tally = Tally::new("m1");
        let first = write(&mut tally, &said("web", "m"), 0).unwrap();
        let second = write(&mut tally, &said("web", "m"), 60).unwrap();
        assert_eq!((second.metadata.name, second.count), (first.metadata.name.clone(), Some(2)));
        assert_eq!((second.first_timestamp, second.last_timestamp), (first.first_timestamp, Some(Time(at(60)))));
        let later = write(&mut tally, &said("web", "m"), 60 + 601).unwrap();
        assert_eq!(later.count, Some(1));
        assert_ne!(later.metadata.name, first.metadata.name);
    }

    #[test]
    fn an_object_that_talks_too_much_is_cut_short_and_others_are_not() {
        let mut tally = Tally::new("m1");
        let reasons: Vec<&'static str> = (0..40).map(|n| &*Box::leak(format!("R{n}").into_boxed_str())).collect();
        let many: Vec<QueuedEvent> = reasons.iter().map(|reason| QueuedEvent { reason, ..said("web", "x") }).collect();
        assert_eq!(many.iter().filter(|said| write(&mut tally, said, 0).is_some()).count(), 25);
        assert!(write(&mut tally, &said("db", "x"), 0).is_some());
        assert!(write(&mut tally, &many[39], 301).is_some(), "one more after five minutes");
        assert!(write(&mut tally, &many[38], 302).is_none());
    }

    #[test]
    fn many_messages_of_one_kind_are_combined() {
        let mut tally = Tally::new("m1");
        let names: Vec<_> = (0..14)
            .map(|n| write(&mut tally, &said("web", &format!("failed at {n}")), n).unwrap())
            .map(|event| (event.metadata.name.unwrap(), event.message.unwrap(), event.count.unwrap()))
            .collect();
        assert_eq!(names[9].2, 1);
        assert_eq!(names[10].1, "(combined from similar events): failed at 10");
        assert_eq!((&names[13].0, names[13].2), (&names[10].0, 4));
    }

    #[test]
    fn two_at_one_instant_have_two_names() {
        let mut tally = Tally::new("m1");
        let first = write(&mut tally, &said("web", "a"), 0).unwrap();
        assert_ne!(write(&mut tally, &said("web", "b"), 0).unwrap().metadata.name, first.metadata.name);
    }
}
