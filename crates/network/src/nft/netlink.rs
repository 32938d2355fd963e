//! Encoding of netfilter's netlink messages: a header, then attributes (type, length, value), some of which are nested.
//!
//! Reading never fails: a message or attribute that is cut short ends the iteration.

use super::uapi::{NFTA_DATA_VALUE, NLA_F_NESTED, NLA_TYPE_MASK};

/// `struct nlmsghdr`
const NLMSG_HEADER: usize = 16;
/// `struct nfgenmsg`: family, version, resource id.
const NFGENMSG: usize = 4;

pub struct Header {
    /// Subsystem in the upper byte, message of the subsystem in the lower one.
    pub message_type: u16,
    pub flags: u16,
    pub sequence: u32,
    pub family: u8,
    pub resource: u16,
}

/// Appends a message.
pub fn write_message(bytes: &mut Vec<u8>, header: &Header, content: impl FnOnce(&mut Attributes<'_>)) {
    let start = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend(header.message_type.to_ne_bytes());
    bytes.extend(header.flags.to_ne_bytes());
    bytes.extend(header.sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([header.family, 0]);
    bytes.extend(header.resource.to_be_bytes());
    content(&mut Attributes(bytes));
    let length = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Writes attributes. One is at most 64 KiB long with everything nested in it: the caller divides longer lists.
pub struct Attributes<'a>(pub &'a mut Vec<u8>);

impl Attributes<'_> {
    pub fn put_bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    pub fn put_str(&mut self, kind: u16, value: &str) {
        self.put_bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    pub fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NLA_F_NESTED).to_ne_bytes());
        content(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// A value of nf_tables: the bytes of a key, of an element's data or of a constant in a rule.
    pub fn put_data(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |a| a.put_bytes(NFTA_DATA_VALUE, value));
    }
}

/// A message from the kernel.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub message_type: u16,
    pub flags: u16,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The code of an `NLMSG_ERROR`: a negated errno, or zero for success.
    pub fn error_code(&self) -> i32 {
        self.body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code))
    }

    pub fn attributes(&self) -> &'a [u8] {
        self.body.get(NFGENMSG..).unwrap_or_default()
    }
}

/// The messages of a datagram, up to the first that is cut short.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; NLMSG_HEADER] = bytes.first_chunk()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let message_type = u16::from_ne_bytes([header[4], header[5]]);
        let flags = u16::from_ne_bytes([header[6], header[7]]);
        let body = bytes.get(NLMSG_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { message_type, flags, body })
    })
}

/// The attributes of a message or of a nested attribute, up to the first that is cut short.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header: &[u8; 4] = bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a type.
pub fn get_bytes(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

pub fn get_u32(bytes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(get_bytes(bytes, kind)?.try_into().ok()?))
}

pub fn get_str(bytes: &[u8], kind: u16) -> Option<&str> {
    std::str::from_utf8(get_bytes(bytes, kind)?).ok().map(|text| text.trim_end_matches('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::uapi::{NLM_F_REQUEST, NLMSG_DONE};

    #[test]
    fn a_written_message_reads_back() {
        let mut bytes = Vec::new();
        let header = |message_type| Header { message_type, flags: NLM_F_REQUEST, sequence: 0, family: 2, resource: 0 };
        write_message(&mut bytes, &header(2561), |a| {
            a.put_str(1, "table");
            a.nest(2, |a| a.put_u32(7, 5));
        });
        write_message(&mut bytes, &header(NLMSG_DONE), |_| {});
        let read: Vec<Message<'_>> = messages(&bytes).collect();
        let headers: Vec<_> = read.iter().map(|m| (m.message_type, m.flags)).collect();
        assert_eq!(headers, [(2561, NLM_F_REQUEST), (NLMSG_DONE, NLM_F_REQUEST)]);
        assert_eq!(get_str(read[0].attributes(), 1), Some("table"));
        assert_eq!(get_u32(get_bytes(read[0].attributes(), 2).unwrap(), 7), Some(5));
        assert_eq!(get_bytes(read[0].attributes(), 3), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes: Vec<u8>) {
            for message in messages(&bytes) {
                message.error_code();
                attributes(message.attributes()).for_each(|(_, value)| {
                    attributes(value).count();
                });
            }
        }
    }
}
