//! SPDY frames: [`Encoder`] writes them to bytes, [`Decoder`] reads them however the bytes are cut.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::headers::{Compressor, Decompressor, Headers};

const VERSION: u16 = 3;
const HEAD: usize = 8;
const FIN: u8 = 0x01;
const UNIDIRECTIONAL: u8 = 0x02;
/// Longest control frame taken. Data frames are passed on as they come, however long.
const LONGEST_CONTROL: usize = 64 * 1024;
const ID: u32 = 0x7fff_ffff;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        id: u32,
        fin: bool,
        unidirectional: bool,
        headers: Headers,
    },
    SynReply {
        id: u32,
        fin: bool,
        headers: Headers,
    },
    Reset {
        id: u32,
        status: u32,
    },
    Settings(Vec<(u32, u32)>),
    Ping(u32),
    GoAway {
        last: u32,
        status: u32,
    },
    Headers {
        id: u32,
        fin: bool,
        headers: Headers,
    },
    WindowUpdate {
        id: u32,
        delta: u32,
    },
    /// What came of a data frame; `fin` with its last piece.
    Data {
        id: u32,
        fin: bool,
        bytes: Bytes,
    },
    /// Of a kind we have no use for.
    Other {
        kind: u16,
    },
}

/// Statuses of `Reset`.
pub mod reset {
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const REFUSED_STREAM: u32 = 3;
    pub const CANCEL: u32 = 5;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of SPDY version {0}, not 3")]
    Version(u16),
    #[error("a control frame of {0} bytes is too long")]
    TooLong(usize),
    #[error("a control frame of kind {0} is cut short")]
    Short(u16),
    #[error("a block of headers cannot be read")]
    Headers,
}

#[derive(Default)]
pub struct Encoder {
    compressor: Compressor,
}

impl Encoder {
    pub fn encode(&mut self, frame: &Frame, out: &mut BytesMut) -> Result<(), FrameError> {
        match frame {
            Frame::Data { id, fin, bytes } => {
                out.put_u32(id & ID);
                out.put_u32(length(if *fin { FIN } else { 0 }, bytes.len()));
                out.put_slice(bytes);
            }
            Frame::SynStream { id, fin, unidirectional, headers } => {
                let block = self.compressor.block(headers)?;
                let flags = if *fin { FIN } else { 0 } | if *unidirectional { UNIDIRECTIONAL } else { 0 };
                control(out, 1, flags, 10 + block.len());
                out.put_u32(id & ID);
                out.put_u32(0); // belongs to no other stream
                out.put_u16(0); // priority and slot
                out.put_slice(&block);
            }
            Frame::SynReply { id, fin, headers } => self.with_headers(out, 2, *id, *fin, headers)?,
            Frame::Headers { id, fin, headers } => self.with_headers(out, 8, *id, *fin, headers)?,
            Frame::Reset { id, status } => pair(out, 3, *id, *status),
            Frame::GoAway { last, status } => pair(out, 7, *last, *status),
            Frame::WindowUpdate { id, delta } => pair(out, 9, *id, *delta),
            Frame::Ping(id) => {
                control(out, 6, 0, 4);
                out.put_u32(*id);
            }
            Frame::Settings(entries) => {
                control(out, 4, 0, 4 + 8 * entries.len());
                out.put_u32(entries.len() as u32);
                for (id, value) in entries {
                    out.put_u32(id & 0x00ff_ffff);
                    out.put_u32(*value);
                }
            }
            Frame::Other { kind } => control(out, *kind, 0, 0),
        }
        Ok(())
    }

    fn with_headers(
        &mut self,
        out: &mut BytesMut,
        kind: u16,
        id: u32,
        fin: bool,
        h: &Headers,
    ) -> Result<(), FrameError> {
        let block = self.compressor.block(h)?;
        control(out, kind, if fin { FIN } else { 0 }, 4 + block.len());
        out.put_u32(id & ID);
        out.put_slice(&block);
        Ok(())
    }
}

fn length(flags: u8, length: usize) -> u32 {
    (u32::from(flags) << 24) | (length as u32 & 0x00ff_ffff)
}

fn control(out: &mut BytesMut, kind: u16, flags: u8, len: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32(length(flags, len));
}

fn pair(out: &mut BytesMut, kind: u16, first: u32, second: u32) {
    control(out, kind, 0, 8);
    out.put_u32(first & ID);
    out.put_u32(second);
}

#[derive(Default)]
pub struct Decoder {
    decompressor: Decompressor,
    /// The data frame under way.
    data: Option<Pending>,
}

struct Pending {
    id: u32,
    fin: bool,
    left: usize,
}

