//! Cache of forwarded DNS answers; serves stale ones (RFC 8767) while no upstream answers. Pure: time is an argument.
//!
//! There are two generations. New and used entries are in the young one; when it is full it becomes the old one, and
//! the old one is dropped. So used entries stay, memory is bounded, and nothing is ever searched for what to evict.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::dns::{
    name::Name,
    query::{Rcode, RecordType},
    response::{Age, Response},
};

/// Limits of one generation: entries, and bytes of the packets that they came in.
const MAX_ENTRIES: usize = 5_000;
const MAX_BYTES: usize = 4 << 20;

/// How long an expired answer may be served.
const MAX_STALE: Duration = Duration::from_secs(24 * 3600);

/// After a failure, upstream servers are not asked again for so long while there is a stale answer (RFC 8767).
const STALE_RETRY: Duration = Duration::from_secs(30);

/// The same without a stale answer: how long SERVFAIL is cached.
const FAILURE_TTL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    pub name: Name,
    pub record_type: RecordType,
    /// The DO and CD flags of the client.
    pub dnssec: bool,
    pub checking_disabled: bool,
}

#[derive(Debug)]
pub enum CacheLookup {
    Fresh(Arc<Response>, Age),
    /// Expired. `refresh`: upstream servers may be asked again.
    Stale {
        answer: Arc<Response>,
        refresh: bool,
    },
    Miss,
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
    answer: Arc<Response>,
    bytes: usize,
    since: Instant,
    ttl: Duration,
    refresh_after: Option<Instant>,
}

impl Cache {
    pub fn lookup(&mut self, question: &Question, now: Instant) -> CacheLookup {
        self.promote(question);
        let Some(entry) = self.young.entries.get(question) else { return CacheLookup::Miss };
        let age = now.saturating_duration_since(entry.since);
        if age < entry.ttl {
            CacheLookup::Fresh(entry.answer.clone(), Age::Seconds(age.as_secs() as u32))
        } else if age < entry.ttl + MAX_STALE && entry.answer.rcode != Rcode::ServFail {
            CacheLookup::Stale {
                answer: entry.answer.clone(),
                refresh: entry.refresh_after.is_none_or(|after| now >= after),
            }
        } else {
            CacheLookup::Miss
        }
    }

    pub fn store(&mut self, question: Question, answer: Arc<Response>, ttl: Duration, bytes: usize, now: Instant) {
        self.remove(&question);
        if !ttl.is_zero() {
            self.insert(question, Entry { answer, bytes, since: now, ttl, refresh_after: None });
        }
    }

    /// No upstream server answered.
    pub fn store_failure(&mut self, question: &Question, now: Instant) {
        self.promote(question);
        match self.young.entries.get_mut(question) {
            Some(entry) if entry.answer.rcode != Rcode::ServFail => entry.refresh_after = Some(now + STALE_RETRY),
            _ => self.store(question.clone(), Arc::new(Response::with_rcode(Rcode::ServFail)), FAILURE_TTL, 0, now),
        }
    }

    fn promote(&mut self, question: &Question) {
        if let Some((question, entry)) = self.old.take(question) {
            self.insert(question, entry);
        }
    }

    fn remove(&mut self, question: &Question) {
        self.young.take(question);
        self.old.take(question);
    }

    fn insert(&mut self, question: Question, entry: Entry) {
        if self.young.entries.len() >= MAX_ENTRIES || self.young.bytes + entry.bytes > MAX_BYTES {
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
        Question {
            name: Name::parse(name).unwrap(),
            record_type: RecordType::A,
            dnssec: false,
            checking_disabled: false,
        }
    }

    fn answer(code: Rcode) -> Arc<Response> {
        Arc::new(Response::with_rcode(code))
    }

    fn state(cache: &mut Cache, name: &str, now: Instant) -> String {
        match cache.lookup(&question(name), now) {
            CacheLookup::Fresh(answer, age) => format!("fresh {:?} {age:?}", answer.rcode),
            CacheLookup::Stale { refresh, .. } => format!("stale, refresh {refresh}"),
            CacheLookup::Miss => "miss".into(),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_answer_expires_goes_stale_and_is_dropped() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        assert_eq!(state(&mut cache, "a", now), "miss");
        cache.store(question("A"), answer(Rcode::NoError), 60 * SECOND, 100, now);
        assert_eq!(state(&mut cache, "a", now), "fresh NoError Seconds(0)");
        assert_eq!(state(&mut cache, "a", now + 59 * SECOND), "fresh NoError Seconds(59)");
        assert_eq!(state(&mut cache, "a", now + 60 * SECOND), "stale, refresh true");
        assert_eq!(state(&mut cache, "a", now + 59 * SECOND + MAX_STALE), "stale, refresh true");
        assert_eq!(state(&mut cache, "a", now + 60 * SECOND + MAX_STALE), "miss");
    }

    #[test]
    fn after_a_failure_upstreams_are_not_asked_for_a_while() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store(question("a"), answer(Rcode::NxDomain), SECOND, 100, now);
        let later = now + 10 * SECOND;
        cache.store_failure(&question("a"), later);
        assert_eq!(state(&mut cache, "a", later + 29 * SECOND), "stale, refresh false");
        assert_eq!(state(&mut cache, "a", later + 30 * SECOND), "stale, refresh true");
        cache.store(question("a"), answer(Rcode::NoError), SECOND, 100, later + 31 * SECOND);
        assert_eq!(state(&mut cache, "a", later + 31 * SECOND), "fresh NoError Seconds(0)");
    }

    #[test]
    fn servfail_is_cached_briefly_and_never_stale() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store_failure(&question("a"), now);
        assert_eq!(state(&mut cache, "a", now), "fresh ServFail Seconds(0)");
        assert_eq!(state(&mut cache, "a", now + FAILURE_TTL), "miss");
    }

    #[test]
    fn a_zero_ttl_is_not_cached() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store(question("a"), answer(Rcode::NoError), Duration::ZERO, 100, now);
        assert_eq!(state(&mut cache, "a", now), "miss");
    }

    #[test]
    fn memory_is_bounded_and_used_entries_stay() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.store(question("used"), answer(Rcode::NoError), 60 * SECOND, 100, now);
        cache.store(question("unused"), answer(Rcode::NoError), 60 * SECOND, 100, now);
        for number in 0..5 * MAX_ENTRIES {
            cache.store(question(&format!("n{number}")), answer(Rcode::NoError), 60 * SECOND, 100, now);
            cache.lookup(&question("used"), now);
        }
        assert!(cache.young.entries.len() + cache.old.entries.len() <= 2 * MAX_ENTRIES);
        assert_eq!(state(&mut cache, "used", now), "fresh NoError Seconds(0)");
        assert_eq!(state(&mut cache, "unused", now), "miss");
        for number in 0..1_000 {
            cache.store(question(&format!("big{number}")), answer(Rcode::NoError), 60 * SECOND, 60_000, now);
        }
        assert!(cache.young.bytes + cache.old.bytes <= 2 * MAX_BYTES);
        let counted: usize = cache.young.entries.values().map(|entry| entry.bytes).sum();
        assert_eq!(counted, cache.young.bytes);
    }
}
