//! What a rule is made of: loads into registers, tests of them, and at the end what is done.
//!
//! There are sixteen registers of four bytes. A longer value, such as a key of several parts, lies in consecutive
//! ones, each part padded to four bytes. A rule may read only what it has itself loaded.

use std::{net::Ipv4Addr, time::Duration};

use super::{IPV4, TCP, TIME_LIMITS, wire::Attributes};
use crate::range::Range;

/// One of the sixteen.
#[derive(Clone, Copy, Debug)]
pub struct Register(pub u32);

impl Register {
    fn number(self) -> u32 {
        8 + self.0
    }
}

/// Which of the two addresses of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    Source,
    Destination,
}

/// What a client is told that is not let through.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    TcpReset,
    PortUnreachable,
}

/// The steps of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expressions(Vec<u8>);

const LOCAL: u32 = 2;
const DESTINATION_CHANGED: u32 = 1 << 5;
const ANSWERED: u32 = 1 << 1;
const REPLY: [u8; 1] = [1];
const ICMP: u8 = 1;
/// Type and code.
const HOST_UNREACHABLE: [u8; 2] = [3, 1];
/// FIN, SYN, RST and ACK of TCP's flags.
const ABOUT_CONNECTIONS: [u8; 1] = [0x17];
const RST_AND_ACK: [u8; 1] = [0x14];

impl Expressions {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn encoded(&self) -> &[u8] {
        &self.0
    }