impl Decoder {
    /// The next frame, or piece of one, if enough of it has come.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        if let Some(pending) = &mut self.data {
            if input.is_empty() {
                return Ok(None);
            }
            let bytes = input.split_to(pending.left.min(input.len())).freeze();
            pending.left -= bytes.len();
            let (id, done) = (pending.id, pending.left == 0);
            let fin = done && pending.fin;
            if done {
                self.data = None;
            }
            return Ok(Some(Frame::Data { id, fin, bytes }));
        }
        let Some(mut head) = input.get(..HEAD) else { return Ok(None) };
        let (first, second) = (head.get_u32(), head.get_u32());
        let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
        if first & !ID == 0 {
            input.advance(HEAD);
            let (id, fin) = (first, flags & FIN != 0);
            if length == 0 {
                return Ok(Some(Frame::Data { id, fin, bytes: Bytes::new() }));
            }
            self.data = Some(Pending { id, fin, left: length });
            return self.decode(input);
        }
        let (version, kind) = ((first >> 16) as u16 & 0x7fff, first as u16);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if length > LONGEST_CONTROL {
            return Err(FrameError::TooLong(length));
        }
        if input.len() < HEAD + length {
            return Ok(None);
        }
        input.advance(HEAD);
        self.control(kind, flags, input.split_to(length).freeze()).map(Some)
    }

    fn control(&mut self, kind: u16, flags: u8, mut body: Bytes) -> Result<Frame, FrameError> {
        let fin = flags & FIN != 0;
        let number = |body: &mut Bytes| body.try_get_u32().map_err(|_| FrameError::Short(kind));
        Ok(match kind {
            1 => {
                let id = number(&mut body)? & ID;
                number(&mut body)?;
                body.try_get_u16().map_err(|_| FrameError::Short(kind))?;
                let headers = self.decompressor.headers(&body)?;
                Frame::SynStream { id, fin, unidirectional: flags & UNIDIRECTIONAL != 0, headers }
            }
            2 | 8 => {
                let id = number(&mut body)? & ID;
                let headers = self.decompressor.headers(&body)?;
                if kind == 2 { Frame::SynReply { id, fin, headers } } else { Frame::Headers { id, fin, headers } }
            }
            3 => Frame::Reset { id: number(&mut body)? & ID, status: number(&mut body)? },
            4 => {
                let mut entries = Vec::new();
                for _ in 0..number(&mut body)? {
                    entries.push((number(&mut body)? & 0x00ff_ffff, number(&mut body)?));
                }
                Frame::Settings(entries)
            }
            6 => Frame::Ping(number(&mut body)?),
            7 => Frame::GoAway { last: number(&mut body)? & ID, status: number(&mut body)? },
            9 => Frame::WindowUpdate { id: number(&mut body)? & ID, delta: number(&mut body)? & ID },
            kind => Frame::Other { kind },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Headers> {
        prop::collection::btree_map("[a-z]{1,10}", "[a-zA-Z0-9 ]{0,40}", 0..4).prop_map(|pairs| {
            let mut headers = Headers::default();
            pairs.into_iter().for_each(|(name, value)| headers.insert(&name, value));
            headers
        })
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let id = || 1u32..=ID;
        let bytes = prop::collection::vec(any::<u8>(), 0..2000).prop_map(Bytes::from);
        prop_oneof![
            (id(), any::<bool>(), any::<bool>(), headers())
                .prop_map(|(id, fin, unidirectional, headers)| Frame::SynStream { id, fin, unidirectional, headers }),
            (id(), any::<bool>(), headers()).prop_map(|(id, fin, headers)| Frame::SynReply { id, fin, headers }),
            (id(), any::<bool>(), headers()).prop_map(|(id, fin, headers)| Frame::Headers { id, fin, headers }),
            (id(), any::<u32>()).prop_map(|(id, status)| Frame::Reset { id, status }),
            prop::collection::vec((0u32..0x00ff_ffff, any::<u32>()), 0..5).prop_map(Frame::Settings),
            any::<u32>().prop_map(Frame::Ping),
            (id(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
            (id(), 0..ID).prop_map(|(id, delta)| Frame::WindowUpdate { id, delta }),
            (id(), any::<bool>(), bytes).prop_map(|(id, fin, bytes)| Frame::Data { id, fin, bytes }),
        ]
    }

    /// Puts the pieces of data frames together again.
    fn join(into: &mut Vec<Frame>, frame: Frame, whole: &mut bool) {
        if let (false, Some(Frame::Data { fin, bytes, .. }), Frame::Data { fin: last, bytes: more, .. }) =
            (*whole, into.last_mut(), &frame)
        {
            *bytes = [&bytes[..], &more[..]].concat().into();
            *fin = *last;
        } else {
            into.push(frame);
        }
    }

    proptest! {
        #[test]
        fn frames_survive_however_the_bytes_are_cut(
            frames in prop::collection::vec(frame(), 1..12), piece in 1usize..500
        ) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            let mut wire = BytesMut::new();
            for frame in &frames {
                encoder.encode(frame, &mut wire).unwrap();
            }
            let (mut input, mut observed, mut whole) = (BytesMut::new(), Vec::new(), true);
            for bytes in wire.chunks(piece) {
                input.extend_from_slice(bytes);
                while let Some(frame) = decoder.decode(&mut input).unwrap() {
                    join(&mut observed, frame, &mut whole);
                    whole = decoder.data.is_none();
                }
            }
            prop_assert_eq!(observed, frames);
        }

        #[test]
        fn no_bytes_make_it_fail_otherwise_than_by_refusing(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (mut input, mut decoder) = (BytesMut::from(&bytes[..]), Decoder::default());
            while let Ok(Some(_)) = decoder.decode(&mut input) {}
        }
    }

    #[test]
    fn other_versions_and_endless_control_frames_are_refused() {
        let decode = |bytes: &[u8]| Decoder::default().decode(&mut BytesMut::from(bytes));
        assert_eq!(decode(&[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]), Err(FrameError::Version(2)));
        assert_eq!(decode(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]), Err(FrameError::TooLong(0xff_ffff)));
        assert_eq!(decode(&[0x80, 3, 0, 6, 0, 0, 0, 2, 0, 0]), Err(FrameError::Short(6)));
    }
}
