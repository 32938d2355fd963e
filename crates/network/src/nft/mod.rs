//! The kernel's packet rules (nf_tables), as far as we use them, straight over netlink.
//!
//! A batch is one transaction: all of it holds, or nothing has changed. The crates for this either need a C
//! library, call a program that a machine may not have, or carry a licence that ours cannot follow; what
//! we need of the encoding is here: [`wire`] below everything, [`expressions`] and [`steps`] for rules, [`sets`] for sets and
//! maps, [`listing`] for reading back, [`socket`] for the exchange.

pub mod expressions;
pub mod listing;
pub mod sets;
pub mod socket;
mod steps;
pub mod wire;

use std::time::Duration;

use self::{
    expressions::Expressions,
    sets::{Data, Shape},
    wire::{APPEND, Attributes, CREATE, Header, REQUEST},
};
pub use self::{socket::send, steps::Step};

/// Whether the kernel takes packet rules from this process.
pub fn check() -> std::io::Result<()> {
    listing::generation(&socket::Session::open()?).map(drop)
}

const SUBSYSTEM: u16 = 10 << 8;
pub const IPV4: u8 = 2;

// Kinds of message.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM + 2;
const NEW_CHAIN: u16 = SUBSYSTEM + 3;
const DELETE_CHAIN: u16 = SUBSYSTEM + 5;
const NEW_RULE: u16 = SUBSYSTEM + 6;
const DELETE_RULE: u16 = SUBSYSTEM + 8;
const NEW_SET: u16 = SUBSYSTEM + 9;
const NEW_ELEMENTS: u16 = SUBSYSTEM + 12;
const DELETE_ELEMENTS: u16 = SUBSYSTEM + 14;
const NEW_OBJECT: u16 = SUBSYSTEM + 18;

const TIME_LIMITS: u32 = 7;
const TCP: u8 = 6;

/// How many elements one message holds: a list is at most 64 KiB.
const ELEMENTS_AT_ONCE: usize = 500;

/// Where in a packet's path a chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before it is decided where an arriving packet goes.
    Arriving,
    /// The machine's own, before it is decided where it goes.
    Own,
    /// On the way out.
    Leaving,
    /// For this machine, once that is decided. Changes no addresses.
    Received,
    /// By way of this machine. Changes no addresses.
    Passing,
    /// The machine's own, once it is decided where it goes. Changes no addresses.
    Sent,
}

impl Hook {
    /// Its number, and its place among others'.
    pub fn place(self) -> (u32, i32) {
        match self {
            Hook::Arriving => (0, -100),
            Hook::Own => (3, -100),
            Hook::Leaving => (4, 100),
            Hook::Received => (1, 0),
            Hook::Passing => (2, 0),
            Hook::Sent => (3, 0),
        }
    }

    /// What its chains may do.
    fn kind(self) -> &'static str {
        match self {
            Hook::Arriving | Hook::Own | Hook::Leaving => "nat",
            Hook::Received | Hook::Passing | Hook::Sent => "filter",
        }
    }
}

#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    messages: u32,
    content: usize,
}

impl Batch {
    pub fn new() -> Self {
        let mut batch = Self::default();
        batch.message(BATCH_BEGIN, REQUEST, 0, SUBSYSTEM >> 8, |_| {});
        batch.content = 0;
        batch
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.content == 0
    }

    pub fn table(&mut self, name: &str) {
        self.message(NEW_TABLE, REQUEST | CREATE, IPV4, 0, |a| a.text(1, name));
    }

    pub fn delete_table(&mut self, name: &str) {
        self.message(DELETE_TABLE, REQUEST, IPV4, 0, |a| a.text(1, name));
    }

    /// A chain that packets pass.
    pub fn chain(&mut self, table: &str, name: &str, hook: Hook) {
        let (number, priority) = hook.place();
        self.message(NEW_CHAIN, REQUEST | CREATE, IPV4, 0, |a| {
            a.text(1, table);
            a.text(3, name);
            a.nest(4, |a| {
                a.number(1, number);
                a.bytes(2, &priority.to_be_bytes());
            });
            a.text(7, hook.kind());
        });
    }

