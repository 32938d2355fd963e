//! Drops errors that are out of date when the client sends again: a backend's first RST and ICMP unreachable, so that
//! its next SYN is balanced anew, and those of DNS while no agent runs. Pure.
//!
//! An error that arrives before the frontend has lost its dead backend is out of date when the client retransmits its
//! SYN. So at frontends that hold connections (`mainstay.dev/hold`), the first RST to each client is dropped. A
//! second one is not: the backend may listen on another port for good. ICMP host unreachable is always dropped. UDP
//! is not held, and its clients receive every error. These chains see every packet; the first match ends the rules
//! for almost all of them.
//!
//! Cluster DNS is served by the agent, and these rules outlive it. While it is started anew, the kernel would answer
//! queries with ICMP port unreachable, upon which resolvers give up at once (`EAI_AGAIN`). Without an error they
//! repeat the query. Clients of DNS over TCP retransmit their SYN likewise.

use std::time::Duration;

use super::{
    KernelSettings,
    chains::{Chain, KEY, SECOND_KEY, VALUE, load_original_frontend},
    maps::{FRONTENDS, NO_HOLD, RECENT_RSTS},
};
use crate::nft::{
    Hook,
    expressions::{Expressions, Register, Side},
};

const BACKEND_RST: &str = "backend-rst";
const BACKEND_UNREACHABLE: &str = "backend-unreachable";

/// How long a dropped RST is remembered: longer than the client waits before it retransmits its SYN.
const RST_MEMORY: Duration = Duration::from_secs(10);

const DNS_PORT: u16 = 53;

/// The chains, each after those that it jumps to.
pub fn chains(settings: &KernelSettings) -> Vec<Chain> {
    let rst = [false, true].map(|node_port| if_first_rst(if_may_hold(node_port)).drop());
    let unreachable = [false, true].map(|node_port| if_may_hold(node_port).drop());
    let errors = vec![
        Expressions::new().if_rst_to_syn(KEY).if_ct_reply(KEY).goto(BACKEND_RST),
        Expressions::new()
            .if_icmp_host_unreachable(KEY)
            .if_ct_tcp(KEY)
            .if_ct_reply(KEY)
            .if_ct_no_reply(KEY)
            .goto(BACKEND_UNREACHABLE),
    ];
    vec![
        Chain { name: BACKEND_RST.into(), hook: None, rules: rst.into() },
        Chain { name: BACKEND_UNREACHABLE.into(), hook: None, rules: unreachable.into() },
        Chain { name: "input".into(), hook: Some(Hook::Input), rules: errors.clone() },
        Chain { name: "forward".into(), hook: Some(Hook::Forward), rules: errors.clone() },
        Chain {
            name: "output-filter".into(),
            hook: Some(Hook::OutputFilter),
            rules: [dns_errors(settings), errors].concat(),
        },
    ]
}

/// Matches this machine's errors about queries to cluster DNS.
fn dns_errors(settings: &KernelSettings) -> Vec<Expressions> {
    let of_dns = |rule: Expressions| {
        rule.if_address(KEY, Side::Source, settings.dns())
            .load_ct_original_port(KEY, Side::Destination)
            .if_equal(KEY, &DNS_PORT.to_be_bytes())
            .drop()
    };
    vec![of_dns(Expressions::new().if_icmp_port_unreachable(KEY)), of_dns(Expressions::new().if_rst_to_syn(KEY))]
}

/// Matches connections whose frontend holds.
fn if_may_hold(node_port: bool) -> Expressions {
    load_original_frontend(node_port).lookup(FRONTENDS.name, KEY, VALUE).if_not_in_set(NO_HOLD.name, KEY)
}

/// Matches clients to which no RST was dropped a moment ago, and remembers this one.
fn if_first_rst(rule: Expressions) -> Expressions {
    const CLIENT: Register = Register(SECOND_KEY);
    let sides = [Side::Source, Side::Destination].into_iter().zip([SECOND_KEY, SECOND_KEY + 2]);
    let loaded = sides.fold(rule, |rule, (side, to)| {
        rule.load_ct_original_address(Register(to), side).load_ct_original_port(Register(to + 1), side)
    });
    loaded.if_not_in_set(RECENT_RSTS.name, CLIENT).add_to_set(RECENT_RSTS.name, CLIENT, RST_MEMORY)
}
