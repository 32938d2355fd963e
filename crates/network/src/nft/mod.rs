//! A client for nf_tables over netlink, as far as this crate uses it.
//!
//! A [`Batch`] is one transaction: all of it is in force, or nothing has changed. The crates for this need a C
//! library, call the `nft` program, which a machine may not have, or carry a licence that ours cannot follow. So the
//! encoding is here: [`netlink`] for messages, [`uapi`] for the kernel's constants, [`expressions`] for rules,
//! [`sets`] for sets and maps, [`listing`] for reading back, [`socket`] for the exchange.

pub mod expressions;
pub mod listing;
pub mod netlink;
pub mod sets;
pub mod socket;
#[cfg(test)]
pub mod tests;
pub mod uapi;

use std::time::Duration;

pub use self::socket::send_batch;
use self::{
    expressions::Expressions,
    netlink::{Attributes, Header, write_message},
    sets::{ElementData, SetDefinition, write_element},
    uapi::{
        CTA_TIMEOUT_TCP_SYN_SENT, IPPROTO_TCP, NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT,
        NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING, NF_IP_PRI_FILTER, NF_IP_PRI_NAT_DST, NF_IP_PRI_NAT_SRC,
        NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES, NFPROTO_IPV4, NFPROTO_UNSPEC, NFT_MSG_DELCHAIN,
        NFT_MSG_DELRULE, NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWOBJ, NFT_MSG_NEWRULE,
        NFT_MSG_NEWSET, NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE, NFT_OBJECT_CT_TIMEOUT, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME,
        NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE, NFTA_CT_TIMEOUT_DATA, NFTA_CT_TIMEOUT_L3PROTO, NFTA_CT_TIMEOUT_L4PROTO,
        NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_LIST_ELEM, NFTA_OBJ_DATA, NFTA_OBJ_NAME, NFTA_OBJ_TABLE,
        NFTA_OBJ_TYPE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE, NFTA_RULE_USERDATA,
        NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_TABLE, NFTA_TABLE_NAME,
        NLA_F_NESTED, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST,
    },
};

/// Elements per message: the list attribute is at most 64 KiB long.
const ELEMENTS_PER_MESSAGE: usize = 500;

/// Whether the kernel answers nf_tables requests of this process.
pub fn check() -> std::io::Result<()> {
    listing::get_generation(&socket::NetfilterSocket::open()?).map(drop)
}

/// The message type of an `NFT_MSG_*`.
const fn nft_message(message: u16) -> u16 {
    NFNL_SUBSYS_NFTABLES << 8 | message
}

/// Hook and type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// nat: packets that arrive, before they are routed.
    Prerouting,
    /// nat: packets of this machine's own processes, before they are routed again.
    OutputNat,
    /// nat: packets that leave.
    Postrouting,
    /// filter: packets for this machine.
    Input,
    /// filter: packets that this machine forwards.
    Forward,
    /// filter: packets of this machine's own processes.
    OutputFilter,
}

impl Hook {
    /// The hook number, and the priority among the base chains of that hook.
    pub fn number_and_priority(self) -> (u32, i32) {
        match self {
            Hook::Prerouting => (NF_INET_PRE_ROUTING, NF_IP_PRI_NAT_DST),
            Hook::OutputNat => (NF_INET_LOCAL_OUT, NF_IP_PRI_NAT_DST),
            Hook::Postrouting => (NF_INET_POST_ROUTING, NF_IP_PRI_NAT_SRC),
            Hook::Input => (NF_INET_LOCAL_IN, NF_IP_PRI_FILTER),
            Hook::Forward => (NF_INET_FORWARD, NF_IP_PRI_FILTER),
            Hook::OutputFilter => (NF_INET_LOCAL_OUT, NF_IP_PRI_FILTER),
        }
    }

    fn chain_type(self) -> &'static str {
        match self {
            Hook::Prerouting | Hook::OutputNat | Hook::Postrouting => "nat",
            Hook::Input | Hook::Forward | Hook::OutputFilter => "filter",
        }
    }
}

/// One transaction, encoded as it is built.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    changes: usize,
}

