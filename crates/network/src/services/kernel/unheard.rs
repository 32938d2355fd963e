//! Bad news that clients do not hear. Pure.
//!
//! What arrives before the table knows that a backend is gone is out of date when the client repeats its first packet. So where
//! clients may be held (`mainstay.dev/hold`), a backend's first refusal to each of them is dropped, though not a second: it
//! may listen on another port for good. And so is all word that a machine was not reached. Datagrams are not held, and who sends
//! them hears everything. Every packet is asked whether it is such news, and almost none is.

use std::time::Duration;

use super::{
    chains::{Chain, FOUND, KEY, OTHER_KEY, went_to},
    layout::{FRONTS, IMPATIENT, REFUSED},
};
use crate::nft::{
    Hook,
    expressions::{Expressions, Register, Side},
};

const REFUSED_BY_BACKEND: &str = "refused-by-backend";
const NOT_REACHED: &str = "not-reached";

/// For so long it is known that a client was refused: longer than it waits before it tries again.
const SECOND_TRY: Duration = Duration::from_secs(10);

/// Each after those that it leads to.
pub fn chains() -> Vec<Chain> {
    let refused = [false, true].map(|node| first_time(patient(node)).drop());
    let not_reached = [false, true].map(|node| patient(node).drop());
    let bad_news = vec![
        Expressions::new().if_refusal(KEY).if_answer(KEY).goto(REFUSED_BY_BACKEND),
        Expressions::new().if_unreachable(KEY).if_about_tcp(KEY).if_answer(KEY).if_unanswered(KEY).goto(NOT_REACHED),
    ];
    vec![
        Chain { name: REFUSED_BY_BACKEND.into(), hook: None, rules: refused.into() },
        Chain { name: NOT_REACHED.into(), hook: None, rules: not_reached.into() },
        Chain { name: "received".into(), hook: Some(Hook::Received), rules: bad_news.clone() },
        Chain { name: "passing".into(), hook: Some(Hook::Passing), rules: bad_news.clone() },
        Chain { name: "sent".into(), hook: Some(Hook::Sent), rules: bad_news },
    ]
}

/// Goes on if clients of the front that the connection was diverted from may be held.
fn patient(node: bool) -> Expressions {
    went_to(node).find(FRONTS.name, KEY, FOUND).if_not_in(IMPATIENT.name, KEY)
}

/// Goes on if the client was not refused a moment ago.
fn first_time(rule: Expressions) -> Expressions {
    const CLIENT: Register = Register(OTHER_KEY);
    let ends = [Side::Source, Side::Destination].into_iter().zip([OTHER_KEY, OTHER_KEY + 2]);
    let loaded = ends
        .fold(rule, |rule, (side, to)| rule.original_address(Register(to), side).original_port(Register(to + 1), side));
    loaded.if_not_in(REFUSED.name, CLIENT).note(REFUSED.name, CLIENT, SECOND_TRY)
}
