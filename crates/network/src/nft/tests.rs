//! Golden files: every byte that goes to the kernel, decoded to one attribute per line.
//!
//! To accept a change, copy the text that the failed assertion names over the golden file, and read the difference.

use std::fmt::Write;

use super::uapi::NLA_F_NESTED;

/// One line per netlink message, one indented line per attribute. Attributes are numbered as the kernel's headers do.
/// The last line is a digest of all bytes, padding included.
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
        for (kind, value) in attributes(&bytes[20..length]) {
            match kind & !NLA_F_NESTED {
                list @ 3..=4 if kind & NLA_F_NESTED != 0 => {
                    writeln!(text, "  {list}").unwrap();
                    attributes(value).for_each(|(kind, value)| writeln!(text, "    {}", line(kind, value)).unwrap());
                }
                _ => writeln!(text, "  {}", line(kind, value)).unwrap(),
            }
        }
        bytes = &bytes[length.next_multiple_of(4)..];
    }
    assert_eq!(bytes, b"", "no whole message");
    writeln!(text, "{} bytes, xxh3 {:016x}", all.len(), xxhash_rust::xxh3::xxh3_64(all)).unwrap();
    text
}

/// The attributes with their flags.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let attribute = (u16::from_ne_bytes([header[2], header[3]]), &bytes[4..length]);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

fn line(kind: u16, value: &[u8]) -> String {
    if kind & NLA_F_NESTED != 0 {
        let nested: Vec<String> = attributes(value).map(|(kind, value)| line(kind, value)).collect();
        return format!("{} {{ {} }}", kind & !NLA_F_NESTED, nested.join(", "));
    }
    match std::str::from_utf8(value).ok().and_then(|value| value.strip_suffix('\0')) {
        Some(value) if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) => {
            format!("{kind} {value:?}")
        }
        _ => format!("{kind} {}", value.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
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
