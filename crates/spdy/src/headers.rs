//! Header blocks: names and values, compressed by one zlib stream per direction and connection.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use super::{dictionary::DICTIONARY, frame::FrameError};

/// Longest block taken, once decompressed.
const LONGEST: usize = 256 * 1024;

/// Names in lower case. Of a name with several values, the values in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(BTreeMap<String, Vec<String>>);

impl Headers {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.first().map(String::as_str)
    }

    pub fn insert(&mut self, name: &str, value: impl Into<String>) {
        self.0.entry(name.to_ascii_lowercase()).or_default().push(value.into());
    }

    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::new();
        block.put_u32(self.0.len() as u32);
        for (name, values) in &self.0 {
            for text in [name.as_str(), &values.join("\0")] {
                block.put_u32(text.len() as u32);
                block.put_slice(text.as_bytes());
            }
        }
        block
    }

    fn decode(mut block: Bytes) -> Result<Self, FrameError> {
        let mut headers = Self::default();
        for _ in 0..number(&mut block)? {
            let (name, values) = (text(&mut block)?, text(&mut block)?);
            for value in values.split('\0') {
                headers.insert(&name, value);
            }
        }
        Ok(headers)
    }
}

fn number(block: &mut Bytes) -> Result<u32, FrameError> {
    block.try_get_u32().map_err(|_| FrameError::Headers)
}

fn text(block: &mut Bytes) -> Result<String, FrameError> {
    let length = number(block)? as usize;
    if block.len() < length {
        return Err(FrameError::Headers);
    }
    String::from_utf8(block.split_to(length).into()).map_err(|_| FrameError::Headers)
}

/// Compresses the blocks of one direction.
pub struct Compressor(Compress);

impl Default for Compressor {
    fn default() -> Self {
        let mut compress = Compress::new(Compression::default(), true);
        compress.set_dictionary(&DICTIONARY).expect("a new stream takes a dictionary");
        Self(compress)
    }
}

impl Compressor {
    pub fn block(&mut self, headers: &Headers) -> Result<Vec<u8>, FrameError> {
        let plain = headers.encode();
        let mut block = Vec::with_capacity(plain.len() + 64);
        let before = self.0.total_in();
        loop {
            let taken = (self.0.total_in() - before) as usize;
            self.0.compress_vec(&plain[taken..], &mut block, FlushCompress::Sync).map_err(|_| FrameError::Headers)?;
            let done = (self.0.total_in() - before) as usize == plain.len();
            if done && block.len() < block.capacity() {
                return Ok(block);
            }
            block.reserve(1024);
        }
    }
}

/// Decompresses the blocks of one direction.
pub struct Decompressor(Decompress);

impl Default for Decompressor {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Decompressor {
    pub fn headers(&mut self, block: &[u8]) -> Result<Headers, FrameError> {
        let mut plain = Vec::with_capacity(1024);
        let mut rest = block;
        loop {
            let (before_in, before_out) = (self.0.total_in(), plain.len());
            let step = self.0.decompress_vec(rest, &mut plain, FlushDecompress::Sync);
            rest = &rest[((self.0.total_in() - before_in) as usize).min(rest.len())..];
            match step {
                Ok(_) => {
                    if rest.is_empty() && plain.len() < plain.capacity() {
                        break;
                    }
                    if plain.len() == before_out && plain.len() < plain.capacity() {
                        return Err(FrameError::Headers); // neither takes nor gives
                    }
                }
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&DICTIONARY).map_err(|_| FrameError::Headers)?;
                    continue;
                }
                Err(_) => return Err(FrameError::Headers),
            }
            if plain.len() > LONGEST {
                return Err(FrameError::Headers);
            }
            plain.reserve(4096);
        }
        Headers::decode(BytesMut::from(&plain[..]).freeze())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A first block, `streamtype: error`, as the C library compresses it.
    #[test]
    fn blocks_of_another_zlib_are_understood() {
        let mut headers = Headers::default();
        headers.insert("streamtype", "error");
        let block = [
            0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x02, 0xa6, 0x23, 0x46, 0x70, 0x3a, 0x2b, 0x29, 0x4a, 0x4d, 0xcc, 0x85,
            0x16, 0x25, 0xac, 0xa9, 0xa0, 0x80, 0x06, 0x00, 0x00, 0x00, 0xff, 0xff,
        ];
        assert_eq!(Decompressor::default().headers(&block).unwrap(), headers);
    }

    #[test]
    fn a_block_that_swells_without_bound_is_refused() {
        let mut headers = Headers::default();
        headers.insert("bomb", "x".repeat(2 * LONGEST));
        let block = Compressor::default().block(&headers).unwrap();
        assert!(block.len() < 8192);
        assert!(Decompressor::default().headers(&block).is_err());
    }

    proptest! {
        #[test]
        fn blocks_survive_one_after_another(
            blocks in prop::collection::vec(prop::collection::btree_map("[a-z-]{1,20}", "[ -~]{0,300}", 0..8), 1..8)
        ) {
            let (mut compressor, mut decompressor) = (Compressor::default(), Decompressor::default());
            for block in blocks {
                let mut headers = Headers::default();
                for (name, value) in &block {
                    headers.insert(name, value.as_str());
                }
                let bytes = compressor.block(&headers).unwrap();
                prop_assert_eq!(decompressor.headers(&bytes).unwrap(), headers);
            }
        }

        #[test]
        fn no_bytes_make_it_fail_otherwise_than_by_refusing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Decompressor::default().headers(&bytes);
        }
    }
}
