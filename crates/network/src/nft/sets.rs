//! Definitions and elements of nf_tables sets and maps.

use super::{
    expressions::write_jump,
    netlink::Attributes,
    uapi::{
        NFT_DATA_VERDICT, NFT_REG32_SIZE, NFT_SET_EVAL, NFT_SET_MAP, NFT_SET_TIMEOUT, NFTA_SET_DATA_LEN,
        NFTA_SET_DATA_TYPE, NFTA_SET_DESC, NFTA_SET_DESC_SIZE, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY, NFTA_SET_FLAGS,
        NFTA_SET_ID, NFTA_SET_KEY_LEN, NFTA_SET_KEY_TYPE, NFTA_SET_NAME, TYPE_BITS, TYPE_INET_PROTOCOL,
        TYPE_INET_SERVICE, TYPE_IPADDR, TYPE_MARK,
    },
};

/// Type of one field of a concatenated key or value, as `nft list` prints it. In a register each field takes four
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    Ipv4Addr,
    InetProto,
    InetService,
    Mark,
}

impl Datatype {
    fn number(self) -> u32 {
        match self {
            Datatype::Ipv4Addr => TYPE_IPADDR,
            Datatype::InetProto => TYPE_INET_PROTOCOL,
            Datatype::InetService => TYPE_INET_SERVICE,
            Datatype::Mark => TYPE_MARK,
        }
    }
}

/// What the elements of a set have besides their keys.
#[derive(Clone, Copy, Debug)]
pub enum SetData {
    /// Nothing: it is a plain set.
    None,
    /// It is a map to values.
    Values(&'static [Datatype]),
    /// It is a verdict map.
    Verdicts,
}

#[derive(Clone, Copy, Debug)]
pub struct SetDefinition {
    pub name: &'static str,
    pub key: &'static [Datatype],
    pub data: SetData,
    /// Rules add elements (`dynset`), which time out; the number is the largest size of the set.
    pub dynamic: Option<u32>,
}

impl SetDefinition {
    pub(super) fn write(&self, id: u32, a: &mut Attributes<'_>) {
        let concatenated =
            |fields: &[Datatype]| fields.iter().fold(0, |types, field| types << TYPE_BITS | field.number());
        let length = |fields: &[Datatype]| fields.len() as u32 * NFT_REG32_SIZE;
        let map = if matches!(self.data, SetData::None) { 0 } else { NFT_SET_MAP };
        let dynamic = if self.dynamic.is_some() { NFT_SET_TIMEOUT | NFT_SET_EVAL } else { 0 };
        a.put_str(NFTA_SET_NAME, self.name);
        a.put_u32(NFTA_SET_FLAGS, map | dynamic);
        a.put_u32(NFTA_SET_KEY_TYPE, concatenated(self.key));
        a.put_u32(NFTA_SET_KEY_LEN, length(self.key));
        match self.data {
            SetData::None => {}
            SetData::Values(fields) => {
                a.put_u32(NFTA_SET_DATA_TYPE, concatenated(fields));
                a.put_u32(NFTA_SET_DATA_LEN, length(fields));
            }
            SetData::Verdicts => a.put_u32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT),
        }
        if let Some(size) = self.dynamic {
            a.nest(NFTA_SET_DESC, |a| a.put_u32(NFTA_SET_DESC_SIZE, size));
        }
        a.put_u32(NFTA_SET_ID, id);
    }
}

/// The data of one element.
#[derive(Clone, Copy, Debug)]
pub enum ElementData<'a> {
    None,
    Value(&'a [u8]),
    /// Jump to this chain.
    Jump(&'a str),
}

pub(super) fn write_element(a: &mut Attributes<'_>, key: &[u8], data: ElementData<'_>) {
    a.put_data(NFTA_SET_ELEM_KEY, key);
    match data {
        ElementData::None => {}
        ElementData::Value(value) => a.put_data(NFTA_SET_ELEM_DATA, value),
        ElementData::Jump(chain) => a.nest(NFTA_SET_ELEM_DATA, |a| write_jump(a, chain)),
    }
}
