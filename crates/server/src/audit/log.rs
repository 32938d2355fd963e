//! The file that audit events are written to, by a thread of its own.
//!
//! The queue is bounded in events and in bytes, the file and its older parts in size, number and age. Whatever holds up the disk
//! holds up this thread alone: events that find no room are dropped and counted. The thread takes all that is queued at once, so that whoever
//! queues an event wakes it only when the queue was empty.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use jiff::Timestamp;
use mainstay_files::{append_private, create_private_dir};
use parking_lot::{Condvar, Mutex};
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::event::Event;

const QUEUE_EVENTS: usize = 10_000;
const QUEUE_BYTES: usize = 64 << 20;
/// After this many written events those who queue some have their room.
const EVENTS_BETWEEN_LOCKS: usize = 64;
/// The most that goes to the file in one call.
const WRITE_BYTES: usize = 64 << 10;
/// Room that is kept between times of business.
const MAX_IDLE_EVENTS: usize = 512;
const MAX_IDLE_LINE: usize = 16 << 10;
/// How long events wait for others to be written with: the writer wakes once for all of them.
const GATHER: Duration = Duration::from_millis(10);
/// A warning about lost events is worth repeating after this.
const WARN_EVERY: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// When a file is set aside, and how many of those are left.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    pub max_bytes: u64,
    /// Files that were set aside; zero for any number.
    pub max_backups: usize,
    /// Days after which they are removed; zero for never.
    pub max_age_days: u64,
}

pub struct AuditLog {
    queue: Arc<EventQueue>,
    writer: Mutex<Option<JoinHandle<()>>>,
    metrics: AuditMetrics,
    warned: Mutex<Option<Instant>>,
}

/// Events on their way to the thread that writes them.
#[derive(Default)]
struct EventQueue {
    state: Mutex<QueueState>,
    /// Something is queued, or nothing will be any more.
    wake: Condvar,
}

#[derive(Default)]
struct QueueState {
    events: Vec<Event>,
    /// Memory of the events that are queued or being written.
    bytes: usize,
    /// How many are being written.
    taken: usize,
    is_closed: bool,
}

/// What became of an event.
enum Pushed {
    Queued,
    NoRoom,
    /// The server stops.
    Closed,
}

impl EventQueue {
    fn push(&self, event: Event) -> Pushed {
        let weight = event.weight();
        let mut state = self.state.lock();
        if state.is_closed {
            return Pushed::Closed;
        }
        if state.bytes + weight > QUEUE_BYTES || state.events.len() + state.taken >= QUEUE_EVENTS {
            return Pushed::NoRoom;
        }
        state.bytes += weight;
        state.events.push(event);
        let is_first = state.events.len() == 1;
        drop(state);
        if is_first {
            self.wake.notify_one();
        }
        Pushed::Queued
    }

    /// Waits until something is queued and swaps it for `emptied`; false once the queue is closed and empty.
    fn take(&self, emptied: &mut Vec<Event>) -> bool {
        let mut state = self.state.lock();
        while state.events.is_empty() {
            if state.is_closed {
                return false;
            }
            self.wake.wait(&mut state);
        }
        if !state.is_closed {
            drop(state);
            std::thread::sleep(GATHER);
            state = self.state.lock();
        }
        std::mem::swap(&mut state.events, emptied);
        state.taken = emptied.len();
        true
    }

    /// Makes room: so many events, of this weight, were written.
    fn finish(&self, events: usize, bytes: usize) {
        let mut state = self.state.lock();
        state.taken -= events;
        state.bytes -= bytes;
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake.notify_one();
    }
}

#[derive(Clone, Default)]
struct AuditMetrics {
    events: Counter,
    errors: Counter,
}

impl AuditLog {
    pub fn open(path: PathBuf, rotation: Rotation) -> io::Result<Self> {
        let metrics = AuditMetrics::default();
        let queue = Arc::new(EventQueue::default());
        let mut file = RotatedFile::open(path, rotation)?;
        let (events, counted) = (queue.clone(), metrics.clone());
        let run = move || write_all(&events, &mut file, &counted);
        let writer = std::thread::Builder::new().name("audit".into()).spawn(run)?;
        Ok(Self { queue, writer: Mutex::new(Some(writer)), metrics, warned: Mutex::new(None) })
    }

    pub fn metrics(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register("apiserver_audit_event", "Audit events taken for the log", self.metrics.events.clone());
        let help = "Audit events lost because the queue was full or the file could not be written";
        registry.register("apiserver_audit_error", help, self.metrics.errors.clone());
        registry
    }

