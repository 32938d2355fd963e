//! Constants of the kernel's netfilter API by their kernel names, in the width that they have in a message.
//!
//! What `libc` has comes from there; the rest is from the header that each group names. The golden files in `tests/`
//! fail if one of them changes.

use nix::libc;

macro_rules! from_libc {
    ($width:ty: $($name:ident)*) => { $(pub const $name: $width = libc::$name as $width;)* };
}

// linux/netlink.h
from_libc!(u16: NLM_F_REQUEST NLM_F_DUMP NLM_F_DUMP_INTR NLM_F_CREATE NLM_F_APPEND);
from_libc!(u16: NLMSG_ERROR NLMSG_DONE NLA_F_NESTED NLA_TYPE_MASK);

// linux/netfilter/nfnetlink.h
from_libc!(u16: NFNL_MSG_BATCH_BEGIN NFNL_MSG_BATCH_END NFNL_SUBSYS_NFTABLES NFNL_SUBSYS_CTNETLINK);

// linux/in.h, linux/icmp.h, linux/rtnetlink.h, linux/if.h
from_libc!(u8: IPPROTO_ICMP IPPROTO_TCP IPPROTO_UDP IPPROTO_SCTP);
pub const ICMP_DEST_UNREACH: u8 = 3;
pub const ICMP_HOST_UNREACH: u8 = 1;
pub const ICMP_PORT_UNREACH: u8 = 3;
from_libc!(u32: RTN_LOCAL);
from_libc!(usize: IFNAMSIZ);

// linux/netfilter.h, linux/netfilter_ipv4.h
from_libc!(u8: NFPROTO_UNSPEC NFPROTO_IPV4);
from_libc!(u32: NF_INET_PRE_ROUTING NF_INET_LOCAL_IN NF_INET_FORWARD NF_INET_LOCAL_OUT NF_INET_POST_ROUTING);
from_libc!(i32: NF_IP_PRI_NAT_DST NF_IP_PRI_FILTER NF_IP_PRI_NAT_SRC NF_DROP);

// linux/netfilter/nf_tables.h
from_libc!(u16: NFT_MSG_NEWTABLE NFT_MSG_GETTABLE NFT_MSG_DELTABLE NFT_MSG_NEWCHAIN NFT_MSG_GETCHAIN NFT_MSG_DELCHAIN);
from_libc!(u16: NFT_MSG_NEWRULE NFT_MSG_GETRULE NFT_MSG_DELRULE NFT_MSG_NEWSET NFT_MSG_GETSET);
from_libc!(u16: NFT_MSG_NEWSETELEM NFT_MSG_GETSETELEM NFT_MSG_DELSETELEM NFT_MSG_GETGEN NFT_MSG_NEWOBJ);
from_libc!(i32: NFT_JUMP NFT_GOTO);
from_libc!(u32: NFT_REG_VERDICT NFT_REG32_00 NFT_REG32_SIZE);
from_libc!(u32: NFT_SET_MAP NFT_SET_TIMEOUT NFT_SET_EVAL NFT_DATA_VERDICT);
from_libc!(u32: NFT_CMP_EQ NFT_CMP_NEQ NFT_LOOKUP_F_INV NFT_DYNSET_OP_ADD NFT_DYNSET_OP_UPDATE NFT_NG_RANDOM);
from_libc!(u32: NFT_PAYLOAD_NETWORK_HEADER NFT_PAYLOAD_TRANSPORT_HEADER NFT_META_OIFNAME NFT_META_L4PROTO);
from_libc!(u32: NFT_CT_DIRECTION NFT_CT_STATUS NFT_CT_PROTOCOL NFT_CT_PROTO_SRC NFT_CT_PROTO_DST);
from_libc!(u32: NFT_CT_SRC_IP NFT_CT_DST_IP NFT_NAT_DNAT NFT_REJECT_ICMP_UNREACH NFT_REJECT_TCP_RST);
pub const NFT_DYNSET_OP_DELETE: u32 = 2;
pub const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
pub const NFT_OBJECT_CT_TIMEOUT: u32 = 7;
pub const NFTA_FIB_F_SADDR: u32 = 1 << 0;
pub const NFTA_FIB_F_DADDR: u32 = 1 << 1;

pub const NFTA_LIST_ELEM: u16 = 1;
pub const NFTA_TABLE_NAME: u16 = 1;
pub const NFTA_GEN_ID: u16 = 1;
pub const NFTA_HOOK_HOOKNUM: u16 = 1;
pub const NFTA_HOOK_PRIORITY: u16 = 2;
pub const NFTA_CHAIN_TABLE: u16 = 1;
pub const NFTA_CHAIN_NAME: u16 = 3;
pub const NFTA_CHAIN_HOOK: u16 = 4;
pub const NFTA_CHAIN_TYPE: u16 = 7;
pub const NFTA_RULE_TABLE: u16 = 1;
pub const NFTA_RULE_CHAIN: u16 = 2;
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub const NFTA_RULE_USERDATA: u16 = 7;
pub const NFTA_SET_TABLE: u16 = 1;
pub const NFTA_SET_NAME: u16 = 2;
pub const NFTA_SET_FLAGS: u16 = 3;
pub const NFTA_SET_KEY_TYPE: u16 = 4;
pub const NFTA_SET_KEY_LEN: u16 = 5;
pub const NFTA_SET_DATA_TYPE: u16 = 6;
pub const NFTA_SET_DATA_LEN: u16 = 7;
pub const NFTA_SET_DESC: u16 = 9;
pub const NFTA_SET_ID: u16 = 10;
pub const NFTA_SET_DESC_SIZE: u16 = 1;
pub const NFTA_SET_ELEM_KEY: u16 = 1;
pub const NFTA_SET_ELEM_DATA: u16 = 2;
pub const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub const NFTA_DATA_VALUE: u16 = 1;
pub const NFTA_DATA_VERDICT: u16 = 2;
pub const NFTA_VERDICT_CODE: u16 = 1;
pub const NFTA_VERDICT_CHAIN: u16 = 2;
pub const NFTA_OBJ_TABLE: u16 = 1;
pub const NFTA_OBJ_NAME: u16 = 2;
pub const NFTA_OBJ_TYPE: u16 = 3;
pub const NFTA_OBJ_DATA: u16 = 4;
pub const NFTA_CT_TIMEOUT_L3PROTO: u16 = 1;
pub const NFTA_CT_TIMEOUT_L4PROTO: u16 = 2;
pub const NFTA_CT_TIMEOUT_DATA: u16 = 3;