    /// The same steps have the same.
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.0)
    }

    fn with(mut self, name: &str, content: impl FnOnce(&mut Attributes<'_>)) -> Self {
        Attributes(&mut self.0).nest(1, |a| {
            a.text(1, name);
            a.nest(2, content);
        });
        self
    }

    fn payload(self, to: Register, base: u32, offset: u32, length: u32) -> Self {
        self.with("payload", |a| {
            a.number(1, to.number());
            a.number(2, base);
            a.number(3, offset);
            a.number(4, length);
        })
    }

    pub fn address(self, to: Register, side: Side) -> Self {
        let offset = match side {
            Side::Source => 12,
            Side::Destination => 16,
        };
        self.payload(to, 1, offset, 4)
    }

    /// One of the four bytes of an address.
    pub fn address_byte(self, to: Register, side: Side, byte: u32) -> Self {
        let offset = match side {
            Side::Source => 12,
            Side::Destination => 16,
        };
        self.payload(to, 1, offset + byte, 1)
    }

    pub fn port(self, to: Register, side: Side) -> Self {
        let offset = match side {
            Side::Source => 0,
            Side::Destination => 2,
        };
        self.payload(to, 2, offset, 2)
    }

    /// Of a TCP packet. One that is repeated has the same again.
    pub fn sequence_number(self, to: Register) -> Self {
        self.payload(to, 2, 4, 4)
    }

    fn meta(self, to: Register, key: u32) -> Self {
        self.with("meta", |a| {
            a.number(1, to.number());
            a.number(2, key);
        })
    }

    pub fn protocol(self, to: Register) -> Self {
        self.meta(to, 16)
    }

    pub fn leaves_by(self, to: Register) -> Self {
        self.meta(to, 7)
    }

    pub fn immediate(self, to: Register, value: &[u8]) -> Self {
        self.with("immediate", |a| {
            a.number(1, to.number());
            a.value(2, value);
        })
    }

    /// Any number below `count`.
    pub fn random(self, to: Register, count: u32) -> Self {
        self.with("numgen", |a| {
            a.number(1, to.number());
            a.number(2, count);
            a.number(3, 1);
        })
    }

    fn connection(self, to: Register, key: u32, original: bool) -> Self {
        self.with("ct", |a| {
            a.number(1, to.number());
            a.number(2, key);
            if original {
                a.bytes(3, &[0]);
            }
        })
    }

    /// Where the connection came from or went before anything was changed.
    pub fn original_address(self, to: Register, side: Side) -> Self {
        let key = match side {
            Side::Source => 19,
            Side::Destination => 20,
        };
        self.connection(to, key, true)
    }

    pub fn original_port(self, to: Register, side: Side) -> Self {
        let key = match side {
            Side::Source => 11,
            Side::Destination => 12,
        };
        self.connection(to, key, true)
    }

    pub fn original_protocol(self, to: Register) -> Self {
        self.connection(to, 10, true)
    }

    pub fn if_tcp(self, scratch: Register) -> Self {
        self.protocol(scratch).compare(scratch, true, &[TCP])
    }

    /// Goes on if this answers a first packet with a refusal: whoever did not accept has no sequence number, and sends zero.
    pub fn if_refusal(self, scratch: Register) -> Self {
        let flags = self.if_tcp(scratch).payload(scratch, 2, 13, 1).mask(scratch, &ABOUT_CONNECTIONS);
        let refusal = flags.compare(scratch, true, &RST_AND_ACK).sequence_number(scratch);
        refusal.compare(scratch, true, &0u32.to_be_bytes())
    }

    /// Goes on if this says that a packet did not reach a machine.
    pub fn if_unreachable(self, scratch: Register) -> Self {
        let said = self.protocol(scratch).compare(scratch, true, &[ICMP]).payload(scratch, 2, 0, 2);
        said.compare(scratch, true, &HOST_UNREACHABLE)
    }

    /// Goes on if the packet belongs to a TCP connection, or speaks of one.
    pub fn if_about_tcp(self, scratch: Register) -> Self {
        self.original_protocol(scratch).compare(scratch, true, &[TCP])
    }

    /// Goes on if the packet goes to who began the connection.
    pub fn if_answer(self, scratch: Register) -> Self {
        self.connection(scratch, 1, false).compare(scratch, true, &REPLY)
    }

    /// Goes on if the connection was diverted.
    pub fn if_diverted(self, scratch: Register) -> Self {
        self.if_status(scratch, DESTINATION_CHANGED, true)
    }

    /// Goes on if nobody has answered.
    pub fn if_unanswered(self, scratch: Register) -> Self {
        self.if_status(scratch, ANSWERED, false)
    }

    fn if_status(self, scratch: Register, bit: u32, is: bool) -> Self {
        let masked = self.connection(scratch, 2, false).mask(scratch, &bit.to_ne_bytes());
        masked.compare(scratch, !is, &0u32.to_ne_bytes())
    }

    /// The connection has these time limits.
    pub fn limit_time(self, limits: &str) -> Self {
        self.with("objref", |a| {
            a.number(1, TIME_LIMITS);
            a.text(2, limits);
        })
    }

    fn mask(self, register: Register, mask: &[u8]) -> Self {
        self.bitwise(register, mask, &vec![0; mask.len()])
    }

    /// Keeps the bits of the mask, and then flips those of the other.
    fn bitwise(self, register: Register, mask: &[u8], flip: &[u8]) -> Self {
        self.with("bitwise", |a| {
            a.number(1, register.number());
            a.number(2, register.number());
            a.number(3, mask.len() as u32);
            a.value(4, mask);
            a.value(5, flip);
        })
    }

    /// Puts two bytes behind the two that were loaded.
    pub fn mark(self, register: Register, [first, second]: [u8; 2]) -> Self {
        self.bitwise(register, &[0xff, 0xff, 0, 0], &[0, 0, first, second])
    }

    /// Goes on if the register is this, or is not.
    pub fn compare(self, register: Register, same: bool, value: &[u8]) -> Self {
        self.with("cmp", |a| {
            a.number(1, register.number());
            a.number(2, u32::from(!same));
            a.value(3, value);
        })
    }

    /// Goes on if the address lies in the range, or does not.
    pub fn if_address(self, scratch: Register, side: Side, within: bool, range: Range) -> Self {
        let masked = self.address(scratch, side).mask(scratch, &range.mask().octets());
        masked.compare(scratch, within, &range.base().octets())
    }

    /// Goes on if the address is exactly this, or is not.
    pub fn if_address_is(self, scratch: Register, side: Side, same: bool, address: Ipv4Addr) -> Self {
        self.address(scratch, side).compare(scratch, same, &address.octets())
    }

    /// Goes on if the address is one of the machine's own.
    pub fn if_local(self, scratch: Register, side: Side) -> Self {
        let loaded = self.with("fib", |a| {
            a.number(1, scratch.number());
            a.number(2, 3);
            a.number(
                3,
                match side {
                    Side::Source => 1,
                    Side::Destination => 2,
                },
            );
        });
        loaded.compare(scratch, true, &LOCAL.to_ne_bytes())
    }

    /// Goes on if the key is in the set.
    pub fn if_in(self, set: &str, key: Register) -> Self {
        self.with("lookup", |a| {
            a.text(1, set);
            a.number(2, key.number());
        })
    }

    /// Goes on if the key is not in the set.
    pub fn if_not_in(self, set: &str, key: Register) -> Self {
        self.with("lookup", |a| {
            a.text(1, set);
            a.number(2, key.number());
            a.number(5, 1);
        })
    }

    /// Goes on with what the map has for the key, if it has.
    pub fn find(self, map: &str, key: Register, to: Register) -> Self {
        self.with("lookup", |a| {
            a.text(1, map);
            a.number(2, key.number());
            a.number(3, to.number());
        })
    }

    /// Goes where the map says, if it says anything, and comes back if nothing is decided there.
    pub fn follow(self, map: &str, key: Register) -> Self {
        self.with("lookup", |a| {
            a.text(1, map);
            a.number(2, key.number());
            a.number(3, 0);
        })
    }

    /// Puts into a map, or lets what is there live longer. Goes on unless the map is full.
    pub fn remember(self, map: &str, key: Register, data: Register, timeout: Duration) -> Self {
        self.with("dynset", |a| {
            a.text(1, map);
            a.number(3, 1);
            a.number(4, key.number());
            a.number(5, data.number());
            a.bytes(6, &(timeout.as_millis() as u64).to_be_bytes());
        })
    }

    /// Puts into a set. Goes on unless the set is full.
    pub fn note(self, set: &str, key: Register, timeout: Duration) -> Self {
        self.with("dynset", |a| {
            a.text(1, set);
            a.number(3, 0);
            a.number(4, key.number());
            a.bytes(6, &(timeout.as_millis() as u64).to_be_bytes());
        })
    }

    /// Takes out of a map. What is in `data` does not matter, but something must be.
    pub fn forget(self, map: &str, key: Register, data: Register) -> Self {
        self.with("dynset", |a| {
            a.text(1, map);
            a.number(3, 2);
            a.number(4, key.number());
            a.number(5, data.number());
        })
    }

    fn verdict(self, code: i32, chain: Option<&str>) -> Self {
        self.with("immediate", |a| {
            a.number(1, 0);
            a.nest(2, |a| verdict(a, code, chain));
        })
    }

    /// Goes on in another chain and does not come back.
    pub fn goto(self, chain: &str) -> Self {
        self.verdict(GOTO, Some(chain))
    }

    pub fn drop(self) -> Self {
        self.verdict(0, None)
    }

    /// The connection goes there instead, and answers come back as if it had not.
    pub fn divert(self, address: Register, port: Register) -> Self {
        self.with("nat", |a| {
            a.number(1, 1);
            a.number(2, u32::from(IPV4));
            a.number(3, address.number());
            a.number(5, port.number());
        })
    }

    /// The connection goes to a port of this machine instead.
    pub fn redirect(self, port: Register) -> Self {
        self.with("redir", |a| a.number(1, port.number()))
    }

    /// The connection carries the machine's own address.
    pub fn masquerade(self) -> Self {
        self.with("masq", |_| {})
    }

    pub fn refuse(self, how: Refusal) -> Self {
        self.with("reject", |a| match how {
            Refusal::TcpReset => a.number(1, 1),
            Refusal::PortUnreachable => {
                a.number(1, 0);
                a.bytes(2, &[3]);
            }
        })
    }
}

const JUMP: i32 = -3;
const GOTO: i32 = -4;

fn verdict(a: &mut Attributes<'_>, code: i32, chain: Option<&str>) {
    a.nest(2, |a| {
        a.bytes(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            a.text(2, chain);
        }
    });
}

/// What an element of a map of verdicts holds.
pub fn jump(a: &mut Attributes<'_>, chain: &str) {
    verdict(a, JUMP, Some(chain));
}
