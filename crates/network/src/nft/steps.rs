//! The few kinds of step that the rules of a bridge consist of.

use std::net::Ipv4Addr;

use super::expressions::{Expressions, Register, Side};
use crate::range::Range;

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

pub fn expressions(steps: &[Step<'_>]) -> Expressions {
    const FIRST: Register = Register(0);
    const SECOND: Register = Register(1);
    steps.iter().fold(Expressions::new(), |rule, step| match *step {
        Step::From(range) => rule.if_address(FIRST, Side::Source, true, range),
        Step::NotTo(range) => rule.if_address(FIRST, Side::Destination, false, range),
        Step::FromExactly(address) => rule.if_address_is(FIRST, Side::Source, true, address),
        Step::ToExactly(address) => rule.if_address_is(FIRST, Side::Destination, true, address),
        Step::ToHere => rule.if_local(FIRST, Side::Destination),
        Step::Protocol(number) => rule.protocol(FIRST).compare(FIRST, true, &[number]),
        Step::ToPort(port) => rule.port(FIRST, Side::Destination).compare(FIRST, true, &port.to_be_bytes()),
        Step::LeavesBy(interface) => {
            let mut name = [0; 16];
            name.iter_mut().zip(interface.bytes().take(15)).for_each(|(to, from)| *to = from);
            rule.leaves_by(FIRST).compare(FIRST, true, &name)
        }
        Step::Divert(address, port) => {
            let loaded = rule.immediate(FIRST, &address.octets()).immediate(SECOND, &port.to_be_bytes());
            loaded.divert(FIRST, SECOND)
        }
        Step::Masquerade => rule.masquerade(),
    })
}
