//! Reads back from the kernel: generation, sets, chains, rule tags and elements of a table.

use std::io;

use super::{
    expressions::Expressions,
    netlink::{Attributes, Header, attributes, get_bytes, get_str, get_u32, write_message},
    nft_message,
    socket::NetfilterSocket,
    uapi::{
        NFPROTO_IPV4, NFT_MSG_GETCHAIN, NFT_MSG_GETGEN, NFT_MSG_GETRULE, NFT_MSG_GETSET, NFT_MSG_GETSETELEM,
        NFT_MSG_GETTABLE, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_DATA_VALUE, NFTA_DATA_VERDICT,
        NFTA_GEN_ID, NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_RULE_USERDATA,
        NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET,
        NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_NAME, NFTA_VERDICT_CHAIN,
        NFTNL_UDATA_RULE_COMMENT, NLM_F_DUMP, NLM_F_REQUEST,
    },
};

/// User data of a rule that identifies its expressions; `nft list` prints it as the rule's comment.
///
/// The kernel returns it unchanged, while the expressions that it returns differ between kernel releases. A rule
/// cannot be changed in place, only replaced, so nobody can change the expressions and keep the tag.
pub fn rule_tag(rule: &Expressions) -> Vec<u8> {
    let text = format!("mainstay {:016x}\0", rule.digest());
    [&[NFTNL_UDATA_RULE_COMMENT, text.len() as u8], text.as_bytes()].concat()
}

fn request(message: u16, flags: u16, content: impl FnOnce(&mut Attributes<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let message_type = nft_message(message);
    let flags = NLM_F_REQUEST | flags;
    let header = Header { message_type, flags, sequence: 0, family: NFPROTO_IPV4, resource: 0 };
    write_message(&mut bytes, &header, content);
    bytes
}

/// The ruleset generation: every committed transaction of this network namespace increments it.
pub fn get_generation(socket: &NetfilterSocket) -> io::Result<u32> {
    socket.request(&request(NFT_MSG_GETGEN, 0, |_| {}), |message| get_u32(message.attributes(), NFTA_GEN_ID))
}

/// Names of all tables of the IPv4 family.
pub fn list_tables(socket: &NetfilterSocket) -> io::Result<Vec<String>> {
    socket.dump(&request(NFT_MSG_GETTABLE, NLM_F_DUMP, |_| {}), |message, found| {
        found.extend(get_str(message.attributes(), NFTA_TABLE_NAME).map(str::to_owned));
    })
}

/// Names of a table's sets and maps.
pub fn list_sets(socket: &NetfilterSocket, table: &str) -> io::Result<Vec<String>> {
    socket.dump(&request(NFT_MSG_GETSET, NLM_F_DUMP, |a| a.put_str(NFTA_SET_TABLE, table)), |message, found| {
        let set = message.attributes();
        let is_ours = get_str(set, NFTA_SET_TABLE) == Some(table);
        found.extend(get_str(set, NFTA_SET_NAME).filter(|_| is_ours).map(str::to_owned));
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    pub name: String,
    /// Hook number and priority of a base chain.
    pub hook: Option<(u32, i32)>,
}

pub fn list_chains(socket: &NetfilterSocket, table: &str) -> io::Result<Vec<ListedChain>> {
    socket.dump(&request(NFT_MSG_GETCHAIN, NLM_F_DUMP, |a| a.put_str(NFTA_CHAIN_TABLE, table)), |message, found| {
        let chain = message.attributes();
        if get_str(chain, NFTA_CHAIN_TABLE) != Some(table) {
            return;
        }
        let hook = get_bytes(chain, NFTA_CHAIN_HOOK).and_then(|hook| {
            Some((get_u32(hook, NFTA_HOOK_HOOKNUM)?, get_u32(hook, NFTA_HOOK_PRIORITY)?.cast_signed()))
        });
        found.extend(get_str(chain, NFTA_CHAIN_NAME).map(|name| ListedChain { name: name.to_owned(), hook }));
    })
}

/// The chain and the tag of each rule of a table, in order. A rule that somebody else added has no tag of ours.
pub fn list_rule_tags(socket: &NetfilterSocket, table: &str) -> io::Result<Vec<(String, Option<Vec<u8>>)>> {
    socket.dump(&request(NFT_MSG_GETRULE, NLM_F_DUMP, |a| a.put_str(NFTA_RULE_TABLE, table)), |message, found| {
        let rule = message.attributes();
        if get_str(rule, NFTA_RULE_TABLE) == Some(table) {
            let tag = get_bytes(rule, NFTA_RULE_USERDATA).map(<[u8]>::to_vec);
            found.extend(get_str(rule, NFTA_RULE_CHAIN).map(|chain| (chain.to_owned(), tag)));
        }
    })
}

/// The elements of a set or map: key and data. The data of a verdict map is the name of the chain.
pub fn list_elements<T>(
    socket: &NetfilterSocket,
    table: &str,
    set: &str,
    mut read: impl FnMut(&[u8], &[u8]) -> Option<T>,
) -> io::Result<Vec<T>> {
    let request = request(NFT_MSG_GETSETELEM, NLM_F_DUMP, |a| {
        a.put_str(NFTA_SET_ELEM_LIST_TABLE, table);
        a.put_str(NFTA_SET_ELEM_LIST_SET, set);
    });
    socket.dump(&request, |message, found| {
        let list = get_bytes(message.attributes(), NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
        found.extend(attributes(list).filter_map(|(_, element)| {
            let key = get_bytes(get_bytes(element, NFTA_SET_ELEM_KEY)?, NFTA_DATA_VALUE)?;
            let data = get_bytes(element, NFTA_SET_ELEM_DATA).and_then(|data| {
                let chain = || get_bytes(get_bytes(data, NFTA_DATA_VERDICT)?, NFTA_VERDICT_CHAIN);
                get_bytes(data, NFTA_DATA_VALUE).or_else(chain)
            });
            read(key, data.unwrap_or_default())
        }));
    })
}
