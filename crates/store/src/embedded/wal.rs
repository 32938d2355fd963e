//! Verifies SQLite's write-ahead log (WAL) before SQLite reads it.
//!
//! Recovery takes the log's frames up to the first that does not fit the running checksum and ignores the
//! rest, which is right for a commit that was interrupted and wrong for a log that was damaged. The
//! two can be told apart: a transaction is written only after the one before it has been synced. So if behind the
//! first bad frame there is a complete transaction *and* something of a later one, then the bad frame was once good, and what it
//! belongs to was acknowledged.
//!
//! What this cannot tell is a damaged last transaction from an interrupted one; see [`super::marker`] for that.

use std::{fs, io, path::Path};

use super::error::FileFault;

const HEADER: usize = 32;
const FRAME: usize = 24;
const MAGIC: u32 = 0x377f_0682;

pub(super) fn inspect(path: &Path) -> Result<(), FileFault> {
    match fs::read(path) {
        Ok(log) => match damage(&log) {
            Some(why) => Err(FileFault::Damaged(why)),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// SQLite's running checksum, over words in the order the log's magic number says.
fn checksum(bytes: &[u8], big_endian: bool, (mut a, mut b): (u32, u32)) -> (u32, u32) {
    let read = |four: &[u8]| {
        let four = [four[0], four[1], four[2], four[3]];
        if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    for pair in bytes.chunks_exact(8) {
        a = a.wrapping_add(read(&pair[..4])).wrapping_add(b);
        b = b.wrapping_add(read(&pair[4..])).wrapping_add(a);
    }
    (a, b)
}

fn damage(log: &[u8]) -> Option<String> {
    // Shorter than one frame: nothing was ever committed to it. A header of zeros: the file grew, and the
    // machine stopped before anything in it was synced.
    let header = log.get(..HEADER)?;
    if log.len() <= HEADER || header.iter().all(|b| *b == 0) {
        return None;
    }
    let big_endian = word(header, 0) & 1 == 1;
    let page = word(header, 8) as usize;
    let mut running = checksum(&header[..24], big_endian, (0, 0));
    let sound = word(header, 0) & !1 == MAGIC
        && page.is_power_of_two()
        && (512..=65536).contains(&page)
        && running == (word(header, 24), word(header, 28));
    if !sound {
        return Some("the header of the write-ahead log does not match its checksum".into());
    }
    let frames = log[HEADER..].chunks_exact(FRAME + page);
    // Frames of an earlier round of the log have other salts: beyond the end, not bad.
    let ours = |frame: &[u8]| frame[8..16] == header[16..24];
    let commits = |frame: &[u8]| word(frame, 4) != 0;
    let mut first_bad = None;
    let mut commit_behind = false;
    for (number, frame) in frames.enumerate() {
        match first_bad {
            None => {
                let sum = checksum(&frame[..8], big_endian, running);
                let sum = checksum(&frame[FRAME..], big_endian, sum);
                if ours(frame) && sum == (word(frame, 16), word(frame, 20)) && word(frame, 0) != 0 {
                    running = sum;
                    continue;
                }
                first_bad = Some(number);
                commit_behind = commits(frame);
            }
            Some(bad) if ours(frame) => {
                if commit_behind {
                    return Some(format!(
                        "frame {bad} of the write-ahead log is damaged, and acknowledged commits follow it"
                    ));
                }
                commit_behind = commits(frame);
            }
            Some(_) => {}
        }
    }
    None
}
