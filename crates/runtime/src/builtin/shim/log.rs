//! Writes a container's log in the CRI format and rotates it: at most so many files of at most so many bytes.
//!
//! Logging must not harm what is logged: a disk that is full loses output, which is counted and reported in
//! the log once there is room, but stops neither the container nor the shim.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use mainstay_files::{append_private, create_private_dir};

use crate::spec::LogLimit;

/// A longer line is written in parts.
const MAX_LINE: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

pub struct Log {
    path: PathBuf,
    limit: LogLimit,
    file: Option<File>,
    size: u64,
    /// Of each stream: the beginning of a line whose end has not come.
    begun: [Vec<u8>; 2],
    /// The last line in the file is not whole.
    torn: bool,
    lost: u64,
    lost_said: u64,
}

impl Log {
    pub fn new(path: PathBuf, limit: LogLimit) -> Self {
        Self { path, limit, file: None, size: 0, begun: Default::default(), torn: false, lost: 0, lost_said: 0 }
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn reopen(&mut self) {
        self.file = None;
    }

    /// Output as it came from the container.
    pub fn write(&mut self, stream: Stream, mut bytes: &[u8], now: Timestamp) {
        let mut lines = Lines::new(stream, now, bytes.len());
        let mut begun = std::mem::take(&mut self.begun[stream as usize]);
        while !bytes.is_empty() {
            let room = MAX_LINE - begun.len();
            let end = bytes.iter().take(room + 1).position(|byte| *byte == b'\n');
            match end {
                Some(end) => {
                    lines.push(&begun, &bytes[..end], 'F');
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() >= room => {
                    lines.push(&begun, &bytes[..room], 'P');
                    bytes = &bytes[room..];
                }
                None => {
                    begun.extend_from_slice(bytes);
                    break;
                }
            }
            begun = Vec::new();
        }
        self.begun[stream as usize] = begun;
        self.append(&lines.text);
    }

    /// A stream has ended: what is left of it has no newline, which CRI marks as a part of a line.
    pub fn finish(&mut self, stream: Stream, now: Timestamp) {
        let begun = std::mem::take(&mut self.begun[stream as usize]);
        if !begun.is_empty() {
            let mut lines = Lines::new(stream, now, begun.len());
            lines.push(&begun, &[], 'P');
            self.append(&lines.text);
        }
    }

    fn append(&mut self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        if let Err(lost) = self.try_append(text) {
            self.lost += lost as u64;
        }
    }

    /// How many bytes were lost, if any.
    fn try_append(&mut self, text: &[u8]) -> Result<(), usize> {
        if self.file.is_none() {
            self.open().map_err(|_| text.len())?;
        }
        if self.limit.bytes > 0 && self.size > 0 && self.size + text.len() as u64 > self.limit.bytes {
            self.rotate().map_err(|_| text.len())?;
        }
        let file = self.file.as_mut().ok_or(text.len())?;
        if self.torn {
            file.write_all(b"\n").map_err(|_| text.len())?;
            self.torn = false;
            self.size += 1;
        }
        let mut rest = text;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(written) if written > 0 => {
                    self.size += written as u64;
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    self.torn = rest.len() < text.len() && !text[..text.len() - rest.len()].ends_with(b"\n");
                    return Err(rest.len());
                }
            }
        }
        if self.lost > self.lost_said {
            let line = format!(
                "{} stderr F [{} bytes of output were lost: the disk was full]\n",
                Timestamp::now(),
                self.lost - self.lost_said
            );
            if file.write_all(line.as_bytes()).is_ok() {
                self.size += line.len() as u64;
                self.lost_said = self.lost;
            }
        }
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        if let Some(parent) = self.path.parent().filter(|parent| !parent.is_dir()) {
            create_private_dir(parent)?;
        }
        let file = append_private(&self.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        if self.limit.files > 1 {
            let time = Timestamp::now().strftime("%Y%m%d-%H%M%S.%9f").to_string();
            fs::rename(&self.path, beside(&self.path, &time))?;
        } else {
            fs::remove_file(&self.path)?;
        }
        let old = set_aside(&self.path);
        let keep = self.limit.files.saturating_sub(1) as usize;
        for path in &old[..old.len().saturating_sub(keep)] {
            fs::remove_file(path)?;
        }
        self.open()
    }
}

fn beside(path: &Path, time: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(time);
    name.into()
}

/// Files set aside before, oldest first.
fn set_aside(path: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .and_then(|each| each.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with('.'))
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

struct Lines {
    head: String,
    text: Vec<u8>,
}

impl Lines {
    fn new(stream: Stream, now: Timestamp, about: usize) -> Self {
        Self { head: format!("{now:.9} {} ", stream.name()), text: Vec::with_capacity(about + about / 4 + 64) }
    }

    fn push(&mut self, begun: &[u8], rest: &[u8], tag: char) {
        self.text.extend_from_slice(self.head.as_bytes());
        self.text.extend_from_slice(&[tag as u8, b' ']);
        self.text.extend_from_slice(begun);
        self.text.extend_from_slice(rest);
        self.text.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Path, bytes: u64, files: u32) -> Log {
        Log::new(dir.join("0.log"), LogLimit { bytes, files })
    }

    fn lines(path: &Path) -> Vec<String> {
        fs::read_to_string(path).unwrap().lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn lines_are_whole_however_they_came() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path(), 0, 1);
        let now = Timestamp::UNIX_EPOCH;
        log.write(Stream::Stdout, b"one\ntw", now);
        log.write(Stream::Stderr, b"other\n", now);
        log.write(Stream::Stdout, b"o\n\nend", now);
        log.finish(Stream::Stdout, now);
        log.finish(Stream::Stderr, now);
        assert_eq!(
            lines(&dir.path().join("0.log")),
            ["stdout F one", "stderr F other", "stdout F two", "stdout F ", "stdout P end"]
        );
        let text = fs::read_to_string(dir.path().join("0.log")).unwrap();
        assert!(text.starts_with("1970-01-01T00:00:00.000000000Z stdout F one\n"), "{text}");
    }

    #[test]
    fn a_long_line_comes_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path(), 0, 1);
        let mut text = vec![b'x'; MAX_LINE + 5];
        text.push(b'\n');
        log.write(Stream::Stdout, &text[..10_000], Timestamp::UNIX_EPOCH);
        log.write(Stream::Stdout, &text[10_000..], Timestamp::UNIX_EPOCH);
        let lines = lines(&dir.path().join("0.log"));
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], format!("stdout P {}", "x".repeat(MAX_LINE)));
        assert_eq!(lines[1], "stdout F xxxxx");
    }

    #[test]
    fn a_line_of_just_the_limit_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path(), 0, 1);
        let mut text = vec![b'x'; MAX_LINE];
        text.push(b'\n');
        log.write(Stream::Stdout, &text, Timestamp::UNIX_EPOCH);
        assert_eq!(lines(&dir.path().join("0.log")), [format!("stdout F {}", "x".repeat(MAX_LINE))]);
    }

    #[test]
    fn old_files_are_set_aside_and_the_oldest_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path(), 200, 3);
        for n in 0..100 {
            log.write(Stream::Stdout, format!("line {n}\n").as_bytes(), Timestamp::UNIX_EPOCH);
        }
        let path = dir.path().join("0.log");
        assert_eq!(set_aside(&path).len(), 2);
        assert!(fs::metadata(&path).unwrap().len() <= 200);
        assert_eq!(lines(&path).last().unwrap(), "stdout F line 99");
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_reported_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(PathBuf::from("/dev/full"), LogLimit { bytes: 0, files: 1 });
        log.write(Stream::Stdout, b"gone\n", Timestamp::UNIX_EPOCH);
        assert!(log.lost() > 0);
        log.path = dir.path().join("0.log");
        log.reopen();
        log.write(Stream::Stdout, b"here\n", Timestamp::UNIX_EPOCH);
        let lines = lines(&log.path);
        assert_eq!(lines[0], "stdout F here");
        assert!(lines[1].contains("bytes of output were lost"), "{lines:?}");
    }
}