    /// Queues an event if there is room. Never waits.
    pub fn send(&self, event: Event) {
        match self.queue.push(event) {
            Pushed::Queued => _ = self.metrics.events.inc(),
            Pushed::NoRoom => self.count_loss(),
            Pushed::Closed => {}
        }
    }

    fn count_loss(&self) {
        self.metrics.errors.inc();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!("audit events are lost: they come faster than the log can be written");
        }
    }

    pub fn close(&self) {
        self.queue.close();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

fn write_all(queue: &EventQueue, file: &mut RotatedFile, metrics: &AuditMetrics) {
    let mut failed = None::<Instant>;
    let mut check = |written: io::Result<()>, path: &Path| {
        let Err(error) = written else { return };
        metrics.errors.inc();
        if failed.is_none_or(|at| at.elapsed() > WARN_EVERY) {
            failed = Some(Instant::now());
            tracing::warn!(path = %path.display(), %error, "audit events are lost: the log cannot be written");
        }
    };
    let (mut events, mut line) = (Vec::new(), Vec::new());
    while queue.take(&mut events) {
        let (mut written, mut bytes) = (0, 0);
        for event in events.drain(..) {
            (written, bytes) = (written + 1, bytes + event.weight());
            line.clear();
            event.write_line(&mut line);
            check(file.write(&line), &file.path);
            drop(event);
            if written == EVENTS_BETWEEN_LOCKS {
                queue.finish(std::mem::take(&mut written), std::mem::take(&mut bytes));
            }
        }
        queue.finish(written, bytes);
        check(file.flush(), &file.path);
        line.shrink_to(MAX_IDLE_LINE);
        events.shrink_to(MAX_IDLE_EVENTS);
    }
}

/// A file that is set aside when it is full.
struct RotatedFile {
    path: PathBuf,
    rotation: Rotation,
    file: BufWriter<File>,
    size: u64,
}

impl RotatedFile {
    fn open(path: PathBuf, rotation: Rotation) -> io::Result<Self> {
        if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
            create_private_dir(directory)?;
        }
        let file = append_private(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, rotation, file: BufWriter::with_capacity(WRITE_BYTES, file), size })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + line.len() as u64 > self.rotation.max_bytes {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.size += line.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn rotate(&mut self) -> io::Result<()> {
        // What cannot be written any more must not keep the next file from being begun.
        let _ = self.file.flush();
        fs::rename(&self.path, free_name(&self.path, Timestamp::now()))?;
        let fresh = append_private(&self.path)?;
        let old = std::mem::replace(&mut self.file, BufWriter::with_capacity(WRITE_BYTES, fresh));
        drop(old.into_parts()); // without a second try at writing
        self.size = 0;
        remove_old(&self.path, self.rotation)
    }
}

/// `audit-<time>.log` of `audit.log`, as upstream names them.
fn with_suffix(path: &Path, time: &str) -> PathBuf {
    let (stem, extension) = name_parts(path);
    path.with_file_name(format!("{stem}-{time}{extension}"))
}

/// A name for now, or for the first millisecond after it that has none yet.
fn free_name(path: &Path, now: Timestamp) -> PathBuf {
    let times = (0..1000).filter_map(|later| now.checked_add(jiff::SignedDuration::from_millis(later)).ok());
    let names = times.map(|time| with_suffix(path, &time.strftime("%Y-%m-%dT%H-%M-%S%.3f").to_string()));
    names.into_iter().find(|name| !name.exists()).unwrap_or_else(|| with_suffix(path, "overwritten"))
}

fn name_parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    (text(path.file_stem()), extension)
}

fn remove_old(path: &Path, rotation: Rotation) -> io::Result<()> {
    let (stem, extension) = name_parts(path);
    let prefix = format!("{stem}-");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut backups = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(&extension)).is_some_and(|time| {
            time.len() == "2020-01-01T00-00-00.000".len() && time.starts_with(|c: char| c.is_ascii_digit())
        });
        if is_ours {
            backups.push((name, entry.path(), entry.metadata()?.modified()?));
        }
    }
    backups.sort_by(|(a, ..), (b, ..)| b.cmp(a)); // newest first: the name is the time
    let oldest = DAY.checked_mul(u32::try_from(rotation.max_age_days).unwrap_or(u32::MAX)).unwrap_or(Duration::MAX);
    for (index, (_, path, modified)) in backups.iter().enumerate() {
        let too_many = rotation.max_backups > 0 && index >= rotation.max_backups;
        let age = SystemTime::now().duration_since(*modified).unwrap_or_default();
        if too_many || (rotation.max_age_days > 0 && age > oldest) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
