//! The chains that packets pass. Pure.
//!
//! Only the first packet of a connection comes here; later ones follow what was decided for it. A packet may see maps
//! before and after a change, so that a number that was just drawn may be gone: then the first backend takes the
//! connection, and if there is none either the packet is dropped, which the client repeats.
//!
//! Connections that are refused are refused right here: the kernel takes a refusal in these chains as well, and packets
//! of established connections need not be looked at.
//!
//! What is to carry the machine's own address is found by where the connection went at first, which the kernel
//! remembers. Marking packets, as others do, takes a bit that somebody else may use.

use std::{net::Ipv4Addr, time::Duration};

use super::{
    KernelSettings,
    layout::{BACKENDS, FRONTS, MEMBERS, SAME, STICKY, Then, WAYS, Way},
};
use crate::{
    nft::{
        Hook,
        expressions::{Expressions, Refusal, Register, Side},
    },
    range::Range,
};

const NOBODY: &str = "nobody";
const AS_SENT: &str = "as-sent";
const TCP: [u8; 1] = [6];

/// Where a key begins.
const KEY: Register = Register(0);
/// Where what was found begins.
const FOUND: Register = Register(4);
const FOUND_WAY: Register = Register(5);
const FOUND_PORT: Register = Register(5);
/// Where a second key begins.
const OTHER_KEY: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    pub hook: Option<Hook>,
    pub rules: Vec<Expressions>,
}

/// Those that are there whatever the fronts, each after those that it leads to.
pub fn constant(settings: &KernelSettings) -> Vec<Chain> {
    let entry = vec![
        front(Expressions::new(), false, 0).find(FRONTS.name, KEY, FOUND).follow(WAYS.name, FOUND_WAY),
        // The loopback addresses do not leave the machine, so nothing at them can be answered from elsewhere.
        front(to_this_machine(), true, 0).find(FRONTS.name, KEY, FOUND).follow(WAYS.name, FOUND_WAY),
        Expressions::new()
            .if_address(KEY, Side::Destination, true, settings.services)
            .if_address_is(KEY, Side::Destination, false, settings.dns())
            .goto(NOBODY),
    ];
    let masquerade = |node| was_for(node).compare(FOUND, true, &1u32.to_ne_bytes()).masquerade();
    vec![
        Chain { name: NOBODY.into(), hook: None, rules: refusals() },
        Chain { name: AS_SENT.into(), hook: None, rules: vec![to_itself(), from_this_machine()] },
        Chain { name: "arriving".into(), hook: Some(Hook::Arriving), rules: entry.clone() },
        Chain { name: "own".into(), hook: Some(Hook::Own), rules: entry },
        Chain {
            name: "leaving".into(),
            hook: Some(Hook::Leaving),
            rules: vec![masquerade(false), masquerade(true), was_for(false).goto(AS_SENT), was_for(true).goto(AS_SENT)],
        },
    ]
}

/// The chain of a way.
pub fn of(way: Way, proxy_port: u16) -> Chain {
    let rules = match way.then {
        Then::Pick { count } => picks(way.node, count),
        Then::Stick { count, seconds } => sticks(way.node, count, Duration::from_secs(seconds.into())),
        Then::Hold => vec![Expressions::new().immediate(KEY, &proxy_port.to_be_bytes()).redirect(KEY)],
        Then::Refuse => refusals(),
        Then::Drop => vec![Expressions::new().drop()],
    };
    Chain { name: way.chain(), hook: None, rules }
}

fn to_this_machine() -> Expressions {
    let rule = Expressions::new().if_local(KEY, Side::Destination);
    match Range::around(Ipv4Addr::LOCALHOST, 8) {
        Some(loopback) => rule.if_address(KEY, Side::Destination, false, loopback),
        None => rule,
    }
}

/// Loads the front that the packet goes to into three registers.
fn front(rule: Expressions, node: bool, first: u32) -> Expressions {
    let rule = match node {
        true => rule.immediate(Register(first), &[0; 4]),
        false => rule.address(Register(first), Side::Destination),
    };
    rule.protocol(Register(first + 1)).port(Register(first + 2))
}

/// Goes on with what the connection's front says, if it was diverted from one.
fn was_for(node: bool) -> Expressions {
    let rule = Expressions::new().if_diverted(KEY);
    let rule = match node {
        true => rule.immediate(KEY, &[0; 4]),
        false => rule.original_address(KEY),
    };
    rule.protocol(Register(1)).original_port(Register(2)).find(FRONTS.name, KEY, FOUND)
}

/// A pod that reaches itself would not take an answer from itself.
fn to_itself() -> Expressions {
    // The last byte first: it differs most.
    let compared = (0..4).rev().fold(Expressions::new(), |rule, byte| {
        let loaded = rule.address_byte(KEY, Side::Source, byte).address_byte(Register(1), Side::Destination, byte);
        loaded.if_in(SAME.name, KEY)
    });
    compared.masquerade()
}

/// What the machine itself sends got its address before it was known where it goes.
fn from_this_machine() -> Expressions {
    Expressions::new().if_local(KEY, Side::Source).masquerade()
}

fn refusals() -> Vec<Expressions> {
    let tcp = Expressions::new().protocol(KEY).compare(KEY, true, &TCP);
    vec![tcp.refuse(Refusal::TcpReset), Expressions::new().refuse(Refusal::PortUnreachable)]
}

/// Finds a backend with any number below `count`, or the first.
fn picked(rule: Expressions, node: bool, count: Option<u32>) -> Expressions {
    let loaded = front(rule, node, OTHER_KEY);
    let index = Register(OTHER_KEY + 3);
    let numbered = match count {
        Some(count) => loaded.random(index, count),
        None => loaded.immediate(index, &0u32.to_ne_bytes()),
    };
    numbered.find(BACKENDS.name, Register(OTHER_KEY), FOUND)
}

fn picks(node: bool, count: u32) -> Vec<Expressions> {
    vec![
        picked(Expressions::new(), node, Some(count)).divert(FOUND, FOUND_PORT),
        picked(Expressions::new(), node, None).divert(FOUND, FOUND_PORT),
        Expressions::new().drop(),
    ]
}

fn sticks(node: bool, count: u32, time: Duration) -> Vec<Expressions> {
    // Four registers of client and front, followed by two of the backend: front and backend together are a member.
    let client = |rule: Expressions| front(rule.address(KEY, Side::Source), node, 1);
    const MEMBER: Register = Register(1);
    let remembered = client(Expressions::new()).find(STICKY.name, KEY, FOUND).if_in(MEMBERS.name, MEMBER);
    let nothing = client(Expressions::new()).immediate(FOUND, &[0; 4]).immediate(FOUND_PORT, &[0; 4]);
    let new = client(picked(Expressions::new(), node, Some(count)));
    let mut rules = vec![
        remembered.remember(STICKY.name, KEY, FOUND, time).divert(FOUND, FOUND_PORT),
        // Whoever it stayed with is gone.
        nothing.forget(STICKY.name, KEY, FOUND),
        new.remember(STICKY.name, KEY, FOUND, time).divert(FOUND, FOUND_PORT),
    ];
    rules.extend(picks(node, count));
    rules
}