pub const NFTA_EXPR_NAME: u16 = 1;
pub const NFTA_EXPR_DATA: u16 = 2;
pub const NFTA_IMMEDIATE_DREG: u16 = 1;
pub const NFTA_IMMEDIATE_DATA: u16 = 2;
pub const NFTA_BITWISE_SREG: u16 = 1;
pub const NFTA_BITWISE_DREG: u16 = 2;
pub const NFTA_BITWISE_LEN: u16 = 3;
pub const NFTA_BITWISE_MASK: u16 = 4;
pub const NFTA_BITWISE_XOR: u16 = 5;
pub const NFTA_CMP_SREG: u16 = 1;
pub const NFTA_CMP_OP: u16 = 2;
pub const NFTA_CMP_DATA: u16 = 3;
pub const NFTA_LOOKUP_SET: u16 = 1;
pub const NFTA_LOOKUP_SREG: u16 = 2;
pub const NFTA_LOOKUP_DREG: u16 = 3;
pub const NFTA_LOOKUP_FLAGS: u16 = 5;
pub const NFTA_DYNSET_SET_NAME: u16 = 1;
pub const NFTA_DYNSET_OP: u16 = 3;
pub const NFTA_DYNSET_SREG_KEY: u16 = 4;
pub const NFTA_DYNSET_SREG_DATA: u16 = 5;
pub const NFTA_DYNSET_TIMEOUT: u16 = 6;
pub const NFTA_PAYLOAD_DREG: u16 = 1;
pub const NFTA_PAYLOAD_BASE: u16 = 2;
pub const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub const NFTA_PAYLOAD_LEN: u16 = 4;
pub const NFTA_META_DREG: u16 = 1;
pub const NFTA_META_KEY: u16 = 2;
pub const NFTA_CT_DREG: u16 = 1;
pub const NFTA_CT_KEY: u16 = 2;
pub const NFTA_CT_DIRECTION: u16 = 3;
pub const NFTA_FIB_DREG: u16 = 1;
pub const NFTA_FIB_RESULT: u16 = 2;
pub const NFTA_FIB_FLAGS: u16 = 3;
pub const NFTA_NG_DREG: u16 = 1;
pub const NFTA_NG_MODULUS: u16 = 2;
pub const NFTA_NG_TYPE: u16 = 3;
pub const NFTA_OBJREF_IMM_TYPE: u16 = 1;
pub const NFTA_OBJREF_IMM_NAME: u16 = 2;
pub const NFTA_NAT_TYPE: u16 = 1;
pub const NFTA_NAT_FAMILY: u16 = 2;
pub const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
pub const NFTA_REJECT_TYPE: u16 = 1;
pub const NFTA_REJECT_ICMP_CODE: u16 = 2;

// linux/netfilter/nf_conntrack_common.h, nf_conntrack_tuple_common.h
pub const IPS_SEEN_REPLY: u32 = 1 << 1;
pub const IPS_DST_NAT: u32 = 1 << 5;
pub const IP_CT_DIR_ORIGINAL: u8 = 0;
pub const IP_CT_DIR_REPLY: u8 = 1;

// linux/netfilter/nfnetlink_cttimeout.h
pub const CTA_TIMEOUT_TCP_SYN_SENT: u16 = 1;

// linux/netfilter/nfnetlink_conntrack.h
pub const IPCTNL_MSG_CT_GET: u16 = 1;
pub const IPCTNL_MSG_CT_DELETE: u16 = 2;
pub const CTA_TUPLE_ORIG: u16 = 1;
pub const CTA_TUPLE_REPLY: u16 = 2;
pub const CTA_ID: u16 = 12;
pub const CTA_ZONE: u16 = 18;
pub const CTA_FILTER: u16 = 25;
pub const CTA_FILTER_ORIG_FLAGS: u16 = 1;
pub const CTA_TUPLE_IP: u16 = 1;
pub const CTA_TUPLE_PROTO: u16 = 2;
pub const CTA_IP_V4_SRC: u16 = 1;
pub const CTA_IP_V4_DST: u16 = 2;
pub const CTA_PROTO_NUM: u16 = 1;
pub const CTA_PROTO_SRC_PORT: u16 = 2;
pub const CTA_PROTO_DST_PORT: u16 = 3;
/// In `net/netfilter/nf_internals.h`, although user space sends it.
pub const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;

// Type numbers of the `nft` program (its `include/datatype.h`). The kernel stores them without looking at them.
pub const TYPE_IPADDR: u32 = 7;
pub const TYPE_INET_PROTOCOL: u32 = 12;
pub const TYPE_INET_SERVICE: u32 = 13;
pub const TYPE_MARK: u32 = 19;
pub const TYPE_BITS: u32 = 6;
/// `NFTNL_UDATA_RULE_COMMENT` of libnftnl: what `nft` prints as the comment of a rule.
pub const NFTNL_UDATA_RULE_COMMENT: u8 = 0;