impl Batch {
    pub fn new() -> Self {
        let mut batch = Self::default();
        batch.push_boundary(NFNL_MSG_BATCH_BEGIN);
        batch
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    pub fn add_table(&mut self, name: &str) {
        self.push(NFT_MSG_NEWTABLE, NLM_F_CREATE, |a| a.put_str(NFTA_TABLE_NAME, name));
    }

    /// An error if there is no such table: add it first if that is not certain.
    pub fn delete_table(&mut self, name: &str) {
        self.push(NFT_MSG_DELTABLE, 0, |a| a.put_str(NFTA_TABLE_NAME, name));
    }

    pub fn add_base_chain(&mut self, table: &str, name: &str, hook: Hook) {
        let (number, priority) = hook.number_and_priority();
        self.push(NFT_MSG_NEWCHAIN, NLM_F_CREATE, |a| {
            a.put_str(NFTA_CHAIN_TABLE, table);
            a.put_str(NFTA_CHAIN_NAME, name);
            a.nest(NFTA_CHAIN_HOOK, |a| {
                a.put_u32(NFTA_HOOK_HOOKNUM, number);
                a.put_bytes(NFTA_HOOK_PRIORITY, &priority.to_be_bytes());
            });
            a.put_str(NFTA_CHAIN_TYPE, hook.chain_type());
        });
    }

    /// A chain without a hook, which rules and verdict maps jump to.
    pub fn add_regular_chain(&mut self, table: &str, name: &str) {
        self.push(NFT_MSG_NEWCHAIN, NLM_F_CREATE, |a| {
            a.put_str(NFTA_CHAIN_TABLE, table);
            a.put_str(NFTA_CHAIN_NAME, name);
        });
    }

    /// An error while something jumps to it.
    pub fn delete_chain(&mut self, table: &str, name: &str) {
        self.push(NFT_MSG_DELCHAIN, 0, |a| {
            a.put_str(NFTA_CHAIN_TABLE, table);
            a.put_str(NFTA_CHAIN_NAME, name);
        });
    }

    pub fn flush_chain(&mut self, table: &str, name: &str) {
        self.push(NFT_MSG_DELRULE, 0, |a| {
            a.put_str(NFTA_RULE_TABLE, table);
            a.put_str(NFTA_RULE_CHAIN, name);
        });
    }

    pub fn append_rule(&mut self, table: &str, chain: &str, rule: &Expressions) {
        self.push_rule(table, chain, rule, None);
    }

    /// A rule that [`listing::list_rule_tags`] recognizes.
    pub fn append_tagged_rule(&mut self, table: &str, chain: &str, rule: &Expressions) {
        self.push_rule(table, chain, rule, Some(listing::rule_tag(rule)));
    }

    fn push_rule(&mut self, table: &str, chain: &str, rule: &Expressions, tag: Option<Vec<u8>>) {
        self.push(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, |a| {
            a.put_str(NFTA_RULE_TABLE, table);
            a.put_str(NFTA_RULE_CHAIN, chain);
            a.put_bytes(NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, rule.encoded());
            if let Some(tag) = tag {
                a.put_bytes(NFTA_RULE_USERDATA, &tag);
            }
        });
    }

    /// The id names the set within the batch.
    pub fn add_set(&mut self, table: &str, id: u32, set: &SetDefinition) {
        self.push(NFT_MSG_NEWSET, NLM_F_CREATE, |a| {
            a.put_str(NFTA_SET_TABLE, table);
            set.write(id, a);
        });
    }

    /// A conntrack timeout policy for TCP (`ct timeout`). Timeouts other than that of `SYN_SENT` are those that the
    /// sysctls have at this moment.
    pub fn add_ct_timeout(&mut self, table: &str, name: &str, syn_sent: Duration) {
        self.push(NFT_MSG_NEWOBJ, NLM_F_CREATE, |a| {
            a.put_str(NFTA_OBJ_TABLE, table);
            a.put_str(NFTA_OBJ_NAME, name);
            a.put_u32(NFTA_OBJ_TYPE, NFT_OBJECT_CT_TIMEOUT);
            a.nest(NFTA_OBJ_DATA, |a| {
                a.put_bytes(NFTA_CT_TIMEOUT_L3PROTO, &u16::from(NFPROTO_IPV4).to_be_bytes());
                a.put_bytes(NFTA_CT_TIMEOUT_L4PROTO, &[IPPROTO_TCP]);
                a.nest(NFTA_CT_TIMEOUT_DATA, |a| a.put_u32(CTA_TIMEOUT_TCP_SYN_SENT, syn_sent.as_secs() as u32));
            });
        });
    }

    pub fn add_elements<'e>(
        &mut self,
        table: &str,
        set: &str,
        elements: impl Iterator<Item = (&'e [u8], ElementData<'e>)>,
    ) {
        self.push_elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, table, set, elements);
    }

    /// An error if one of them is not there.
    pub fn delete_elements<'e>(&mut self, table: &str, set: &str, keys: impl Iterator<Item = &'e [u8]>) {
        self.push_elements(NFT_MSG_DELSETELEM, 0, table, set, keys.map(|key| (key, ElementData::None)));
    }

    fn push_elements<'e>(
        &mut self,
        message: u16,
        flags: u16,
        table: &str,
        set: &str,
        elements: impl Iterator<Item = (&'e [u8], ElementData<'e>)>,
    ) {
        let mut elements = elements.peekable();
        while elements.peek().is_some() {
            self.push(message, flags, |a| {
                a.put_str(NFTA_SET_ELEM_LIST_TABLE, table);
                a.put_str(NFTA_SET_ELEM_LIST_SET, set);
                a.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |a| {
                    for (key, data) in elements.by_ref().take(ELEMENTS_PER_MESSAGE) {
                        a.nest(NFTA_LIST_ELEM, |a| write_element(a, key, data));
                    }
                });
            });
        }
    }

    /// The bytes to send.
    pub fn finish(mut self) -> Vec<u8> {
        self.push_boundary(NFNL_MSG_BATCH_END);
        self.bytes
    }

    fn push(&mut self, message: u16, flags: u16, content: impl FnOnce(&mut Attributes<'_>)) {
        let (message_type, flags, sequence) = (nft_message(message), NLM_F_REQUEST | flags, self.sequence);
        let header = Header { message_type, flags, sequence, family: NFPROTO_IPV4, resource: 0 };
        write_message(&mut self.bytes, &header, content);
        self.sequence += 1;
        self.changes += 1;
    }

    fn push_boundary(&mut self, message_type: u16) {
        let (flags, sequence, resource) = (NLM_F_REQUEST, self.sequence, NFNL_SUBSYS_NFTABLES);
        let header = Header { message_type, flags, sequence, family: NFPROTO_UNSPEC, resource };
        write_message(&mut self.bytes, &header, |_| {});
        self.sequence += 1;
    }
}
