//! The wire format: numbered fields, one after the other.

use super::{ProtobufError, Read};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields of one message, in the order in which they came. Ends after the first error.
pub struct Wire<'a> {
    rest: &'a [u8],
}

impl<'a> Wire<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::CutShort)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for at in 0..10 {
            let byte = *self.rest.get(at).ok_or(ProtobufError::CutShort)?;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(ProtobufError::WrongType)
    }

    fn field(&mut self) -> Read<(u64, Payload<'a>)> {
        let key = self.varint()?;
        let payload = match key & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => Payload::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::CutShort)?;
                Payload::Bytes(self.take(length)?)
            }
            5 => Payload::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(ProtobufError::WrongType),
        };
        Ok((key >> 3, payload))
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| ProtobufError::CutShort)
    }
}

impl<'a> Iterator for Wire<'a> {
    type Item = Read<(u64, Payload<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Numbers of a list that is packed into one field.
pub fn packed(bytes: &[u8]) -> impl Iterator<Item = Read<u64>> {
    let mut wire = Wire::new(bytes);
    std::iter::from_fn(move || {
        if wire.rest.is_empty() {
            return None;
        }
        let number = wire.varint();
        if number.is_err() {
            wire.rest = &[];
        }
        Some(number)
    })
}
