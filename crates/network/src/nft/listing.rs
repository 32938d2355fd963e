//! Reading back what the kernel has.

use std::io;

use super::{
    IPV4, SUBSYSTEM,
    expressions::Expressions,
    socket::Session,
    wire::{self, Attributes, DUMP, Header, REQUEST, attribute, attributes},
};

const GET_TABLE: u16 = SUBSYSTEM + 1;
const GET_CHAIN: u16 = SUBSYSTEM + 4;
const GET_RULE: u16 = SUBSYSTEM + 7;
const GET_SET: u16 = SUBSYSTEM + 10;
const GET_ELEMENTS: u16 = SUBSYSTEM + 13;
const GET_GENERATION: u16 = SUBSYSTEM + 16;

/// Programs show what is kept with a rule as its comment if it is laid out like this.
const COMMENT: u8 = 0;

/// What is kept with a rule, and says what it was made from. The kernel gives it back as it is, while what it
/// says of the steps themselves differs from release to release. Nobody can change a rule's steps and keep its mark:
/// to change a rule is to replace it.
pub fn mark(rule: &Expressions) -> Vec<u8> {
    let text = format!("mainstay {:016x}\0", rule.digest());
    [&[COMMENT, text.len() as u8], text.as_bytes()].concat()
}

fn request(kind: u16, flags: u16, content: impl FnOnce(&mut Attributes<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header { kind, flags: REQUEST | flags, sequence: 0, family: IPV4, resource: 0 };
    wire::write(&mut bytes, &header, content);
    bytes
}

/// A number that every change to any packet rule of this network namespace counts up.
pub fn generation(session: &Session) -> io::Result<u32> {
    session.ask(&request(GET_GENERATION, 0, |_| {}), |message| wire::number(message.attributes(), 1))
}

/// Names of all tables for IPv4.
pub fn tables(session: &Session) -> io::Result<Vec<String>> {
    session.list(&request(GET_TABLE, DUMP, |_| {}), |message, found| {
        found.extend(wire::text(message.attributes(), 1).map(str::to_owned));
    })
}

/// Names of a table's sets and maps.
pub fn sets(session: &Session, table: &str) -> io::Result<Vec<String>> {
    session.list(&request(GET_SET, DUMP, |a| a.text(1, table)), |message, found| {
        let content = message.attributes();
        found.extend(wire::text(content, 2).filter(|_| wire::text(content, 1) == Some(table)).map(str::to_owned));
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    /// Where packets come in, if they come in from outside the table.
    pub hook: Option<(u32, i32)>,
}

pub fn chains(session: &Session, table: &str) -> io::Result<Vec<Chain>> {
    session.list(&request(GET_CHAIN, DUMP, |a| a.text(1, table)), |message, found| {
        let content = message.attributes();
        if wire::text(content, 1) != Some(table) {
            return;
        }
        let hook =
            attribute(content, 4).and_then(|hook| Some((wire::number(hook, 1)?, wire::number(hook, 2)?.cast_signed())));
        found.extend(wire::text(content, 3).map(|name| Chain { name: name.to_owned(), hook }));
    })
}

/// The marks of a table's rules in order, each with its chain. A rule that is not ours has none.
pub fn rules(session: &Session, table: &str) -> io::Result<Vec<(String, Option<Vec<u8>>)>> {
    session.list(&request(GET_RULE, DUMP, |a| a.text(1, table)), |message, found| {
        let content = message.attributes();
        if wire::text(content, 1) == Some(table) {
            found.extend(
                wire::text(content, 2).map(|chain| (chain.to_owned(), attribute(content, 7).map(<[u8]>::to_vec))),
            );
        }
    })
}

/// What a set or map has. Where it leads to chains, their names.
pub fn elements<T>(
    session: &Session,
    table: &str,
    set: &str,
    mut read: impl FnMut(&[u8], &[u8]) -> Option<T>,
) -> io::Result<Vec<T>> {
    let request = request(GET_ELEMENTS, DUMP, |a| {
        a.text(1, table);
        a.text(2, set);
    });
    session.list(&request, |message, found| {
        let list = attribute(message.attributes(), 3).unwrap_or_default();
        found.extend(attributes(list).filter_map(|(_, element)| {
            let key = attribute(attribute(element, 1)?, 1)?;
            let data = attribute(element, 2).and_then(|data| {
                let chain = || attribute(attribute(data, 2)?, 2);
                attribute(data, 1).or_else(chain)
            });
            read(key, data.unwrap_or_default())
        }));
    })
}
