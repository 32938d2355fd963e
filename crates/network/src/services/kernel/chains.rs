//! The chains of the Services table. Pure.
//!
//! Only the first packet of a connection passes nat chains; conntrack applies the decision to the rest. A packet may
//! see one map before a transaction and the next map after it: a random index may then be gone, and the first backend
//! takes the connection; if there is none either, or the frontend's disposition has no chain, the packet is dropped,
//! and the client retransmits it. A reject would reach the client as an error, and accepting the packet would send it
//! to an address that nobody has.
//!
//! Connections are rejected in these chains too: the kernel allows `reject` in nat chains, and packets of established
//! connections then pass no filter rule for it.
//!
//! Administrators expect `nft list ruleset` to work. The `nft` program does not know the length of a value that a
//! rule loaded from a map, and crashes when such a value begins a key or is written to another map. It only warns
//! when it does not know what is in a register. So values that are used in such a way begin with a zero field, and
//! their use begins after it, or with a zero that the rule itself loads in its place.
//!
//! Where clients inside the cluster have other backends than clients outside, the disposition of the frontend
//! distinguishes them, so that no other frontend pays for it. Each machine does so for its own processes and pods:
//! what pods of other machines send has passed DNAT there.
//!
//! **An unanswered SYN is balanced anew.** A client retransmits its SYN after a second. Conntrack would send it to
//! the same backend, so the entry of an unanswered SYN times out after a second ([`ConntrackTimeout`]), and the
//! retransmission passes these chains again: a machine that just died delays its share of connections instead of
//! failing them. With session affinity, a retransmitted SYN deletes the client's affinity. A backend's errors may be
//! dropped, too ([`suppress_errors`]).
//!
//! Which packets are masqueraded is decided by the original destination of the connection, which conntrack knows.
//! kube-proxy marks packets instead, and that takes a bit that somebody else may use.

use std::{net::Ipv4Addr, time::Duration};

use super::{
    KernelSettings,
    conntrack_timeout::ConntrackTimeout,
    maps::{
        AFFINITY, AFFINITY_BACKENDS, AFFINITY_MEMBERS, Action, BACKENDS, DISPOSITIONS, Disposition, EQUAL_BYTES,
        FRONTENDS, INTERNAL_DISPOSITIONS, INTERNAL_MARK, MASQUERADED, RECENT_SYNS, Scope,
    },
    suppress_errors,
};
use crate::{
    nft::{
        Hook,
        expressions::{Expressions, Register, RejectWith, Side},
    },
    range::Range,
};

const NO_FRONTEND: &str = "no-frontend";
const INTERNAL_CLIENTS: &str = "internal-clients";
const LOCAL_MASQUERADE: &str = "local-masquerade";

/// How long a SYN is remembered to recognize its retransmissions, which follow after one, three and seven seconds.
const SYN_MEMORY: Duration = Duration::from_secs(8);

/// Where a key begins.
pub const KEY: Register = Register(0);
/// Where a value from a map begins.
pub const VALUE: Register = Register(4);
/// The second field of such a value, after a leading zero.
const VALUE_AFTER_ZERO: Register = Register(5);
/// Where a second key begins.
pub const SECOND_KEY: u32 = 8;
const ZERO: [u8; 4] = [0; 4];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// Of a base chain.
    pub hook: Option<Hook>,
    pub rules: Vec<Expressions>,
}

/// The chains that do not depend on the frontends, each after those that it jumps to.
pub fn constant_chains(settings: &KernelSettings) -> Vec<Chain> {
    let dispatch = vec![
        dispatch_to_disposition(load_frontend(Expressions::new(), Scope::Address, 0), DISPOSITIONS.name),
        load_frontend(Expressions::new(), Scope::Address, 0).lookup(FRONTENDS.name, KEY, VALUE).drop(),
        dispatch_to_disposition(load_frontend(if_node_address(), Scope::NodePort, 0), DISPOSITIONS.name),
        load_frontend(if_node_address(), Scope::NodePort, 0).lookup(FRONTENDS.name, KEY, VALUE).drop(),
        Expressions::new()
            .if_address_in(KEY, Side::Destination, settings.services)
            .if_address_not(KEY, Side::Destination, settings.dns())
            .goto(NO_FRONTEND),
    ];
    let output = [node_port_at_loopback(settings)].into_iter().flatten().chain(dispatch.iter().cloned()).collect();
    let masquerade = |node_port| load_original_frontend(node_port).if_in_set(MASQUERADED.name, KEY).masquerade();
    let of_frontend =
        |node_port| load_original_frontend(node_port).lookup(FRONTENDS.name, KEY, VALUE).goto(LOCAL_MASQUERADE);
    let mut all = vec![
        Chain { name: NO_FRONTEND.into(), hook: None, rules: reject_rules() },
        Chain {
            name: INTERNAL_CLIENTS.into(),
            hook: None,
            rules: vec![
                dispatch_to_disposition(
                    load_frontend(Expressions::new(), Scope::Internal, 0),
                    INTERNAL_DISPOSITIONS.name,
                ),
                Expressions::new().drop(),
            ],
        },
        Chain { name: LOCAL_MASQUERADE.into(), hook: None, rules: vec![hairpin(), from_this_machine()] },
        Chain { name: "prerouting".into(), hook: Some(Hook::Prerouting), rules: dispatch },
        Chain { name: "output".into(), hook: Some(Hook::OutputNat), rules: output },
        Chain {
            name: "postrouting".into(),
            hook: Some(Hook::Postrouting),
            rules: vec![masquerade(false), masquerade(true), of_frontend(false), of_frontend(true)],
        },
    ];
    all.extend(suppress_errors::chains(settings));
    all
}

