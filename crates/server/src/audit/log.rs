//! The file that audit events are written to, by a thread of its own.
//!
//! The queue is bounded in events and in bytes, the file and its older parts in size, number and age. Whatever holds up the disk
//! holds up this thread alone: events that find no room are dropped and counted.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use jiff::Timestamp;
use mainstay_files::{append_private, create_private_dir};
use parking_lot::{Mutex, RwLock};
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::event::Event;

const QUEUE_EVENTS: usize = 10_000;
const QUEUE_BYTES: usize = 64 << 20;
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
    queue: RwLock<Option<SyncSender<Event>>>,
    queued_bytes: Arc<AtomicUsize>,
    writer: Mutex<Option<JoinHandle<()>>>,
    metrics: AuditMetrics,
    warned: Mutex<Option<Instant>>,
}

#[derive(Clone, Default)]
struct AuditMetrics {
    events: Counter,
    errors: Counter,
}

impl AuditLog {
    pub fn open(path: PathBuf, rotation: Rotation) -> io::Result<Self> {
        let metrics = AuditMetrics::default();
        let (queue, events) = sync_channel(QUEUE_EVENTS);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let mut file = RotatedFile::open(path, rotation)?;
        let (bytes, counted) = (queued_bytes.clone(), metrics.clone());
        let run = move || write_all(&events, &mut file, &bytes, &counted);
        let writer = std::thread::Builder::new().name("audit".into()).spawn(run)?;
        let (queue, writer) = (RwLock::new(Some(queue)), Mutex::new(Some(writer)));
        Ok(Self { queue, queued_bytes, writer, metrics, warned: Mutex::new(None) })
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
        let queue = self.queue.read();
        let Some(queue) = &*queue else { return }; // the server stops
        let weight = event.weight();
        let has_room = self.queued_bytes.fetch_add(weight, Relaxed) + weight <= QUEUE_BYTES;
        if has_room && queue.try_send(event).is_ok() {
            self.metrics.events.inc();
            return;
        }
        self.queued_bytes.fetch_sub(weight, Relaxed);
        self.metrics.errors.inc();
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!("audit events are lost: they come faster than the log can be written");
        }
    }

    pub fn close(&self) {
        self.queue.write().take();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

fn write_all(events: &Receiver<Event>, file: &mut RotatedFile, queued_bytes: &AtomicUsize, metrics: &AuditMetrics) {
    let mut failed = None::<Instant>;
    let mut check = |written: io::Result<()>, path: &Path| {
        let Err(error) = written else { return };
        metrics.errors.inc();
        if failed.is_none_or(|at| at.elapsed() > WARN_EVERY) {
            failed = Some(Instant::now());
            tracing::warn!(path = %path.display(), %error, "audit events are lost: the log cannot be written");
        }
    };
    while let Ok(first) = events.recv() {
        std::thread::sleep(GATHER);
        for event in std::iter::once(first).chain(events.try_iter()) {
            queued_bytes.fetch_sub(event.weight(), Relaxed);
            check(file.write(&event.to_line()), &file.path);
        }
        check(file.flush(), &file.path);
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
        Ok(Self { path, rotation, file: BufWriter::new(file), size })
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
        let old = std::mem::replace(&mut self.file, BufWriter::new(fresh));
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
