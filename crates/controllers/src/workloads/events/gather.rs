//! Which of the things said are one event.

use std::collections::{HashMap, hash_map::Entry};

use jiff::{SignedDuration, Timestamp};

use super::Said;

/// Different messages of one reason about one object before they are combined.
const DIFFERENT: usize = 10;
/// How long what was said counts as recent.
const RECENT: SignedDuration = SignedDuration::from_mins(10);
/// How many reasons and objects are remembered.
const REMEMBERED: usize = 4096;

/// Who says why about whom.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Topic {
    component: &'static str,
    reason: &'static str,
    warning: bool,
    uid: String,
    name: String,
    field: String,
}

impl Topic {
    fn of(said: &Said) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            component: said.component,
            reason: said.reason,
            warning: said.warning,
            uid: text(&said.about.uid),
            name: text(&said.about.name),
            field: text(&said.about.field_path),
        }
    }
}

#[derive(Default)]
struct Heard {
    /// By message.
    single: HashMap<String, Written>,
    combined: Option<Written>,
    last: Timestamp,
}

/// An event that was made.
#[derive(Clone)]
struct Written {
    name: String,
    count: i32,
    first: Timestamp,
    last: Timestamp,
}

/// An event to write: new, or known with another count.
#[derive(Clone, Debug)]
pub struct Gathered {
    pub name: String,
    pub said: Said,
    pub count: i32,
    pub first: Timestamp,
    pub last: Timestamp,
    pub known: bool,
}

#[derive(Default)]
pub struct Gatherer {
    topics: HashMap<Topic, Heard>,
    named: i128,
}

impl Gatherer {
    /// What has to be written now that this was said, each event once, in the order it was first said.
    pub fn gather(&mut self, said: impl Iterator<Item = Said>, now: Timestamp) -> Vec<Gathered> {
        let mut order: Vec<Gathered> = Vec::new();
        let mut index: HashMap<String, usize> = HashMap::new();
        for said in said {
            let event = self.one(said, now);
            match index.entry(event.name.clone()) {
                Entry::Occupied(at) => {
                    let earlier = &mut order[*at.get()];
                    *earlier = Gathered { known: earlier.known, ..event };
                }
                Entry::Vacant(at) => {
                    at.insert(order.len());
                    order.push(event);
                }
            }
        }
        self.forget(now);
        order
    }

    fn one(&mut self, mut said: Said, now: Timestamp) -> Gathered {
        let heard = self.topics.entry(Topic::of(&said)).or_default();
        heard.last = now;
        heard.single.retain(|_, written| now.duration_since(written.last) < RECENT);
        heard.combined = heard.combined.take().filter(|written| now.duration_since(written.last) < RECENT);
        let alone = heard.single.contains_key(&said.message) || heard.single.len() < DIFFERENT;
        let known = if alone {
            heard.single.get_mut(&said.message)
        } else {
            said.message = format!("(combined from similar events): {}", said.message);
            heard.combined.as_mut()
        };
        if let Some(written) = known {
            written.count = written.count.saturating_add(1);
            written.last = now;
            let Written { name, count, first, last } = written.clone();
            return Gathered { name, said, count, first, last, known: true };
        }
        self.named = now.as_nanosecond().max(self.named + 1);
        let name = format!("{}.{:x}", said.about.name.as_deref().unwrap_or_default(), self.named);
        let written = Written { name: name.clone(), count: 1, first: now, last: now };
        if alone {
            heard.single.insert(said.message.clone(), written);
        } else {
            heard.combined = Some(written);
        }
        Gathered { name, said, count: 1, first: now, last: now, known: false }
    }

    fn forget(&mut self, now: Timestamp) {
        if self.topics.len() <= REMEMBERED {
            return;
        }
        self.topics.retain(|_, heard| now.duration_since(heard.last) < RECENT);
        if self.topics.len() > REMEMBERED {
            self.topics.clear(); // counts begin anew; nothing else is lost
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn said(uid: &str, message: &str) -> Said {
        let about = ObjectReference { uid: Some(uid.into()), name: Some("web".into()), ..ObjectReference::default() };
        Said { about, component: "c", warning: false, reason: "SuccessfulCreate", message: message.to_owned() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_same_again_is_a_count() {
        let mut gatherer = Gatherer::default();
        let first = gatherer.gather([said("u", "a"), said("u", "a")].into_iter(), at(1));
        assert_eq!((first.len(), first[0].count, first[0].known), (1, 2, false));
        let again = gatherer.gather([said("u", "a")].into_iter(), at(5));
        assert_eq!((again[0].count, again[0].known, again[0].first, again[0].last), (3, true, at(1), at(5)));
        assert_eq!(again[0].name, first[0].name);
        let late = gatherer.gather([said("u", "a")].into_iter(), at(5 + 600));
        assert_eq!((late[0].count, late[0].known), (1, false));
    }

    #[test]
    fn thousands_are_a_dozen() {
        let mut gatherer = Gatherer::default();
        let all = gatherer.gather((0..5000).map(|n| said("u", &format!("Created pod: web-{n}"))), at(1));
        assert_eq!(all.len(), 11);
        assert_eq!(all.iter().map(|event| event.count).sum::<i32>(), 5000);
        assert_eq!(all[9].said.message, "Created pod: web-9");
        assert_eq!(all[10].said.message, "(combined from similar events): Created pod: web-4999");
        let more = gatherer.gather([said("u", "Created pod: late"), said("v", "Created pod: x")].into_iter(), at(2));
        assert_eq!((more[0].count, more[0].known), (4991, true));
        assert_eq!((more[1].count, more[1].known), (1, false), "another object is another matter");
    }

    #[test]
    fn names_differ_even_at_the_same_moment() {
        let mut gatherer = Gatherer::default();
        let all = gatherer.gather([said("u", "a"), said("u", "b"), said("v", "a")].into_iter(), at(1));
        assert!(all[0].name != all[1].name && all[1].name != all[2].name && all[0].name != all[2].name);
    }

    #[test]
    fn memory_is_bounded() {
        let mut gatherer = Gatherer::default();
        gatherer.gather((0..2 * REMEMBERED).map(|n| said(&n.to_string(), "a")), at(1));
        assert!(gatherer.topics.len() <= REMEMBERED);
    }
}
