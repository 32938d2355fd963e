//! Lines of a response that does not end.

use std::{io::ErrorKind, pin::Pin};

use futures::{AsyncBufRead, AsyncBufReadExt};

/// A line that is not complete yet is retained when reading is cancelled; one that never ends is dropped with the response.
pub struct Lines {
    response: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
}

impl Lines {
    pub fn new(response: impl AsyncBufRead + Send + 'static) -> Self {
        Self { response: Box::pin(response), line: Vec::new() }
    }

    /// The next line, or nothing at the end of the response.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, std::io::Error> {
        if self.line.ends_with(b"\n") {
            self.line.clear();
        }
        match self.response.read_until(b'\n', &mut self.line).await {
            Ok(_) if self.line.ends_with(b"\n") => Ok(Some(&self.line)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use futures::{FutureExt, io::BufReader};

    use super::*;

    /// Returns some bytes, then nothing, then the rest.
    struct Halting(Vec<Option<&'static [u8]>>);

    impl futures::AsyncRead for Halting {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut [u8]) -> Poll<std::io::Result<usize>> {
            match self.0.pop() {
                Some(Some(bytes)) => {
                    into[..bytes.len()].copy_from_slice(bytes);
                    Poll::Ready(Ok(bytes.len()))
                }
                Some(None) => Poll::Pending,
                None => Poll::Ready(Ok(0)),
            }
        }
    }

    #[test]
    fn a_partial_line_is_retained_when_reading_is_cancelled() {
        let mut lines = Lines::new(BufReader::new(Halting(vec![Some(b"e\nlast"), None, Some(b"one\nmor")])));
        let mut next = || lines.next().now_or_never().map(|line| line.unwrap().map(<[u8]>::to_vec));
        assert_eq!(next(), Some(Some(b"one\n".to_vec())));
        assert_eq!(next(), None, "cancelled while waiting");
        assert_eq!(next(), Some(Some(b"more\n".to_vec())));
        assert_eq!(next(), Some(None), "a line without end was cut off");
    }
}
