//! Checkpoint of watched objects of one kind, an append-only file, for a start while no server answers.
//!
//! The file is a journal: a line for each object that came or went, so that a change costs what it changes. A complete
//! account replaces it, and so does one of our own when most of its lines no longer count. A line that
//! was cut short by a power cut is not read. The first line says the format.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use mainstay_files::{AtomicFile, Durability, Format, PRIVATE_FILE, create_private_dir};
use mainstay_network::catalogue::Key;
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::follow::{WatchedKind, key};

pub const FORMAT: Format = Format::new("the checkpoint of watched objects", 1);

/// The journal may be so much longer than what counts.
const SLACK: usize = 1_000;

#[derive(Serialize, Deserialize)]
struct Line<K> {
    namespace: String,
    name: String,
    /// Nothing if it is gone.
    object: Option<K>,
}

enum Order {
    Begin,
    Line(Vec<u8>),
    Complete,
}

pub struct WatchCheckpoint<K> {
    path: PathBuf,
    orders: mpsc::Sender<Order>,
    kind: PhantomData<fn(K)>,
}

impl<K: WatchedKind> WatchCheckpoint<K> {
    /// Files are written by a thread of their own, which ends with this.
    pub fn open(path: PathBuf) -> Self {
        let (orders, received) = mpsc::channel();
        let mut journal = Journal::new(path.clone());
        let spawned = thread::Builder::new().name("checkpoint".into()).spawn(move || journal.write(&received));
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot open a checkpoint; a start without the API will not know these objects");
        }
        Self { path, orders, kind: PhantomData }
    }

    /// A complete account begins.
    pub fn begin(&mut self) {
        let _ = self.orders.send(Order::Begin);
    }

    /// Everything inserted since `begin` is all there is.
    pub fn complete(&mut self) {
        let _ = self.orders.send(Order::Complete);
    }

    pub fn insert(&mut self, object: &K) {
        self.line(&key(object), Some(object));
    }

    pub fn remove(&mut self, key: &Key) {
        self.line(key, None);
    }

    fn line(&self, key: &Key, object: Option<&K>) {
        let line = Line { namespace: key.namespace.to_string(), name: key.name.to_string(), object };
        if let Ok(mut text) = serde_json::to_vec(&line) {
            text.push(b'\n');
            let _ = self.orders.send(Order::Line(text));
        }
    }

    /// What an earlier process kept; nothing if there was none.
    pub fn read(&self) -> Option<Vec<K>> {
        let file = File::open(&self.path).ok()?;
        let mut known = BTreeMap::new();
        let mut first = true;
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            if std::mem::take(&mut first)
                && let Err(newer) = FORMAT.check(line.as_bytes())
            {
                tracing::warn!(file = %self.path.display(), error = %newer, "a checkpoint is not read");
                return None;
            }
            match serde_json::from_str::<Line<K>>(&line) {
                Ok(Line { namespace, name, object: Some(object) }) => drop(known.insert((namespace, name), object)),
                Ok(Line { namespace, name, object: None }) => drop(known.remove(&(namespace, name))),
                Err(_) => {}
            }
        }
        Some(known.into_values().collect())
    }
}

struct Journal {
    path: PathBuf,
    /// The account being written, in a file beside the journal.
    next: Option<BufWriter<AtomicFile>>,
    file: Option<BufWriter<File>>,
    lines: usize,
    /// How many lines the journal had when it was last replaced.
    base: usize,
}

impl Journal {
    fn new(path: PathBuf) -> Self {
        Self { path, next: None, file: None, lines: 0, base: 0 }
    }

    fn write(&mut self, orders: &mpsc::Receiver<Order>) {
        let mut failing = false;
        while let Ok(order) = orders.recv() {
            let mut result = self.obey(order);
            while let Ok(order) = orders.try_recv() {
                result = result.and_then(|()| self.obey(order));
            }
            let result = result.and_then(|()| self.flush());
            if let (Err(error), false) = (&result, failing) {
                tracing::warn!(%error, file = %self.path.display(), "cannot write a checkpoint; a start without the API will not know these objects");
            }
            failing = result.is_err();
        }
    }

    fn obey(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Begin => {
                self.next = None; // dropped first: both have the same temporary name
                self.next = Some(create(&self.path)?);
                self.lines = 0;
                Ok(())
            }
            Order::Line(text) => {
                self.lines += 1;
                match (&mut self.next, &mut self.file) {
                    (Some(next), _) => next.write_all(&text),
                    (None, Some(file)) => file.write_all(&text),
                    (None, None) => Ok(()),
                }
            }
            Order::Complete => self.replace(),
        }
    }

    fn replace(&mut self) -> io::Result<()> {
        let Some(next) = self.next.take() else { return Ok(()) };
        let next = next.into_inner().map_err(io::IntoInnerError::into_error)?;
        // An empty file under the name would say that there is nothing.
        let file = next.commit(Durability::Durable)?;
        (self.file, self.base) = (Some(BufWriter::new(file)), self.lines);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(next) = &mut self.next {
            next.flush()?;
        }
        if let Some(file) = &mut self.file {
            file.flush()?;
        }
        if self.next.is_none() && self.lines > 2 * self.base + SLACK {
            self.shorten()?;
        }
        Ok(())
    }

    /// Leaves out the lines that later ones made void.
    fn shorten(&mut self) -> io::Result<()> {
        let last = last_lines(&self.path)?;
        let mut next = create(&self.path)?;
        self.lines = 0;
        for (number, line) in BufReader::new(File::open(&self.path)?).lines().enumerate() {
            if last.contains(&number) {
                writeln!(next, "{}", line?)?;
                self.lines += 1;
            }
        }
        self.next = Some(next);
        self.replace()
    }
}

