//! How netlink lays out what netfilter is told and answers: messages of attributes, some of which hold attributes.

pub const NESTED: u16 = 0x8000;
/// What marks a kind of attribute rather than names it.
const MARKS: u16 = 0xc000;
const HEADER: usize = 16;
/// After every header: a family, a version, and what the message is about.
const PREAMBLE: usize = 4;

// Flags of a message.
pub const REQUEST: u16 = 0x1;
pub const DUMP: u16 = 0x300;
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;
/// An answer that is out of date: something changed while it was given.
pub const INTERRUPTED: u16 = 0x10;

// Kinds of message that every part of the kernel uses.
pub const ERROR: u16 = 2;
pub const DONE: u16 = 3;

pub struct Header {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub family: u8,
    pub resource: u16,
}

/// Appends a message.
pub fn write(bytes: &mut Vec<u8>, header: &Header, content: impl FnOnce(&mut Attributes<'_>)) {
    let start = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend(header.kind.to_ne_bytes());
    bytes.extend(header.flags.to_ne_bytes());
    bytes.extend(header.sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([header.family, 0]);
    bytes.extend(header.resource.to_be_bytes());
    content(&mut Attributes(bytes));
    let length = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Writes attributes. One is at most 64 KiB long with all it holds; whoever writes lists divides them.
pub struct Attributes<'a>(pub &'a mut Vec<u8>);

impl Attributes<'_> {
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    pub fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        content(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// A value as packet rules hold it.
    pub fn value(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |a| a.bytes(1, value));
    }
}

/// A message of an answer.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    /// What follows the header.
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// What the kernel says of a request: zero is consent.
    pub fn code(&self) -> i32 {
        self.body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code))
    }

    pub fn attributes(&self) -> &'a [u8] {
        self.body.get(PREAMBLE..).unwrap_or_default()
    }
}

/// The messages of an answer, as far as they are whole.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let flags = u16::from_ne_bytes([header[6], header[7]]);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, body })
    })
}

/// The attributes in a message or in another attribute, as far as they are whole.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header: &[u8; 4] = bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !MARKS;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a kind.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

pub fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(attribute(bytes, kind)?.try_into().ok()?))
}

pub fn text(bytes: &[u8], kind: u16) -> Option<&str> {
    std::str::from_utf8(attribute(bytes, kind)?).ok().map(|text| text.trim_end_matches('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut bytes = Vec::new();
        let header = |kind| Header { kind, flags: REQUEST, sequence: 0, family: 2, resource: 0 };
        write(&mut bytes, &header(2561), |a| {
            a.text(1, "table");
            a.nest(2, |a| a.number(7, 5));
        });
        write(&mut bytes, &header(DONE), |_| {});
        let read: Vec<Message<'_>> = messages(&bytes).collect();
        assert_eq!(read.iter().map(|m| (m.kind, m.flags)).collect::<Vec<_>>(), [(2561, REQUEST), (DONE, REQUEST)]);
        assert_eq!(text(read[0].attributes(), 1), Some("table"));
        assert_eq!(number(attribute(read[0].attributes(), 2).unwrap(), 7), Some(5));
        assert_eq!(attribute(read[0].attributes(), 3), None);
    }

    proptest::proptest! {
        #[test]
        fn no_answer_can_make_us_fail(bytes: Vec<u8>) {
            for message in messages(&bytes) {
                message.code();
                attributes(message.attributes()).for_each(|(_, value)| {
                    attributes(value).count();
                });
            }
        }
    }
}
