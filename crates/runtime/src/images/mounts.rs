//! What is mounted where, as the kernel says.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Mount points at or below `path`, in the order they were mounted.
pub fn at_or_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(points(&table).filter(|point| point.starts_with(path)).collect())
}

fn points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescape)
}

/// `\040` is a space.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if *first == b'\\'
            && let Some(octal) = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok())
            && let Ok(byte) = u8::from_str_radix(octal, 8)
        {
            path.push(byte);
            rest = &tail[3..];
        } else {
            path.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_spaces_are_read() {
        let table = b"36 35 98:0 / /mnt/a\\040b\\134c rw,noatime master:1 - ext3 /dev/root rw\n\
            37 35 98:0 / / rw - ext4 /dev/x rw\n";
        assert_eq!(points(table).collect::<Vec<_>>(), [Path::new("/mnt/a b\\c"), Path::new("/")]);
    }

    #[test]
    fn a_name_that_only_begins_alike_is_not_below() {
        assert!(at_or_below(Path::new("/pro")).unwrap().is_empty());
        assert!(at_or_below(Path::new("/proc")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
