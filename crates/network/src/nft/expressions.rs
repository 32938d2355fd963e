//! The expressions of a rule: loads into registers, matches on them, and statements such as `dnat` or `drop`.
//!
//! There are sixteen registers of four bytes (`NFT_REG32_00` to `_15`). A longer value, such as a concatenated key,
//! lies in consecutive ones, each field padded to four bytes. A rule may read only registers that it has itself
//! written. A match that fails ends the rule; methods named `if_…` are matches.

use std::{net::Ipv4Addr, time::Duration};

use super::{
    netlink::Attributes,
    uapi::{
        ICMP_DEST_UNREACH, ICMP_HOST_UNREACH, ICMP_PORT_UNREACH, IFNAMSIZ, IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY,
        IPPROTO_ICMP, IPPROTO_TCP, IPS_DST_NAT, IPS_SEEN_REPLY, NF_DROP, NFPROTO_IPV4, NFT_CMP_EQ, NFT_CMP_NEQ,
        NFT_CT_DIRECTION, NFT_CT_DST_IP, NFT_CT_PROTO_DST, NFT_CT_PROTO_SRC, NFT_CT_PROTOCOL, NFT_CT_SRC_IP,
        NFT_CT_STATUS, NFT_DYNSET_OP_ADD, NFT_DYNSET_OP_DELETE, NFT_DYNSET_OP_UPDATE, NFT_FIB_RESULT_ADDRTYPE,
        NFT_GOTO, NFT_JUMP, NFT_LOOKUP_F_INV, NFT_META_L4PROTO, NFT_META_OIFNAME, NFT_NAT_DNAT, NFT_NG_RANDOM,
        NFT_OBJECT_CT_TIMEOUT, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_VERDICT, NFT_REG32_00,
        NFT_REJECT_ICMP_UNREACH, NFT_REJECT_TCP_RST, NFTA_BITWISE_DREG, NFTA_BITWISE_LEN, NFTA_BITWISE_MASK,
        NFTA_BITWISE_SREG, NFTA_BITWISE_XOR, NFTA_CMP_DATA, NFTA_CMP_OP, NFTA_CMP_SREG, NFTA_CT_DIRECTION,
        NFTA_CT_DREG, NFTA_CT_KEY, NFTA_DATA_VERDICT, NFTA_DYNSET_OP, NFTA_DYNSET_SET_NAME, NFTA_DYNSET_SREG_DATA,
        NFTA_DYNSET_SREG_KEY, NFTA_DYNSET_TIMEOUT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_FIB_DREG, NFTA_FIB_F_DADDR,
        NFTA_FIB_F_SADDR, NFTA_FIB_FLAGS, NFTA_FIB_RESULT, NFTA_IMMEDIATE_DATA, NFTA_IMMEDIATE_DREG, NFTA_LIST_ELEM,
        NFTA_LOOKUP_DREG, NFTA_LOOKUP_FLAGS, NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_META_DREG, NFTA_META_KEY,
        NFTA_NAT_FAMILY, NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_TYPE, NFTA_NG_DREG, NFTA_NG_MODULUS,
        NFTA_NG_TYPE, NFTA_OBJREF_IMM_NAME, NFTA_OBJREF_IMM_TYPE, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_DREG,
        NFTA_PAYLOAD_LEN, NFTA_PAYLOAD_OFFSET, NFTA_REDIR_REG_PROTO_MIN, NFTA_REJECT_ICMP_CODE, NFTA_REJECT_TYPE,
        NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE, RTN_LOCAL,
    },
};
use crate::range::Range;

/// One of the sixteen registers, 0 to 15.
#[derive(Clone, Copy, Debug)]
pub struct Register(pub u32);

impl Register {
    fn number(self) -> u32 {
        NFT_REG32_00 + self.0
    }
}

/// Which address or port of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    Source,
    Destination,
}

/// What the client of a rejected packet receives.
#[derive(Clone, Copy, Debug)]
pub enum RejectWith {
    TcpReset,
    IcmpPortUnreachable,
}

/// The expressions of one rule, encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expressions(Vec<u8>);

// struct iphdr: saddr, daddr.
const IP_SOURCE: u32 = 12;
const IP_DESTINATION: u32 = 16;
const IP_ADDRESS_LENGTH: u32 = 4;

