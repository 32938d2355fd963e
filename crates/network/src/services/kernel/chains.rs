//! The chains that packets pass. Pure.
//!
//! Only the first packet of a connection comes here; later ones follow what was decided for it. A packet may see one map
//! before and the next after a change: a number that was just drawn may be gone, then the first backend takes the
//! connection; and if there is none either, or the way of a front leads nowhere, the packet is dropped, which the client
//! repeats. It would hear of a refusal, or be let through to where nobody is.
//!
//! Connections that are refused are refused right here: the kernel takes a refusal in these chains as well, and packets
//! of established connections need not be looked at.
//!
//! The `nft` program, of which an administrator expects that it lists all rules, does not know how long a value is that
//! was found in a map, and dies when such a value begins a key or is put into another map. Where it does not know what is in
//! a register it only complains. So values that are used like that begin with a zero, and what they are used for begins after
//! it, or with a zero of our own in its place.
//!
//! Where callers inside go another way than those outside, the way of the front tells them apart, so that no other front
//! pays for it. Each machine does so for its own processes and pods: what comes from pods of others has been diverted there.
//!
//! **Who gets no answer tries again elsewhere.** A client that hears nothing repeats its first packet after a second, as every
//! TCP does. The kernel would send that after the first, so it is told to forget a connection that nobody answered for a
//! second ([`Again`]), and judges anew: a machine that just died delays its share of connections instead of failing them.
//! A client that stays with its backend gives it up when it has to repeat itself. Bad news may become silence too ([`unheard`]).
//!
//! What is to carry the machine's own address is found by where the connection went at first, which the kernel
//! remembers. Marking packets, as others do, takes a bit that somebody else may use.

use std::{net::Ipv4Addr, time::Duration};

use super::{
    KernelSettings,
    again::Again,
    layout::{
        At, BACKENDS, BEGUN, FRONTS, INSIDE, INSIDE_WAYS, MASQUERADED, MEMBERS, SAME, STICKY, STICKY_BACKENDS, Then,
        WAYS, Way,
    },
    unheard,
};
use crate::{
    nft::{
        Hook,
        expressions::{Expressions, Refusal, Register, Side},
    },
    range::Range,
};

const NOBODY: &str = "nobody";
const FROM_INSIDE: &str = "from-inside";
const AS_SENT: &str = "as-sent";

/// For so long a first packet is known, so that it is recognized when it is repeated: after one, three or seven seconds.
const REPEATED: Duration = Duration::from_secs(8);

/// Where a key begins.
pub const KEY: Register = Register(0);
/// Where what was found begins.
pub const FOUND: Register = Register(4);
/// What follows the zero that it may begin with.
const AFTER_ZERO: Register = Register(5);
/// Where a second key begins.
pub const OTHER_KEY: u32 = 8;
const ZERO: [u8; 4] = [0; 4];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    pub hook: Option<Hook>,
    pub rules: Vec<Expressions>,
}

/// Those that are there whatever the fronts, each after those that it leads to.
pub fn constant(settings: &KernelSettings) -> Vec<Chain> {
    let entry = vec![
        follow(front(Expressions::new(), At::Address, 0), WAYS.name),
        front(Expressions::new(), At::Address, 0).find(FRONTS.name, KEY, FOUND).drop(),
        follow(front(to_this_machine(), At::Node, 0), WAYS.name),
        front(to_this_machine(), At::Node, 0).find(FRONTS.name, KEY, FOUND).drop(),
        Expressions::new()
            .if_address(KEY, Side::Destination, true, settings.services)
            .if_address_is(KEY, Side::Destination, false, settings.dns())
            .goto(NOBODY),
    ];
    let own = [at_loopback(settings)].into_iter().flatten().chain(entry.iter().cloned()).collect();
    let masquerade = |node| went_to(node).if_in(MASQUERADED.name, KEY).masquerade();
    let of_ours = |node| went_to(node).find(FRONTS.name, KEY, FOUND).goto(AS_SENT);
    let mut all = vec![
        Chain { name: NOBODY.into(), hook: None, rules: refusals() },
        Chain {
            name: FROM_INSIDE.into(),
            hook: None,
            rules: vec![follow(front(Expressions::new(), At::Inside, 0), INSIDE_WAYS.name), Expressions::new().drop()],
        },
        Chain { name: AS_SENT.into(), hook: None, rules: vec![to_itself(), from_this_machine()] },
        Chain { name: "arriving".into(), hook: Some(Hook::Arriving), rules: entry },
        Chain { name: "own".into(), hook: Some(Hook::Own), rules: own },
        Chain {
            name: "leaving".into(),
            hook: Some(Hook::Leaving),
            rules: vec![masquerade(false), masquerade(true), of_ours(false), of_ours(true)],
        },
    ];
    all.extend(unheard::chains());
    all
}

/// The chain of a way.
pub fn of(way: Way, settings: &KernelSettings, again: Option<Again>) -> Chain {
    let then = match way.then {
        Then::Pick { count } => picks(way.at, count, again),
        Then::Stick { count, seconds } => sticks(way.at, count, Duration::from_secs(seconds.into()), again),
        Then::Hold => vec![to_our_process(Expressions::new(), settings)],
        Then::Refuse => refusals(),
        Then::Drop => vec![Expressions::new().drop()],
    };
    let first = if way.at == At::Outside { inside_apart(settings) } else { vec![] };
    Chain { name: way.chain(), hook: None, rules: [first, then].concat() }
}