    /// A chain that rules and maps lead to.
    pub fn inner_chain(&mut self, table: &str, name: &str) {
        self.message(NEW_CHAIN, REQUEST | CREATE, IPV4, 0, |a| {
            a.text(1, table);
            a.text(3, name);
        });
    }

    /// Nothing may lead there any more.
    pub fn delete_chain(&mut self, table: &str, name: &str) {
        self.message(DELETE_CHAIN, REQUEST, IPV4, 0, |a| {
            a.text(1, table);
            a.text(3, name);
        });
    }

    pub fn empty_chain(&mut self, table: &str, name: &str) {
        self.message(DELETE_RULE, REQUEST, IPV4, 0, |a| {
            a.text(1, table);
            a.text(2, name);
        });
    }

    pub fn rule(&mut self, table: &str, chain: &str, steps: &[Step<'_>]) {
        self.append(table, chain, &steps::expressions(steps), None);
    }

    /// A rule that can be told from others when it is read back.
    pub fn marked_rule(&mut self, table: &str, chain: &str, rule: &Expressions) {
        self.append(table, chain, rule, Some(listing::mark(rule)));
    }

    fn append(&mut self, table: &str, chain: &str, rule: &Expressions, mark: Option<Vec<u8>>) {
        self.message(NEW_RULE, REQUEST | CREATE | APPEND, IPV4, 0, |a| {
            a.text(1, table);
            a.text(2, chain);
            a.bytes(4 | wire::NESTED, rule.encoded());
            if let Some(mark) = mark {
                a.bytes(7, &mark);
            }
        });
    }

    pub fn set(&mut self, table: &str, number: u32, shape: &Shape) {
        self.message(NEW_SET, REQUEST | CREATE, IPV4, 0, |a| {
            a.text(1, table);
            shape.write(number, a);
        });
    }

    /// Time limits for TCP connections that rules apply them to. Other limits are those that the machine has at that moment.
    pub fn time_limits(&mut self, table: &str, name: &str, unanswered: Duration) {
        self.message(NEW_OBJECT, REQUEST | CREATE, IPV4, 0, |a| {
            a.text(1, table);
            a.text(2, name);
            a.number(3, TIME_LIMITS);
            a.nest(4, |a| {
                a.bytes(1, &u16::from(IPV4).to_be_bytes());
                a.bytes(2, &[TCP]);
                a.nest(3, |a| a.number(1, unanswered.as_secs() as u32));
            });
        });
    }

    pub fn add_elements<'e>(&mut self, table: &str, set: &str, elements: impl Iterator<Item = (&'e [u8], Data<'e>)>) {
        self.elements(NEW_ELEMENTS, REQUEST | CREATE, table, set, elements);
    }

    pub fn delete_elements<'e>(&mut self, table: &str, set: &str, keys: impl Iterator<Item = &'e [u8]>) {
        self.elements(DELETE_ELEMENTS, REQUEST, table, set, keys.map(|key| (key, Data::None)));
    }

    fn elements<'e>(
        &mut self,
        kind: u16,
        flags: u16,
        table: &str,
        set: &str,
        elements: impl Iterator<Item = (&'e [u8], Data<'e>)>,
    ) {
        let mut elements = elements.peekable();
        while elements.peek().is_some() {
            self.message(kind, flags, IPV4, 0, |a| {
                a.text(1, table);
                a.text(2, set);
                a.nest(3, |a| {
                    for (key, data) in elements.by_ref().take(ELEMENTS_AT_ONCE) {
                        a.nest(1, |a| sets::element(a, key, data));
                    }
                });
            });
        }
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.message(BATCH_END, REQUEST, 0, SUBSYSTEM >> 8, |_| {});
        self.bytes
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, content: impl FnOnce(&mut Attributes<'_>)) {
        let header = Header { kind, flags, sequence: self.messages, family, resource };
        wire::write(&mut self.bytes, &header, content);
        self.messages += 1;
        self.content += 1;
    }
}