// struct tcphdr and udphdr: ports; of tcphdr: seq, flags.
const PORT_SOURCE: u32 = 0;
const PORT_DESTINATION: u32 = 2;
const PORT_LENGTH: u32 = 2;
const TCP_SEQUENCE: u32 = 4;
const TCP_SEQUENCE_LENGTH: u32 = 4;
const TCP_FLAGS: u32 = 13;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

// struct icmphdr: type and code.
const ICMP_TYPE: u32 = 0;
const ICMP_TYPE_AND_CODE_LENGTH: u32 = 2;

impl Expressions {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn encoded(&self) -> &[u8] {
        &self.0
    }

    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.0)
    }

    fn expression(mut self, name: &str, content: impl FnOnce(&mut Attributes<'_>)) -> Self {
        Attributes(&mut self.0).nest(NFTA_LIST_ELEM, |a| {
            a.put_str(NFTA_EXPR_NAME, name);
            a.nest(NFTA_EXPR_DATA, content);
        });
        self
    }

    fn payload(self, to: Register, base: u32, offset: u32, length: u32) -> Self {
        self.expression("payload", |a| {
            a.put_u32(NFTA_PAYLOAD_DREG, to.number());
            a.put_u32(NFTA_PAYLOAD_BASE, base);
            a.put_u32(NFTA_PAYLOAD_OFFSET, offset);
            a.put_u32(NFTA_PAYLOAD_LEN, length);
        })
    }

    pub fn load_address(self, to: Register, side: Side) -> Self {
        self.payload(to, NFT_PAYLOAD_NETWORK_HEADER, address_offset(side), IP_ADDRESS_LENGTH)
    }

    /// One of the four bytes of an address.
    pub fn load_address_byte(self, to: Register, side: Side, byte: u32) -> Self {
        self.payload(to, NFT_PAYLOAD_NETWORK_HEADER, address_offset(side) + byte, 1)
    }

    pub fn load_port(self, to: Register, side: Side) -> Self {
        let offset = match side {
            Side::Source => PORT_SOURCE,
            Side::Destination => PORT_DESTINATION,
        };
        self.payload(to, NFT_PAYLOAD_TRANSPORT_HEADER, offset, PORT_LENGTH)
    }

    /// The sequence number of a TCP packet. A retransmission has the same one.
    pub fn load_tcp_sequence(self, to: Register) -> Self {
        self.payload(to, NFT_PAYLOAD_TRANSPORT_HEADER, TCP_SEQUENCE, TCP_SEQUENCE_LENGTH)
    }

    fn meta(self, to: Register, key: u32) -> Self {
        self.expression("meta", |a| {
            a.put_u32(NFTA_META_DREG, to.number());
            a.put_u32(NFTA_META_KEY, key);
        })
    }

    pub fn load_l4proto(self, to: Register) -> Self {
        self.meta(to, NFT_META_L4PROTO)
    }

    pub fn load_immediate(self, to: Register, value: &[u8]) -> Self {
        self.expression("immediate", |a| {
            a.put_u32(NFTA_IMMEDIATE_DREG, to.number());
            a.put_data(NFTA_IMMEDIATE_DATA, value);
        })
    }

    /// `numgen random mod <modulus>`
    pub fn load_random(self, to: Register, modulus: u32) -> Self {
        self.expression("numgen", |a| {
            a.put_u32(NFTA_NG_DREG, to.number());
            a.put_u32(NFTA_NG_MODULUS, modulus);
            a.put_u32(NFTA_NG_TYPE, NFT_NG_RANDOM);
        })
    }

    fn ct(self, to: Register, key: u32) -> Self {
        self.expression("ct", |a| {
            a.put_u32(NFTA_CT_DREG, to.number());
            a.put_u32(NFTA_CT_KEY, key);
        })
    }

    fn ct_original(self, to: Register, key: u32) -> Self {
        self.expression("ct", |a| {
            a.put_u32(NFTA_CT_DREG, to.number());
            a.put_u32(NFTA_CT_KEY, key);
            a.put_bytes(NFTA_CT_DIRECTION, &[IP_CT_DIR_ORIGINAL]);
        })
    }

    /// `ct original ip saddr` or `daddr`: the address before any NAT.
    pub fn load_ct_original_address(self, to: Register, side: Side) -> Self {
        self.ct_original(
            to,
            match side {
                Side::Source => NFT_CT_SRC_IP,
                Side::Destination => NFT_CT_DST_IP,
            },
        )
    }

    /// `ct original proto-src` or `proto-dst`: the port before any NAT.
    pub fn load_ct_original_port(self, to: Register, side: Side) -> Self {
        self.ct_original(
            to,
            match side {
                Side::Source => NFT_CT_PROTO_SRC,
                Side::Destination => NFT_CT_PROTO_DST,
            },
        )
    }

    pub fn load_ct_original_protocol(self, to: Register) -> Self {
        self.ct_original(to, NFT_CT_PROTOCOL)
    }

    pub fn if_l4proto(self, scratch: Register, protocol: u8) -> Self {
        self.load_l4proto(scratch).if_equal(scratch, &[protocol])
    }

    pub fn if_tcp(self, scratch: Register) -> Self {
        self.if_l4proto(scratch, IPPROTO_TCP)
    }

    pub fn if_destination_port(self, scratch: Register, port: u16) -> Self {
        self.load_port(scratch, Side::Destination).if_equal(scratch, &port.to_be_bytes())
    }

    pub fn if_oifname(self, scratch: Register, interface: &str) -> Self {
        let mut name = [0; IFNAMSIZ];
        name.iter_mut().zip(interface.bytes().take(IFNAMSIZ - 1)).for_each(|(to, from)| *to = from);
        self.meta(scratch, NFT_META_OIFNAME).if_equal(scratch, &name)
    }

    /// Matches the RST that refuses a SYN: a host that did not accept the connection has no sequence number, and
    /// sends zero.
    pub fn if_rst_to_syn(self, scratch: Register) -> Self {
        let flags = self.if_tcp(scratch).payload(scratch, NFT_PAYLOAD_TRANSPORT_HEADER, TCP_FLAGS, 1);
        let rst = flags.bitwise_and(scratch, &[FIN | SYN | RST | ACK]).if_equal(scratch, &[RST | ACK]);
        rst.load_tcp_sequence(scratch).if_equal(scratch, &0u32.to_be_bytes())
    }

    pub fn if_icmp_host_unreachable(self, scratch: Register) -> Self {
        self.if_icmp_unreachable(scratch, ICMP_HOST_UNREACH)
    }

    pub fn if_icmp_port_unreachable(self, scratch: Register) -> Self {
        self.if_icmp_unreachable(scratch, ICMP_PORT_UNREACH)
    }

    fn if_icmp_unreachable(self, scratch: Register, code: u8) -> Self {
        self.if_l4proto(scratch, IPPROTO_ICMP)
            .payload(scratch, NFT_PAYLOAD_TRANSPORT_HEADER, ICMP_TYPE, ICMP_TYPE_AND_CODE_LENGTH)
            .if_equal(scratch, &[ICMP_DEST_UNREACH, code])
    }

    /// Matches packets of a TCP connection, and ICMP errors about one.
    pub fn if_ct_tcp(self, scratch: Register) -> Self {
        self.load_ct_original_protocol(scratch).if_equal(scratch, &[IPPROTO_TCP])
    }

    /// `ct direction reply`
    pub fn if_ct_reply(self, scratch: Register) -> Self {
        self.ct(scratch, NFT_CT_DIRECTION).if_equal(scratch, &[IP_CT_DIR_REPLY])
    }

    /// `ct status dnat`
    pub fn if_ct_dnat(self, scratch: Register) -> Self {
        self.ct_status(scratch, IPS_DST_NAT).if_not_equal(scratch, &0u32.to_ne_bytes())
    }

    /// `ct status != seen-reply`
    pub fn if_ct_no_reply(self, scratch: Register) -> Self {
        self.ct_status(scratch, IPS_SEEN_REPLY).if_equal(scratch, &0u32.to_ne_bytes())
    }

    fn ct_status(self, to: Register, bit: u32) -> Self {
        self.ct(to, NFT_CT_STATUS).bitwise_and(to, &bit.to_ne_bytes())
    }

    /// `ct timeout set "<name>"`
    pub fn set_ct_timeout(self, name: &str) -> Self {
        self.expression("objref", |a| {
            a.put_u32(NFTA_OBJREF_IMM_TYPE, NFT_OBJECT_CT_TIMEOUT);
            a.put_str(NFTA_OBJREF_IMM_NAME, name);
        })
    }

    fn bitwise_and(self, register: Register, mask: &[u8]) -> Self {
        self.bitwise(register, mask, &vec![0; mask.len()])
    }

    /// `(register & mask) ^ xor`
    fn bitwise(self, register: Register, mask: &[u8], xor: &[u8]) -> Self {
        self.expression("bitwise", |a| {
            a.put_u32(NFTA_BITWISE_SREG, register.number());
            a.put_u32(NFTA_BITWISE_DREG, register.number());
            a.put_u32(NFTA_BITWISE_LEN, mask.len() as u32);
            a.put_data(NFTA_BITWISE_MASK, mask);
            a.put_data(NFTA_BITWISE_XOR, xor);
        })
    }

    /// Writes two bytes into the padding behind a port.
    pub fn fill_port_padding(self, register: Register, [first, second]: [u8; 2]) -> Self {
        self.bitwise(register, &[0xff, 0xff, 0, 0], &[0, 0, first, second])
    }

    fn cmp(self, register: Register, operator: u32, value: &[u8]) -> Self {
        self.expression("cmp", |a| {
            a.put_u32(NFTA_CMP_SREG, register.number());
            a.put_u32(NFTA_CMP_OP, operator);
            a.put_data(NFTA_CMP_DATA, value);
        })
    }

    pub fn if_equal(self, register: Register, value: &[u8]) -> Self {
        self.cmp(register, NFT_CMP_EQ, value)
    }

    pub fn if_not_equal(self, register: Register, value: &[u8]) -> Self {
        self.cmp(register, NFT_CMP_NEQ, value)
    }

    pub fn if_address_in(self, scratch: Register, side: Side, range: Range) -> Self {
        self.load_network(scratch, side, range).if_equal(scratch, &range.base().octets())
    }

    pub fn if_address_not_in(self, scratch: Register, side: Side, range: Range) -> Self {
        self.load_network(scratch, side, range).if_not_equal(scratch, &range.base().octets())
    }

    fn load_network(self, to: Register, side: Side, range: Range) -> Self {
        self.load_address(to, side).bitwise_and(to, &range.mask().octets())
    }

    pub fn if_address(self, scratch: Register, side: Side, address: Ipv4Addr) -> Self {
        self.load_address(scratch, side).if_equal(scratch, &address.octets())
    }

    pub fn if_address_not(self, scratch: Register, side: Side, address: Ipv4Addr) -> Self {
        self.load_address(scratch, side).if_not_equal(scratch, &address.octets())
    }

    /// `fib saddr type local` or `fib daddr type local`: one of this machine's own addresses.
    pub fn if_local_address(self, scratch: Register, side: Side) -> Self {
        let loaded = self.expression("fib", |a| {
            a.put_u32(NFTA_FIB_DREG, scratch.number());
            a.put_u32(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE);
            a.put_u32(
                NFTA_FIB_FLAGS,
                match side {
                    Side::Source => NFTA_FIB_F_SADDR,
                    Side::Destination => NFTA_FIB_F_DADDR,
                },
            );
        });
        loaded.if_equal(scratch, &RTN_LOCAL.to_ne_bytes())
    }

    pub fn if_in_set(self, set: &str, key: Register) -> Self {
        self.expression("lookup", |a| {
            a.put_str(NFTA_LOOKUP_SET, set);
            a.put_u32(NFTA_LOOKUP_SREG, key.number());
        })
    }

    pub fn if_not_in_set(self, set: &str, key: Register) -> Self {
        self.expression("lookup", |a| {
            a.put_str(NFTA_LOOKUP_SET, set);
            a.put_u32(NFTA_LOOKUP_SREG, key.number());
            a.put_u32(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
        })
    }

    /// Loads what a map has for the key. Ends the rule if the map does not have the key.
    pub fn lookup(self, map: &str, key: Register, to: Register) -> Self {
        self.expression("lookup", |a| {
            a.put_str(NFTA_LOOKUP_SET, map);
            a.put_u32(NFTA_LOOKUP_SREG, key.number());
            a.put_u32(NFTA_LOOKUP_DREG, to.number());
        })
    }

    /// Takes the verdict that a verdict map has for the key, if it has one.
    pub fn vmap(self, map: &str, key: Register) -> Self {
        self.expression("lookup", |a| {
            a.put_str(NFTA_LOOKUP_SET, map);
            a.put_u32(NFTA_LOOKUP_SREG, key.number());
            a.put_u32(NFTA_LOOKUP_DREG, NFT_REG_VERDICT);
        })
    }

    /// Adds an element to a map, or renews its timeout. Ends the rule if the map is full.
    pub fn update_map(self, map: &str, key: Register, data: Register, timeout: Duration) -> Self {
        self.expression("dynset", |a| {
            a.put_str(NFTA_DYNSET_SET_NAME, map);
            a.put_u32(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE);
            a.put_u32(NFTA_DYNSET_SREG_KEY, key.number());
            a.put_u32(NFTA_DYNSET_SREG_DATA, data.number());
            a.put_bytes(NFTA_DYNSET_TIMEOUT, &(timeout.as_millis() as u64).to_be_bytes());
        })
    }

    /// Adds an element to a set. Ends the rule if the set is full.
    pub fn add_to_set(self, set: &str, key: Register, timeout: Duration) -> Self {
        self.expression("dynset", |a| {
            a.put_str(NFTA_DYNSET_SET_NAME, set);
            a.put_u32(NFTA_DYNSET_OP, NFT_DYNSET_OP_ADD);
            a.put_u32(NFTA_DYNSET_SREG_KEY, key.number());
            a.put_bytes(NFTA_DYNSET_TIMEOUT, &(timeout.as_millis() as u64).to_be_bytes());
        })
    }

    /// Deletes an element from a map. The kernel wants a data register that was written, and ignores what is in it.
    pub fn delete_from_map(self, map: &str, key: Register, data: Register) -> Self {
        self.expression("dynset", |a| {
            a.put_str(NFTA_DYNSET_SET_NAME, map);
            a.put_u32(NFTA_DYNSET_OP, NFT_DYNSET_OP_DELETE);
            a.put_u32(NFTA_DYNSET_SREG_KEY, key.number());
            a.put_u32(NFTA_DYNSET_SREG_DATA, data.number());
        })
    }

    fn verdict(self, code: i32, chain: Option<&str>) -> Self {
        self.expression("immediate", |a| {
            a.put_u32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
            a.nest(NFTA_IMMEDIATE_DATA, |a| write_verdict(a, code, chain));
        })
    }

    pub fn goto(self, chain: &str) -> Self {
        self.verdict(NFT_GOTO, Some(chain))
    }

    pub fn drop(self) -> Self {
        self.verdict(NF_DROP, None)
    }

    /// `dnat ip to <address>:<port>`
    pub fn dnat(self, address: Register, port: Register) -> Self {
        self.expression("nat", |a| {
            a.put_u32(NFTA_NAT_TYPE, NFT_NAT_DNAT);
            a.put_u32(NFTA_NAT_FAMILY, u32::from(NFPROTO_IPV4));
            a.put_u32(NFTA_NAT_REG_ADDR_MIN, address.number());
            a.put_u32(NFTA_NAT_REG_PROTO_MIN, port.number());
        })
    }

    /// DNAT to a port of this machine.
    pub fn redirect(self, port: Register) -> Self {
        self.expression("redir", |a| a.put_u32(NFTA_REDIR_REG_PROTO_MIN, port.number()))
    }

    /// SNAT to the address of the interface that the packet leaves by.
    pub fn masquerade(self) -> Self {
        self.expression("masq", |_| {})
    }

    pub fn reject(self, with: RejectWith) -> Self {
        self.expression("reject", |a| match with {
            RejectWith::TcpReset => a.put_u32(NFTA_REJECT_TYPE, NFT_REJECT_TCP_RST),
            RejectWith::IcmpPortUnreachable => {
                a.put_u32(NFTA_REJECT_TYPE, NFT_REJECT_ICMP_UNREACH);
                a.put_bytes(NFTA_REJECT_ICMP_CODE, &[ICMP_PORT_UNREACH]);
            }
        })
    }
}

fn address_offset(side: Side) -> u32 {
    match side {
        Side::Source => IP_SOURCE,
        Side::Destination => IP_DESTINATION,
    }
}

fn write_verdict(a: &mut Attributes<'_>, code: i32, chain: Option<&str>) {
    a.nest(NFTA_DATA_VERDICT, |a| {
        a.put_bytes(NFTA_VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            a.put_str(NFTA_VERDICT_CHAIN, chain);
        }
    });
}

/// The data of a verdict map's element.
pub fn write_jump(a: &mut Attributes<'_>, chain: &str) {
    write_verdict(a, NFT_JUMP, Some(chain));
}