/// Sends callers inside elsewhere: processes of this machine, and pods.
fn inside_apart(settings: &KernelSettings) -> Vec<Expressions> {
    let from_pods = Expressions::new().if_address(KEY, Side::Source, true, settings.pods);
    vec![Expressions::new().if_local(KEY, Side::Source).goto(FROM_INSIDE), from_pods.goto(FROM_INSIDE)]
}

fn to_this_machine() -> Expressions {
    let rule = Expressions::new().if_local(KEY, Side::Destination);
    match loopback() {
        Some(loopback) => rule.if_address(KEY, Side::Destination, false, loopback),
        None => rule,
    }
}

/// Loopback addresses do not leave the machine, so nothing at them can be answered from elsewhere: connections to node ports
/// there go by way of our own process, which has its own connection to the backend.
fn at_loopback(settings: &KernelSettings) -> Option<Expressions> {
    let there = Expressions::new().if_tcp(KEY).if_address(KEY, Side::Destination, true, loopback()?);
    Some(to_our_process(front(there, At::Node, 0).find(FRONTS.name, KEY, FOUND), settings))
}

fn loopback() -> Option<Range> {
    Range::around(Ipv4Addr::LOCALHOST, 8)
}

fn to_our_process(rule: Expressions, settings: &KernelSettings) -> Expressions {
    rule.immediate(KEY, &settings.proxy_port.to_be_bytes()).redirect(KEY)
}

/// Loads the front that the packet goes to into three registers.
fn front(rule: Expressions, at: At, first: u32) -> Expressions {
    let rule = match at {
        At::Node => rule.immediate(Register(first), &[0; 4]),
        At::Address | At::Inside | At::Outside => rule.address(Register(first), Side::Destination),
    };
    let port = Register(first + 2);
    let rule = rule.protocol(Register(first + 1)).port(port, Side::Destination);
    if at == At::Inside { rule.mark(port, INSIDE) } else { rule }
}

/// Goes the way of the front that was loaded.
fn follow(rule: Expressions, ways: &str) -> Expressions {
    rule.find(FRONTS.name, KEY, FOUND).follow(ways, AFTER_ZERO)
}

/// Loads the front that the connection was diverted from into three registers, if it was.
pub fn went_to(node: bool) -> Expressions {
    let rule = Expressions::new().if_diverted(KEY);
    let rule = match node {
        true => rule.immediate(KEY, &[0; 4]),
        false => rule.original_address(KEY, Side::Destination),
    };
    rule.original_protocol(Register(1)).original_port(Register(2), Side::Destination)
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
    vec![Expressions::new().if_tcp(KEY).refuse(Refusal::TcpReset), Expressions::new().refuse(Refusal::PortUnreachable)]
}

/// Finds a backend with any number below `count`, or the first.
fn picked(map: &str, at: At, count: Option<u32>) -> Expressions {
    let loaded = front(Expressions::new(), at, OTHER_KEY);
    let index = Register(OTHER_KEY + 3);
    let numbered = match count {
        Some(count) => loaded.random(index, count),
        None => loaded.immediate(index, &0u32.to_ne_bytes()),
    };
    numbered.find(map, Register(OTHER_KEY), FOUND)
}

fn limited(rule: Expressions, again: Option<Again>) -> Expressions {
    match again {
        Some(again) => rule.limit_time(&again.limits()),
        None => rule,
    }
}

fn picks(at: At, count: u32, again: Option<Again>) -> Vec<Expressions> {
    let diverted = |count| limited(picked(BACKENDS.name, at, count), again).divert(FOUND, AFTER_ZERO);
    vec![diverted(Some(count)), diverted(None), Expressions::new().drop()]
}

fn sticks(at: At, count: u32, time: Duration, again: Option<Again>) -> Vec<Expressions> {
    const ADDRESS: Register = AFTER_ZERO;
    const PORT: Register = Register(6);
    let client = |rule: Expressions| front(rule.address(KEY, Side::Source), at, 1);
    let remember = |rule: Expressions| rule.immediate(FOUND, &ZERO).remember(STICKY.name, KEY, FOUND, time);
    let remembered = client(Expressions::new()).find(STICKY.name, KEY, FOUND);
    // A backend and the front that follows it together are a member.
    let remembered = front(remembered, at, 7).if_in(MEMBERS.name, ADDRESS);
    let forget = |rule: Expressions| {
        let nothing = [FOUND, ADDRESS, PORT].into_iter().fold(client(rule), |rule, r| rule.immediate(r, &ZERO));
        nothing.forget(STICKY.name, KEY, FOUND)
    };
    let packet = Register(OTHER_KEY);
    let loaded = || {
        let client = Expressions::new().address(packet, Side::Source).port(Register(OTHER_KEY + 1), Side::Source);
        client.sequence_number(Register(OTHER_KEY + 2))
    };
    let picked = |count| picked(STICKY_BACKENDS.name, at, count);
    let diverted = |rule| limited(rule, again).divert(ADDRESS, PORT);
    vec![
        // Whoever it stays with does not answer.
        forget(loaded().if_in(BEGUN.name, packet)),
        loaded().note(BEGUN.name, packet, REPEATED),
        diverted(remember(remembered)),
        // Whoever it stayed with is gone.
        forget(Expressions::new()),
        diverted(remember(client(picked(Some(count))))),
        // No more can be remembered.
        diverted(picked(Some(count))),
        diverted(picked(None)),
        Expressions::new().drop(),
    ]
}