/// The chain that carries out a disposition.
pub fn disposition_chain(
    disposition: Disposition,
    settings: &KernelSettings,
    timeout: Option<ConntrackTimeout>,
) -> Chain {
    let scope = disposition.scope;
    let action = match disposition.action {
        Action::Balance { count } => balance_rules(scope, count, timeout),
        Action::Affinity { count, seconds } => {
            affinity_rules(scope, count, Duration::from_secs(seconds.into()), timeout)
        }
        Action::Hold => vec![redirect_to_proxy(Expressions::new(), settings)],
        Action::Reject => reject_rules(),
        Action::Drop => vec![Expressions::new().drop()],
    };
    let first = if scope == Scope::External { internal_client_rules(settings) } else { vec![] };
    Chain { name: disposition.chain(), hook: None, rules: [first, action].concat() }
}

/// Sends clients inside the cluster, processes of this machine and pods, to their own dispositions.
fn internal_client_rules(settings: &KernelSettings) -> Vec<Expressions> {
    let from_pods = Expressions::new().if_address_in(KEY, Side::Source, settings.pods);
    let from_machine = Expressions::new().if_local_address(KEY, Side::Source);
    vec![from_machine.goto(INTERNAL_CLIENTS), from_pods.goto(INTERNAL_CLIENTS)]
}

/// Matches packets to this machine's own addresses, apart from loopback.
fn if_node_address() -> Expressions {
    let rule = Expressions::new().if_local_address(KEY, Side::Destination);
    match loopback() {
        Some(loopback) => rule.if_address_not_in(KEY, Side::Destination, loopback),
        None => rule,
    }
}

/// Redirects connections to node ports at loopback addresses to the user-space proxy, which opens its own connection
/// to the backend: packets with loopback addresses do not leave the machine, so no backend elsewhere could answer
/// them.
fn node_port_at_loopback(settings: &KernelSettings) -> Option<Expressions> {
    let to_loopback = Expressions::new().if_tcp(KEY).if_address_in(KEY, Side::Destination, loopback()?);
    let of_frontend = load_frontend(to_loopback, Scope::NodePort, 0).lookup(FRONTENDS.name, KEY, VALUE);
    Some(redirect_to_proxy(of_frontend, settings))
}

fn loopback() -> Option<Range> {
    Range::around(Ipv4Addr::LOCALHOST, 8)
}

fn redirect_to_proxy(rule: Expressions, settings: &KernelSettings) -> Expressions {
    rule.load_immediate(KEY, &settings.proxy_port.to_be_bytes()).redirect(KEY)
}

/// Loads the frontend that the packet goes to into three registers: address, protocol, port.
fn load_frontend(rule: Expressions, scope: Scope, first: u32) -> Expressions {
    let rule = match scope {
        Scope::NodePort => rule.load_immediate(Register(first), &ZERO),
        Scope::Address | Scope::Internal | Scope::External => rule.load_address(Register(first), Side::Destination),
    };
    let port = Register(first + 2);
    let rule = rule.load_l4proto(Register(first + 1)).load_port(port, Side::Destination);
    if scope == Scope::Internal { rule.fill_port_padding(port, INTERNAL_MARK) } else { rule }
}

/// Jumps to the chain of the disposition of the frontend that was loaded.
fn dispatch_to_disposition(rule: Expressions, dispositions: &str) -> Expressions {
    rule.lookup(FRONTENDS.name, KEY, VALUE).vmap(dispositions, VALUE_AFTER_ZERO)
}

