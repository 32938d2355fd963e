//! What others have said, for as long as it is true, and longer in need. Pure: time is told.
//!
//! There are two generations. What is new or used is in the young one; when that is full, it becomes the old one, and
//! the old one is forgotten. So what is used stays, room is bounded, and nothing is ever searched for what to forget.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::dns::{
    answer::{Age, Answer},
    name::Name,
    query::{Code, Kind},
};

/// Of one generation: entries, and bytes of the packets that they came in.
const MOST_ENTRIES: usize = 5_000;
const MOST_BYTES: usize = 4 << 20;

/// What is out of date is kept in need for so long after that.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// Nobody is asked again so soon after they did not answer (RFC 8767), as long as there is something else to tell.
const RETRY: Duration = Duration::from_secs(30);

/// The same if there is not.
const FAILURE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    pub name: Name,
    pub kind: Kind,
    /// The client wants signatures, and wants them unchecked.
    pub dnssec: bool,
    pub checking_disabled: bool,
}

#[derive(Debug)]
pub enum Cached {
    Fresh(Arc<Answer>, Age),
    /// True once; and whether it is time to ask again.
    Stale {
        answer: Arc<Answer>,
        ask: bool,
    },
    Nothing,
}

#[derive(Default)]
pub struct Cache {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    entries: HashMap<Question, Entry>,
    bytes: usize,
}

struct Entry {
    answer: Arc<Answer>,
    bytes: usize,
    since: Instant,
    keep: Duration,
    ask_after: Option<Instant>,
}

impl Cache {
    pub fn find(&mut self, question: &Question, now: Instant) -> Cached {
        self.rejuvenate(question);
        let Some(entry) = self.young.entries.get(question) else { return Cached::Nothing };
        let age = now.saturating_duration_since(entry.since);
        if age < entry.keep {
            Cached::Fresh(entry.answer.clone(), Age::Seconds(age.as_secs() as u32))
        } else if age < entry.keep + STALE && entry.answer.code != Code::Failed {
            Cached::Stale { answer: entry.answer.clone(), ask: entry.ask_after.is_none_or(|after| now >= after) }
        } else {
            Cached::Nothing
        }
    }

    pub fn store(&mut self, question: Question, answer: Arc<Answer>, keep: Duration, bytes: usize, now: Instant) {
        self.forget(&question);
        if !keep.is_zero() {
            self.insert(question, Entry { answer, bytes, since: now, keep, ask_after: None });
        }
    }

    /// Nobody answered.
    pub fn failed(&mut self, question: &Question, now: Instant) {
        self.rejuvenate(question);
        match self.young.entries.get_mut(question) {
            Some(entry) if entry.answer.code != Code::Failed => entry.ask_after = Some(now + RETRY),
            _ => self.store(question.clone(), Arc::new(Answer::only(Code::Failed)), FAILURE, 0, now),
        }
    }

    fn rejuvenate(&mut self, question: &Question) {
        if let Some((question, entry)) = self.old.take(question) {
            self.insert(question, entry);
        }
    }

    fn forget(&mut self, question: &Question) {
        self.young.take(question);
        self.old.take(question);
    }

    fn insert(&mut self, question: Question, entry: Entry) {
        if self.young.entries.len() >= MOST_ENTRIES || self.young.bytes + entry.bytes > MOST_BYTES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += entry.bytes;
        self.young.entries.insert(question, entry);
    }
}

impl Generation {
    fn take(&mut self, question: &Question) -> Option<(Question, Entry)> {
        let taken = self.entries.remove_entry(question)?;
        self.bytes -= taken.1.bytes;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str) -> Question {
        Question { name: Name::parse(name).unwrap(), kind: Kind::A, dnssec: false, checking_disabled: false }
    }

    fn answer(code: Code) -> Arc<Answer> {
        Arc::new(Answer::only(code))
    }

    fn state(cache: &mut Cache, name: &str, now: Instant) -> String {
        match cache.find(&question(name), now) {
            Cached::Fresh(answer, age) => format!("fresh {:?} {age:?}", answer.code),
            Cached::Stale { ask, .. } => format!("stale, ask {ask}"),
            Cached::Nothing => "nothing".into(),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_answer_ages_goes_stale_and_is_forgotten() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        assert_eq!(state(&mut cache, "a", now), "nothing");
        cache.store(question("A"), answer(Code::Fine), 60 * SECOND, 100, now);
        assert_eq!(state(&mut cache, "a", now), "fresh Fine Seconds(0)");
        assert_eq!(state(&mut cache, "a", now + 59 * SECOND), "fresh Fine Seconds(59)");
        assert_eq!(state(&mut cache, "a", now + 60 * SECOND), "stale, ask true");
        assert_eq!(state(&mut cache, "a", now + 59 * SECOND + STALE), "stale, ask true");
        assert_eq!(state(&mut cache, "a", now + 60 * SECOND + STALE), "nothing");
    }

    #[test]
    fn who_did_not_answer_is_left_alone_for_a_while() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store(question("a"), answer(Code::NoSuchName), SECOND, 100, now);
        let later = now + 10 * SECOND;
        cache.failed(&question("a"), later);
        assert_eq!(state(&mut cache, "a", later + 29 * SECOND), "stale, ask false");
        assert_eq!(state(&mut cache, "a", later + 30 * SECOND), "stale, ask true");
        cache.store(question("a"), answer(Code::Fine), SECOND, 100, later + 31 * SECOND);
        assert_eq!(state(&mut cache, "a", later + 31 * SECOND), "fresh Fine Seconds(0)");
    }

    #[test]
    fn a_failure_is_told_for_a_moment_and_is_never_stale() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.failed(&question("a"), now);
        assert_eq!(state(&mut cache, "a", now), "fresh Failed Seconds(0)");
        assert_eq!(state(&mut cache, "a", now + FAILURE), "nothing");
    }

    #[test]
    fn what_may_not_be_kept_is_not() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store(question("a"), answer(Code::Fine), Duration::ZERO, 100, now);
        assert_eq!(state(&mut cache, "a", now), "nothing");
    }

    #[test]
    fn room_is_bounded_and_what_is_used_stays() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store(question("used"), answer(Code::Fine), 60 * SECOND, 100, now);
        cache.store(question("unused"), answer(Code::Fine), 60 * SECOND, 100, now);
        for number in 0..5 * MOST_ENTRIES {
            cache.store(question(&format!("n{number}")), answer(Code::Fine), 60 * SECOND, 100, now);
            cache.find(&question("used"), now);
        }
        assert!(cache.young.entries.len() + cache.old.entries.len() <= 2 * MOST_ENTRIES);
        assert_eq!(state(&mut cache, "used", now), "fresh Fine Seconds(0)");
        assert_eq!(state(&mut cache, "unused", now), "nothing");
        for number in 0..1_000 {
            cache.store(question(&format!("big{number}")), answer(Code::Fine), 60 * SECOND, 60_000, now);
        }
        assert!(cache.young.bytes + cache.old.bytes <= 2 * MOST_BYTES);
        let counted: usize = cache.young.entries.values().map(|entry| entry.bytes).sum();
        assert_eq!(counted, cache.young.bytes);
    }
}
