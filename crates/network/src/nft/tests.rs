//! Golden files: every byte that goes to the kernel, decoded to one attribute per line.
//!
//! To accept a change, copy the text that the failed assertion names over the golden file, and read the difference.

use std::fmt::Write;

use super::uapi::NLA_F_NESTED;

/// One line per netlink message, one indented line per attribute. Attributes are numbered as the kernel's headers do.
fn decode(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    let all = bytes;
    while let Some(header) = bytes.first_chunk::<20>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let resource = u16::from_be_bytes([header[18], header[19]]);
        let (kind, flags, family) = (word(4), word(6), header[16]);
        writeln!(text, "type {}.{} flags {flags:#x} family {family} resource {resource}", kind >> 8, kind & 0xff)
            .unwrap();
        attributes(&bytes[20..length], 1, &mut text);
        bytes = &bytes[length.next_multiple_of(4)..];
    }
    assert_eq!(bytes, b"", "no whole message");
    writeln!(text, "{} bytes, xxh3 {:016x}", all.len(), xxhash_rust::xxh3::xxh3_64(all)).unwrap();
    text
}

fn attributes(mut bytes: &[u8], depth: usize, text: &mut String) {
    while let Some(header) = bytes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        let (value, indent) = (&bytes[4..length], "  ".repeat(depth));
        if kind & NLA_F_NESTED != 0 {
            writeln!(text, "{indent}{}", kind & !NLA_F_NESTED).unwrap();
            attributes(value, depth + 1, text);
        } else {
            match std::str::from_utf8(value).ok().and_then(|value| value.strip_suffix('\0')) {
                Some(value) if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    writeln!(text, "{indent}{kind} {value:?}").unwrap();
                }
                _ => {
                    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                    writeln!(text, "{indent}{kind} {hex}").unwrap();
                }
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Compares batches with a golden file in `src/nft/tests/`.
pub fn assert_golden(name: &str, golden: &str, batches: &[(&str, Vec<u8>)]) {
    let text: String = batches.iter().map(|(title, bytes)| format!("# {title}\n{}\n", decode(bytes))).collect();
    if text != golden {
        let found = std::env::temp_dir().join(name);
        std::fs::write(&found, &text).unwrap();
        let at = text.lines().zip(golden.lines()).position(|(found, golden)| found != golden);
        panic!("{} differs from src/nft/tests/{name}, first at line {:?}", found.display(), at.map(|at| at + 1));
    }
}
