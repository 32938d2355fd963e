//! What the outputs of templates hold, as far as it is known: a template looks at its output several times while it brings a version to its consumers, and need not
//! ask the API each time.
//!
//! The watch of metadata says when an output changes. What was read or written at that version or a later one stays known; anything else is read again.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::runtime::ObjectKey;

/// What an output holds, and the object's version of which that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownOutput {
    /// The version of the template's key; nothing if the object has no such key.
    pub version: Option<String>,
    pub exists: bool,
    /// 0 if the object does not exist.
    pub resource_version: u64,
}

/// By template: each has one output.
#[derive(Default)]
pub struct OutputCache(Mutex<State>);

#[derive(Default)]
struct State {
    slots: HashMap<ObjectKey, Slot>,
    /// Never the same again, so that nothing is taken for a template that had the name before.
    next: u64,
}

struct Slot {
    known: Option<KnownOutput>,
    /// Another one after each change; what was read before the last one is not taken in.
    ticket: u64,
}

/// When a read began.
#[derive(Clone, Copy)]
pub struct ReadTicket(u64);

impl OutputCache {
    /// What is known, or a ticket to hand in with what is read.
    pub fn get(&self, template: &ObjectKey) -> Result<KnownOutput, ReadTicket> {
        let mut state = self.0.lock();
        let slot = state.slot(template);
        slot.known.clone().ok_or(ReadTicket(slot.ticket))
    }

    /// Takes in what was read, unless the output changed meanwhile.
    pub fn read(&self, template: &ObjectKey, ticket: ReadTicket, output: KnownOutput) {
        let mut state = self.0.lock();
        let slot = state.slot(template);
        if slot.ticket == ticket.0 {
            slot.known = Some(output);
        }
    }

    /// Takes in what the API answered to a write of ours.
    pub fn wrote(&self, template: &ObjectKey, output: KnownOutput) {
        let mut state = self.0.lock();
        let slot = state.slot(template);
        if slot.known.as_ref().is_none_or(|known| known.resource_version < output.resource_version) {
            slot.known = Some(output);
            state.renew(template);
        }
    }

    /// The output has this version now, or is gone.
    pub fn changed(&self, template: &ObjectKey, resource_version: Option<u64>) {
        let mut state = self.0.lock();
        let slot = state.slot(template);
        let is_known = |known: &KnownOutput| resource_version.is_some_and(|version| known.resource_version >= version);
        if !slot.known.as_ref().is_some_and(is_known) {
            slot.known = None;
            state.renew(template);
        }
    }

    /// The template is gone.
    pub fn forget(&self, template: &ObjectKey) {
        self.0.lock().slots.remove(template);
    }

    /// Anything may have changed.
    pub fn clear(&self) {
        self.0.lock().slots.clear();
    }
}

impl State {
    fn slot(&mut self, template: &ObjectKey) -> &mut Slot {
        let next = &mut self.next;
        self.slots.entry(template.clone()).or_insert_with(|| {
            *next += 1;
            Slot { known: None, ticket: *next }
        })
    }

    /// What is being read is older than what is known by now.
    fn renew(&mut self, template: &ObjectKey) {
        self.next += 1;
        let next = self.next;
        self.slot(template).ticket = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(version: &str, resource_version: u64) -> KnownOutput {
        KnownOutput { version: Some(version.to_owned()), exists: true, resource_version }
    }

    #[test]
    fn an_output_is_known_until_a_later_version_of_it_is_heard_of() {
        let (cache, key) = (OutputCache::default(), ObjectKey::new("shop", "zones"));
        let known = || cache.get(&key).ok();
        let ticket = cache.get(&key).err().unwrap();
        cache.read(&key, ticket, output("a", 5));
        cache.changed(&key, Some(5));
        assert_eq!(known(), Some(output("a", 5)));
        cache.wrote(&key, output("b", 7));
        cache.changed(&key, Some(6));
        cache.changed(&key, Some(7));
        assert_eq!(known(), Some(output("b", 7)), "its own write is no news");
        cache.changed(&key, Some(8));
        assert_eq!(known(), None);
        cache.wrote(&key, output("c", 9));
        cache.changed(&key, None);
        assert_eq!(known(), None, "it is gone");
    }

    #[test]
    fn what_changed_while_it_was_read_is_read_again() {
        let (cache, key) = (OutputCache::default(), ObjectKey::new("shop", "zones"));
        let ticket = cache.get(&key).err().unwrap();
        cache.changed(&key, Some(6));
        cache.read(&key, ticket, output("a", 5));
        let Err(ticket) = cache.get(&key) else { panic!("it changed meanwhile") };
        cache.wrote(&key, output("b", 7));
        cache.read(&key, ticket, output("a", 6));
        assert_eq!(cache.get(&key).ok(), Some(output("b", 7)));
        cache.wrote(&key, output("a", 6));
        assert_eq!(cache.get(&key).ok(), Some(output("b", 7)), "answers may overtake each other");
        cache.clear();
        let Err(ticket) = cache.get(&key) else { panic!("anything may have changed") };
        cache.forget(&key);
        cache.read(&key, ticket, output("a", 6));
        assert!(cache.get(&key).is_err(), "that was of another template of this name");
    }
}
