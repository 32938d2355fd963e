//! The marker file beside the database: the number of the last acknowledged commit.
//!
//! SQLite ends its recovery silently at the first damaged frame of the write-ahead log, which
//! would undo acknowledged commits. The marker is written after each commit and before its answer,
//! without an fsync of its own: after `kill -9` it is exact, after a power loss it may be
//! some seconds old, and it is never ahead of what is durable. A database that is behind
//! its marker has lost something.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: u64 = u64::from_le_bytes(*b"mainstay");
const LEN: usize = 32;

pub(super) struct Marker {
    file: File,
    store: u64,
    /// Whether the last write failed, so that a lasting failure is logged once.
    failing: bool,
}

/// What a marker says: the store it belongs to and that store's newest acknowledged commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MarkerRecord {
    pub(super) store: u64,
    pub(super) turn: u64,
}

impl MarkerRecord {
    fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.store.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.turn.to_le_bytes());
        let sum = xxh3_64(&bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<MarkerRecord> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let mark = MarkerRecord { store: word(8)?, turn: word(16)? };
        (mark.encode() == bytes).then_some(mark)
    }
}

/// Reads a marker. One that is missing, torn or damaged says nothing: the database has checksums of its own.
pub(super) fn read(path: &Path) -> io::Result<Option<MarkerRecord>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(MarkerRecord::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Marker {
    pub(super) fn open(path: &Path, store: u64) -> io::Result<Marker> {
        let file = mainstay_files::open_private(path)?;
        Ok(Marker { file, store, failing: false })
    }

    pub(super) fn record(&mut self, turn: u64) {
        match self.file.write_all_at(&MarkerRecord { store: self.store, turn }.encode(), 0) {
            Ok(()) => self.failing = false,
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(%error, "cannot write the marker file of the store");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_reads_back_and_any_flipped_bit_makes_it_say_nothing() {
        let mark = MarkerRecord { store: 7, turn: 99 };
        let bytes = mark.encode();
        assert_eq!(MarkerRecord::decode(&bytes), Some(mark));
        for bit in 0..LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(MarkerRecord::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(MarkerRecord::decode(&bytes[..20]), None);
    }
}