/// The lines that count.
fn last_lines(path: &Path) -> io::Result<HashSet<usize>> {
    let mut last: HashMap<(String, String), usize> = HashMap::new();
    for (number, line) in BufReader::new(File::open(path)?).lines().enumerate() {
        match serde_json::from_str::<Line<IgnoredAny>>(&line?) {
            Ok(Line { namespace, name, object: Some(_) }) => drop(last.insert((namespace, name), number)),
            Ok(Line { namespace, name, object: None }) => drop(last.remove(&(namespace, name))),
            Err(_) => {}
        }
    }
    Ok(last.into_values().collect())
}

fn create(path: &Path) -> io::Result<BufWriter<AtomicFile>> {
    if let Some(directory) = path.parent() {
        create_private_dir(directory)?;
    }
    let mut file = BufWriter::new(AtomicFile::create(path, PRIVATE_FILE)?);
    file.write_all(FORMAT.encode_line().as_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::services::wire::Node;

    fn node(name: &str, address: &str) -> Node {
        let addresses = json!([{ "type": "InternalIP", "address": address }]);
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "addresses": addresses } })).unwrap()
    }

    /// Everything ordered is written when this returns.
    fn obeyed(path: &Path, orders: impl FnOnce(&mut WatchCheckpoint<Node>)) {
        let (sender, received) = mpsc::channel();
        let mut retained = WatchCheckpoint { path: path.to_owned(), orders: sender, kind: PhantomData };
        orders(&mut retained);
        drop(retained);
        Journal::new(path.to_owned()).write(&received);
    }

    fn read(path: &Path) -> Vec<(String, String)> {
        let (orders, _) = mpsc::channel();
        let retained = WatchCheckpoint::<Node> { path: path.to_owned(), orders, kind: PhantomData };
        let objects = retained.read().unwrap_or_default();
        objects.iter().map(|n| (n.metadata.name.clone().unwrap(), n.address().unwrap().to_string())).collect()
    }

    #[test]
    fn what_came_and_did_not_go_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/nodes");
        obeyed(&path, |retained| {
            retained.begin();
            retained.insert(&node("a", "10.0.0.1"));
            retained.insert(&node("b", "10.0.0.2"));
            retained.complete();
            retained.insert(&node("a", "10.0.0.3"));
            retained.remove(&Key::new("", "b"));
        });
        assert_eq!(read(&path), [("a".to_owned(), "10.0.0.3".to_owned())]);
    }

    #[test]
    fn a_checkpoint_of_format_1_is_read_and_a_newer_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nodes");
        obeyed(&path, |retained| {
            retained.begin();
            retained.insert(&node("a", "10.0.0.1"));
            retained.complete();
            retained.remove(&Key::new("", "b"));
        });
        let written = std::fs::read(&path).unwrap();
        let name = "format-1/watch-checkpoint.jsonl";
        let fixture = mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), name, &written);
        std::fs::write(&path, &fixture).unwrap();
        assert_eq!(read(&path), [("a".to_owned(), "10.0.0.1".to_owned())]);
        let newer = String::from_utf8(fixture).unwrap().replacen("\"format\":1", "\"format\":2", 1);
        std::fs::write(&path, newer).unwrap();
        assert_eq!(read(&path), []);
    }

    #[test]
    fn an_account_that_was_never_completed_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nodes");
        obeyed(&path, |retained| {
            retained.begin();
            retained.insert(&node("a", "10.0.0.1"));
            retained.complete();
            retained.begin();
            retained.insert(&node("b", "10.0.0.2"));
        });
        assert_eq!(read(&path), [("a".to_owned(), "10.0.0.1".to_owned())]);
    }

    #[test]
    fn a_line_cut_short_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nodes");
        obeyed(&path, |retained| {
            retained.begin();
            retained.insert(&node("a", "10.0.0.1"));
            retained.complete();
        });
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(br#"{"namespace":"","name":"a","obj"#).unwrap();
        assert_eq!(read(&path), [("a".to_owned(), "10.0.0.1".to_owned())]);
    }

    #[test]
    fn a_journal_of_old_lines_is_shortened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nodes");
        obeyed(&path, |retained| {
            retained.begin();
            retained.insert(&node("a", "10.0.0.1"));
            retained.complete();
            for number in 0..=2 * SLACK {
                retained.insert(&node("b", &format!("10.1.{}.{}", number / 256, number % 256)));
            }
            retained.remove(&Key::new("", "a"));
        });
        assert_eq!(read(&path), [("b".to_owned(), "10.1.7.208".to_owned())]);
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert_eq!(lines, 2, "its format, and the one that counts");
    }
}