/// Loads the frontend that the connection went to before DNAT into three registers. Matches only after DNAT.
pub fn load_original_frontend(node_port: bool) -> Expressions {
    let rule = Expressions::new().if_ct_dnat(KEY);
    let rule = match node_port {
        true => rule.load_immediate(KEY, &ZERO),
        false => rule.load_ct_original_address(KEY, Side::Destination),
    };
    rule.load_ct_original_protocol(Register(1)).load_ct_original_port(Register(2), Side::Destination)
}

/// Masquerades a pod's connection to itself: it drops packets that come from its own address.
fn hairpin() -> Expressions {
    // The last byte first: it differs most.
    let same_address = (0..4).rev().fold(Expressions::new(), |rule, byte| {
        let source = rule.load_address_byte(KEY, Side::Source, byte);
        source.load_address_byte(Register(1), Side::Destination, byte).if_in_set(EQUAL_BYTES.name, KEY)
    });
    same_address.masquerade()
}

/// Masquerades what this machine's processes send: their source address was chosen before DNAT changed the route.
fn from_this_machine() -> Expressions {
    Expressions::new().if_local_address(KEY, Side::Source).masquerade()
}

fn reject_rules() -> Vec<Expressions> {
    vec![
        Expressions::new().if_tcp(KEY).reject(RejectWith::TcpReset),
        Expressions::new().reject(RejectWith::IcmpPortUnreachable),
    ]
}

/// Loads the backend with a random index below `count`, or the first backend.
fn load_backend(map: &str, scope: Scope, count: Option<u32>) -> Expressions {
    let loaded = load_frontend(Expressions::new(), scope, SECOND_KEY);
    let index = Register(SECOND_KEY + 3);
    let indexed = match count {
        Some(count) => loaded.load_random(index, count),
        None => loaded.load_immediate(index, &0u32.to_ne_bytes()),
    };
    indexed.lookup(map, Register(SECOND_KEY), VALUE)
}

fn set_timeout(rule: Expressions, timeout: Option<ConntrackTimeout>) -> Expressions {
    match timeout {
        Some(timeout) => rule.set_ct_timeout(&timeout.object_name()),
        None => rule,
    }
}

fn balance_rules(scope: Scope, count: u32, timeout: Option<ConntrackTimeout>) -> Vec<Expressions> {
    let dnat = |count| set_timeout(load_backend(BACKENDS.name, scope, count), timeout).dnat(VALUE, VALUE_AFTER_ZERO);
    vec![dnat(Some(count)), dnat(None), Expressions::new().drop()]
}

/// Session affinity by client address.
fn affinity_rules(scope: Scope, count: u32, time: Duration, timeout: Option<ConntrackTimeout>) -> Vec<Expressions> {
    const ADDRESS: Register = VALUE_AFTER_ZERO;
    const PORT: Register = Register(6);
    let client = |rule: Expressions| load_frontend(rule.load_address(KEY, Side::Source), scope, 1);
    let remember = |rule: Expressions| rule.load_immediate(VALUE, &ZERO).update_map(AFFINITY.name, KEY, VALUE, time);
    let remembered = client(Expressions::new()).lookup(AFFINITY.name, KEY, VALUE);
    // The backend and, in the registers behind it, the frontend are a key of the members.
    let remembered = load_frontend(remembered, scope, 7).if_in_set(AFFINITY_MEMBERS.name, ADDRESS);
    let forget = |rule: Expressions| {
        let zeros = [VALUE, ADDRESS, PORT].into_iter().fold(client(rule), |rule, r| rule.load_immediate(r, &ZERO));
        zeros.delete_from_map(AFFINITY.name, KEY, VALUE)
    };
    let syn = Register(SECOND_KEY);
    let load_syn = || {
        let client =
            Expressions::new().load_address(syn, Side::Source).load_port(Register(SECOND_KEY + 1), Side::Source);
        client.load_tcp_sequence(Register(SECOND_KEY + 2))
    };
    let balanced = |count| load_backend(AFFINITY_BACKENDS.name, scope, count);
    let dnat = |rule| set_timeout(rule, timeout).dnat(ADDRESS, PORT);
    vec![
        // A retransmitted SYN: the remembered backend does not answer.
        forget(load_syn().if_in_set(RECENT_SYNS.name, syn)),
        load_syn().add_to_set(RECENT_SYNS.name, syn, SYN_MEMORY),
        dnat(remember(remembered)),
        // The remembered backend is not one of this frontend any more.
        forget(Expressions::new()),
        dnat(remember(client(balanced(Some(count))))),
        // The affinity map is full.
        dnat(balanced(Some(count))),
        dnat(balanced(None)),
        Expressions::new().drop(),
    ]
}
