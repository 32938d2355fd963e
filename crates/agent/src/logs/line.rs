//! One line of a log file, as CRI has them: `2016-10-06T00:17:09.669794202Z stdout F text`.
//!
//! A line of the container that is too long for one is several lines here, all but the last marked `P`.

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// As written.
    pub time: &'a str,
    pub stream: Stream,
    /// The container's line goes on in the next one.
    pub partial: bool,
    pub text: &'a [u8],
}

/// The longest that what comes before the text can be.
pub const HEAD: usize = 64;

impl<'a> Line<'a> {
    /// `None` for what is no such line. Without the newline at its end.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = match parts.next()? {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return None,
        };
        let tags = parts.next()?;
        let partial = match tags.split(|byte| *byte == b':').next()? {
            b"F" => false,
            b"P" => true,
            _ => return None,
        };
        Some(Self { time, stream, partial, text: parts.next().unwrap_or_default() })
    }

    pub fn timestamp(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_time_a_stream_a_tag_and_a_text() {
        let line = Line::parse(b"2016-10-06T00:17:09.669794202Z stderr P hello  world").unwrap();
        assert_eq!((line.stream, line.partial, line.text), (Stream::Stderr, true, &b"hello  world"[..]));
        assert_eq!(line.timestamp().unwrap().subsec_nanosecond(), 669_794_202);
        let empty = Line::parse(b"2016-10-06T00:17:09+02:00 stdout F ").unwrap();
        assert_eq!((empty.text, empty.partial), (&b""[..], false));
        assert!(Line::parse(b"hello world").is_none());
        assert!(Line::parse(b"").is_none());
    }
}
