//! Delivering a log: from where the reader asks, through every file it is in, to the end or for as long as the
//! container runs.

use std::{
    future::Future,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt, SeekFrom},
    sync::mpsc,
};

use super::{Options, line::Line, path, tail};

/// How often a file that is followed is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Output is collected up to this much before it is sent.
const PIECE: usize = 32 * 1024;
/// No line of a log file is this long; what is, is no log.
const LONGEST: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Nobody listens any more, or enough was sent.
    #[error("no more is wanted")]
    Enough,
}

/// Whether the container whose log is followed still writes. Asked whenever everything has been read; should be cheap.
pub trait Writing: Send {
    fn writing(&mut self) -> impl Future<Output = bool> + Send;
}

/// Sends the log at `log` and returns when all that is wanted was sent.
pub async fn read(
    log: &Path,
    options: &Options,
    mut container: impl Writing,
    to: mpsc::Sender<Bytes>,
) -> Result<(), ReadError> {
    let mut printer = Printer::new(options, to);
    match deliver(log, options, &mut container, &mut printer).await {
        Ok(()) => match printer.send().await {
            Ok(()) | Err(ReadError::Enough) => Ok(()),
            Err(error) => Err(error),
        },
        Err(ReadError::Enough) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn deliver(
    log: &Path,
    options: &Options,
    container: &mut impl Writing,
    printer: &mut Printer,
) -> Result<(), ReadError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ReadError::Io { path, source }
    };
    let (files, begin, mut offset) = begin(log, options).await.map_err(at(log))?;
    let mut files = files.into_iter().skip(begin);
    let mut current: Option<Source> = None;
    for path in files.by_ref() {
        // Set aside since it was listed: what was in it comes first.
        if path == log
            && let Some(last) = &mut current
        {
            while let Some(next) = last.successor(log).await.map_err(at(log))?.filter(|next| next != log) {
                let Some(source) = Source::open(next.clone(), 0).await.map_err(at(&next))? else { break };
                *last = source;
                last.drain(printer).await?;
            }
        }
        if let Some(source) = Source::open(path.clone(), offset).await.map_err(at(&path))? {
            let source = current.insert(source);
            source.drain(printer).await?;
        }
        offset = 0;
    }
    if !options.follow {
        return Ok(());
    }
    let mut last_look = false;
    loop {
        printer.send().await?;
        match &mut current {
            Some(source) => {
                source.drain(printer).await?;
                // Renamed: what was written before the new one began is still in it.
                if let Some(next) = source.successor(log).await.map_err(at(log))? {
                    source.drain(printer).await?;
                    current = Source::open(next.clone(), 0).await.map_err(at(&next))?;
                    continue;
                }
            }
            None => current = Source::open(log.to_owned(), 0).await.map_err(at(log))?,
        }
        if last_look {
            return Ok(());
        }
        last_look = !container.writing().await;
        if !last_look {
            printer.send().await?;
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = printer.to.closed() => return Err(ReadError::Enough),
            }
        }
    }
}

/// The files of the log, which of them to begin with, and where in it.
async fn begin(log: &Path, options: &Options) -> io::Result<(Vec<PathBuf>, usize, u64)> {
    let (log, tail, since) = (log.to_owned(), options.tail_lines, options.since);
    let look = move || {
        let files = path::files(&log)?;
        let (mut index, mut offset) = match tail {
            Some(lines) => tail::start(&files, lines)?,
            None => (0, 0),
        };
        // What was last written before `since` holds nothing after it.
        let since = since.map(SystemTime::from);
        while let (Some(since), Some(file)) = (since, files.get(index).filter(|_| index + 1 < files.len()))
            && std::fs::metadata(file).and_then(|m| m.modified()).is_ok_and(|modified| modified < since)
        {
            (index, offset) = (index + 1, 0);
        }
        Ok((files, index, offset))
    };
    tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?
}

/// A file being read.
struct Source {
    path: PathBuf,
    file: File,
    inode: u64,
    buffer: BytesMut,
}

impl Source {
    async fn open(path: PathBuf, offset: u64) -> io::Result<Option<Self>> {
        let mut file = match File::open(&path).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if offset > 0 {
            file.seek(SeekFrom::Start(offset)).await?;
        }
        let inode = file.metadata().await?.ino();
        Ok(Some(Self { path, file, inode, buffer: BytesMut::new() }))
    }

    /// Prints every whole line up to the end of the file as it is now.
    async fn drain(&mut self, printer: &mut Printer) -> Result<(), ReadError> {
        loop {
            self.buffer.reserve(PIECE);
            let read = self.file.read_buf(&mut self.buffer).await;
            let read = read.map_err(|source| ReadError::Io { path: self.path.clone(), source })?;
            if read == 0 {
                return Ok(());
            }
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                printer.line(&line[..end]).await?;
            }
            if self.buffer.len() > LONGEST {
                self.buffer.clear();
            }
        }
    }

    /// The file that was begun after this one, if there is one.
    async fn successor(&self, log: &Path) -> io::Result<Option<PathBuf>> {
        let inode = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.ino()).ok();
        if inode(log).is_none_or(|current| current == self.inode) {
            return Ok(None);
        }
        let files = path::files(log)?;
        let ours = files.iter().position(|file| inode(file) == Some(self.inode));
        Ok(files.into_iter().nth(ours.map_or(0, |ours| ours + 1)))
    }
}

/// Turns lines of the file into what the reader wants to see.
struct Printer {
    options: Options,
    to: mpsc::Sender<Bytes>,
    out: BytesMut,
    left: Option<u64>,
    /// The next line does not continue the last one.
    fresh: bool,
}

impl Printer {
    fn new(options: &Options, to: mpsc::Sender<Bytes>) -> Self {
        Self { options: options.clone(), to, out: BytesMut::new(), left: options.limit_bytes, fresh: true }
    }

    async fn line(&mut self, line: &[u8]) -> Result<(), ReadError> {
        let Some(line) = Line::parse(line) else { return Ok(()) };
        if self.options.stream.is_some_and(|wanted| wanted != line.stream) {
            return Ok(());
        }
        if let (Some(since), Some(at)) = (self.options.since, line.timestamp())
            && at < since
        {
            return Ok(());
        }
        if self.options.timestamps && self.fresh {
            self.out.extend_from_slice(line.time.as_bytes());
            self.out.extend_from_slice(b" ");
        }
        self.out.extend_from_slice(line.text);
        self.fresh = !line.partial;
        if self.fresh {
            self.out.extend_from_slice(b"\n");
        }
        let full = self.left.is_some_and(|left| self.out.len() as u64 >= left);
        if full || self.out.len() >= PIECE { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), ReadError> {
        let mut out = self.out.split();
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= out.len() as u64;
        }
        if !out.is_empty() {
            self.to.send(out.freeze()).await.map_err(|_| ReadError::Enough)?;
        }
        if self.left == Some(0) { Err(ReadError::Enough) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "read/tests.rs"]
mod tests;
