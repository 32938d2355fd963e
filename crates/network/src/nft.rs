//! The kernel's packet rules (nf_tables), as far as we use them, straight over netlink.
//!
//! A batch is one transaction: all of it holds, or nothing has changed. The crates for this either need a C
//! library, call a program that a machine may not have, or carry a licence that ours cannot follow; what
//! we need of the encoding is this file.

use std::{io, net::Ipv4Addr};

use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use crate::range::Range;

const SUBSYSTEM: u16 = 10 << 8;
const IPV4: u8 = 2;

// Kinds of message.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM + 2;
const NEW_CHAIN: u16 = SUBSYSTEM + 3;
const NEW_RULE: u16 = SUBSYSTEM + 6;
const ERROR: u16 = 2;

// Flags of a message.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

const NESTED: u16 = 0x8000;
const HEADER: usize = 16;

/// Where in a packet's path a chain stands.
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    /// Before it is decided where an arriving packet goes.
    Arriving,
    /// The machine's own, before it is decided where it goes.
    Own,
    /// On the way out.
    Leaving,
}

/// One step of a rule: a test, or at the end what is done.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    From(Range),
    FromExactly(Ipv4Addr),
    NotTo(Range),
    ToExactly(Ipv4Addr),
    /// To any address of the machine itself.
    ToHere,
    Protocol(u8),
    ToPort(u16),
    LeavesBy(&'a str),
    /// The packet goes there instead, and answers come back as if it had not.
    Divert(Ipv4Addr, u16),
    /// The packet carries the machine's own address.
    Masquerade,
}

#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    messages: u32,
}

impl Batch {
    pub fn new() -> Self {
        let mut batch = Self::default();
        batch.message(BATCH_BEGIN, REQUEST, 0, SUBSYSTEM >> 8, |_| {});
        batch
    }

    pub fn table(&mut self, name: &str) {
        self.message(NEW_TABLE, REQUEST | ACK | CREATE, IPV4, 0, |a| a.text(1, name));
    }

    pub fn delete_table(&mut self, name: &str) {
        self.message(DELETE_TABLE, REQUEST | ACK, IPV4, 0, |a| a.text(1, name));
    }

    /// A chain that may change addresses.
    pub fn chain(&mut self, table: &str, name: &str, hook: Hook) {
        let (number, priority): (u32, i32) = match hook {
            Hook::Arriving => (0, -100),
            Hook::Own => (3, -100),
            Hook::Leaving => (4, 100),
        };
        self.message(NEW_CHAIN, REQUEST | ACK | CREATE, IPV4, 0, |a| {
            a.text(1, table);
            a.text(3, name);
            a.nest(4, |a| {
                a.number(1, number);
                a.bytes(2, &priority.to_be_bytes());
            });
            a.text(7, "nat");
        });
    }

    pub fn rule(&mut self, table: &str, chain: &str, steps: &[Step<'_>]) {
        self.message(NEW_RULE, REQUEST | ACK | CREATE | APPEND, IPV4, 0, |a| {
            a.text(1, table);
            a.text(2, chain);
            a.nest(4, |a| steps.iter().for_each(|step| a.step(step)));
        });
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.message(BATCH_END, REQUEST, 0, SUBSYSTEM >> 8, |_| {});
        self.bytes
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, content: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.messages.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        content(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.messages += 1;
    }
}

struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        content(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn expression(&mut self, name: &str, content: impl FnOnce(&mut Attributes<'_>)) {
        self.nest(1, |a| {
            a.text(1, name);
            a.nest(2, content);
        });
    }

    fn value(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |a| a.bytes(1, value));
    }

    /// A part of the packet into the first register: from the address header, or from the one of the protocol within.
    fn load(&mut self, base: u32, offset: u32, length: u32) {
        self.expression("payload", |a| {
            a.number(1, 1);
            a.number(2, base);
            a.number(3, offset);
            a.number(4, length);
        });
    }

    /// The first register is this, or is not.
    fn compare(&mut self, same: bool, value: &[u8]) {
        self.expression("cmp", |a| {
            a.number(1, 1);
            a.number(2, u32::from(!same));
            a.value(3, value);
        });
    }

    fn address(&mut self, offset: u32, same: bool, range: Range) {
        self.load(1, offset, 4);
        self.expression("bitwise", |a| {
            a.number(1, 1);
            a.number(2, 1);
            a.number(3, 4);
            a.value(4, &range.mask().octets());
            a.value(5, &[0; 4]);
        });
        self.compare(same, &range.base().octets());
    }

    fn meta(&mut self, key: u32) {
        self.expression("meta", |a| {
            a.number(1, 1);
            a.number(2, key);
        });
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.expression("immediate", |a| {
            a.number(1, register);
            a.value(2, value);
        });
    }

    fn step(&mut self, step: &Step<'_>) {
        const SOURCE: u32 = 12;
        const DESTINATION: u32 = 16;
        match *step {
            Step::From(range) => self.address(SOURCE, true, range),
            Step::NotTo(range) => self.address(DESTINATION, false, range),
            Step::FromExactly(address) => {
                self.load(1, SOURCE, 4);
                self.compare(true, &address.octets());
            }
            Step::ToExactly(address) => {
                self.load(1, DESTINATION, 4);
                self.compare(true, &address.octets());
            }
            Step::ToHere => {
                self.expression("fib", |a| {
                    a.number(1, 1);
                    a.number(2, 3); // the kind of address…
                    a.number(3, 2); // …of the destination
                });
                self.compare(true, &2u32.to_ne_bytes()); // is "local"
            }
            Step::Protocol(number) => {
                self.meta(16);
                self.compare(true, &[number]);
            }
            Step::ToPort(port) => {
                self.load(2, 2, 2);
                self.compare(true, &port.to_be_bytes());
            }
            Step::LeavesBy(interface) => {
                self.meta(7);
                let mut name = [0; 16];
                name.iter_mut().zip(interface.bytes().take(15)).for_each(|(to, from)| *to = from);
                self.compare(true, &name);
            }
            Step::Divert(address, port) => {
                self.immediate(1, &address.octets());
                self.immediate(2, &port.to_be_bytes());
                self.expression("nat", |a| {
                    a.number(1, 1);
                    a.number(2, u32::from(IPV4));
                    a.number(3, 1);
                    a.number(5, 2);
                });
            }
            Step::Masquerade => self.expression("masq", |_| {}),
        }
    }
}

/// Hands a batch to the kernel, which judges it before the call returns.
pub fn send(batch: &[u8]) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.set_rx_buf_sz((batch.len() as u32 * 2).max(1 << 20))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    socket.send(batch, 0)?;
    loop {
        match socket.recv_from_full() {
            Ok((answers, _)) => verdict(&answers)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The first refusal among answers.
fn verdict(mut answers: &[u8]) -> io::Result<()> {
    while answers.len() >= HEADER + 4 {
        let length = u32::from_ne_bytes([answers[0], answers[1], answers[2], answers[3]]) as usize;
        let kind = u16::from_ne_bytes([answers[4], answers[5]]);
        let code = i32::from_ne_bytes([answers[16], answers[17], answers[18], answers[19]]);
        if kind == ERROR && code != 0 {
            return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
        }
        answers = answers.get(length.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
    }
    Ok(())
}
