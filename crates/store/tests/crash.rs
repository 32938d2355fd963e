//! Kills a process that writes, over and over, and looks at what it leaves behind.
//!
//! The test runs itself again as the victim: four writers in a loop of transactions over several keys, one writer of
//! volatile keys, and a line on stdout for each acknowledgement. History, log and batches are set small, so that
//! kills fall into compaction and checkpoints as well as into commits.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use mainstay_store::{
    Embedded, List, Op, Outcome, Revision, Store, Txn, WatchEvent,
    embedded::{Options, verify},
};

const ROUNDS: usize = 210;
const WRITERS: usize = 4;
const VICTIM: &str = "STORE_CRASH_VICTIM";

/// Transactions whose history is kept for sure: each has five changes at most.
const RETAINED: u64 = HISTORY as u64 / 5;
const HISTORY: usize = 300;

fn options() -> Options {
    Options { history_events: HISTORY, log_pages: 60, volatile: vec!["/volatile/".into()], ..Options::default() }
}

fn put(key: String, n: u64) -> Op {
    Op::Put { key: key.into(), value: format!("{n}{}", " ".repeat(n as usize % 900)).into_bytes().into() }
}

/// Transaction `n` of a writer: two keys that always agree, one of a ring, and a deletion at times.
fn transaction(writer: usize, n: u64) -> Txn {
    let mut ops = vec![put(format!("/w/{writer}/a"), n), put(format!("/w/{writer}/b"), n)];
    match n % 3 {
        0 => ops.push(Op::Delete { key: format!("/w/{writer}/ring/{}", n % 20).into() }),
        _ => ops.push(put(format!("/w/{writer}/ring/{}", n % 20), n)),
    }
    Txn { compares: vec![], ops }
}

async fn number(store: &Embedded, key: &str) -> u64 {
    let (entry, _) = store.get(key).await.expect("get");
    entry.map_or(0, |e| String::from_utf8_lossy(&e.value).trim().parse().expect("a number"))
}

/// One line per write, so that a kill cannot leave half of one.
fn print_line(line: String) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("the parent reads");
}

fn committed(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Committed(at) => at,
        Outcome::Conflict { .. } => panic!("nothing was compared"),
    }
}

fn be_the_victim(dir: &Path) -> ! {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = Arc::new(Embedded::open(dir, options()).expect("open"));
        let mut found = Vec::new();
        for writer in 0..WRITERS {
            found.push(number(&store, &format!("/w/{writer}/a")).await);
            print_line(format!("found {writer} {} {}", found[writer], store.revision().await.expect("revision")));
        }
        for (writer, n) in found.into_iter().enumerate() {
            let store = store.clone();
            tokio::spawn(async move {
                for n in n + 1.. {
                    let at = committed(store.commit(transaction(writer, n)).await.expect("commit"));
                    print_line(format!("wrote {writer} {n} {at}"));
                }
            });
        }
        for n in 0.. {
            let txn = Txn { compares: vec![], ops: vec![put("/volatile/x".into(), n)] };
            let at = committed(store.commit(txn).await.expect("commit"));
            print_line(format!("volatile 0 {n} {at}"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    unreachable!("the victim writes until it is killed");
}

/// What the victims have acknowledged so far.
#[derive(Default)]
struct Acknowledged {
    newest: u64,
    last: HashMap<usize, u64>,
    /// Revision of each writer's transactions.
    at: HashMap<(usize, u64), u64>,
    total: usize,
}

impl Acknowledged {
    fn record_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind @ ("found" | "wrote" | "volatile"), writer, n, at] = words[..] else { return };
        let (writer, n, at) = (writer.parse().expect("writer"), n.parse().expect("n"), at.parse().expect("revision"));
        match kind {
            "found" => {
                let last = self.last.get(&writer).copied().unwrap_or(0);
                assert!(n == last || n == last + 1, "writer {writer}: acknowledged {last}, found {n}");
                assert!(at >= self.newest, "revision {at} after {}", self.newest);
                self.last.insert(writer, n);
            }
            "wrote" => {
                self.last.insert(writer, n);
                self.at.insert((writer, n), at);
                self.total += 1;
            }
            _ => {}
        }
        self.newest = self.newest.max(at);
    }
}

fn start(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "acknowledged_writes_survive_kill_9", "--nocapture"])
        .env(VICTIM, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the victim")
}

/// Runs a victim for a while, kills it, and reads all its output.
fn round(dir: &Path, life: Duration, acknowledged: &mut Acknowledged) {
    let mut victim = start(dir);
    let stdout = BufReader::new(victim.stdout.take().expect("stdout"));
    let (lines, received) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in stdout.lines() {
            let _ = lines.send(line.expect("text"));
        }
    });
    // Life begins when it has opened the store.
    let begun = loop {
        let line = received.recv_timeout(Duration::from_secs(20)).expect("the victim opens the store");
        acknowledged.record_line(&line);
        if line.starts_with("found") {
            break Instant::now();
        }
    };
    while let Some(left) = life.checked_sub(begun.elapsed())
        && let Ok(line) = received.recv_timeout(left)
    {
        acknowledged.record_line(&line);
    }
    victim.kill().expect("SIGKILL");
    let status = victim.wait().expect("the victim's end");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it ran until it was killed");
    reader.join().expect("reader");
    received.try_iter().for_each(|line| acknowledged.record_line(&line));
}

/// Opens what the victim left and holds it against what it had acknowledged.
async fn examine(dir: &Path, acknowledged: &mut Acknowledged) {
    let store = Embedded::open(dir, options()).expect("open");
    let now = store.revision().await.expect("revision");
    assert!(now.0 >= acknowledged.newest, "revision {now} after {}", acknowledged.newest);
    acknowledged.newest = now.0;
    for writer in 0..WRITERS {
        let (a, b) = (number(&store, &format!("/w/{writer}/a")).await, number(&store, &format!("/w/{writer}/b")).await);
        assert_eq!(a, b, "writer {writer}: a torn transaction");
        let last = acknowledged.last.get(&writer).copied().unwrap_or(0);
        assert!(a == last || a == last + 1, "writer {writer}: acknowledged {last}, found {a}");
        acknowledged.last.insert(writer, a);
        for n in a.saturating_sub(19).max(1)..=a {
            let ring = number(&store, &format!("/w/{writer}/ring/{}", n % 20)).await;
            assert_eq!(ring, if n % 3 == 0 { 0 } else { n }, "writer {writer}: ring at {n}");
        }
    }
    // A watch resumes where a client that saw some writer's recent transaction would.
    for writer in 0..WRITERS {
        let last = acknowledged.last[&writer];
        let mut received =
            (last.saturating_sub(10)..=last).filter_map(|n| Some((n, *acknowledged.at.get(&(writer, n))?)));
        // One that hardly got a turn may have nothing as recent.
        let Some((from, after)) = received.find(|(_, at)| at + RETAINED >= now.0) else { continue };
        let prefix = format!("/w/{writer}/a");
        let mut watch = store.watch(&prefix, Revision(after)).await.expect("a retained revision");
        watch.request_progress();
        let mut expected = from;
        loop {
            match watch.next().await.expect("event") {
                WatchEvent::Changes(changes) => {
                    for change in changes {
                        expected += 1;
                        let value = &change.current.as_ref().expect("a value").value;
                        assert_eq!(String::from_utf8_lossy(value).trim(), expected.to_string(), "writer {writer}");
                        if let Some(at) = acknowledged.at.get(&(writer, expected)) {
                            assert_eq!(change.revision.0, *at, "writer {writer}: the revision it was told");
                        }
                    }
                }
                WatchEvent::Progress(at) => {
                    assert_eq!((at, expected), (now, last), "writer {writer}: all of it");
                    break;
                }
            }
        }
    }
    let listed = store.list(List { prefix: "/", ..List::default() }).await.expect("list");
    assert!(listed.entries.len() <= WRITERS * 22, "{} keys", listed.entries.len());
    store.close().await.expect("close");
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    if let Some(dir) = std::env::var_os(VICTIM) {
        be_the_victim(Path::new(&dir));
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = Acknowledged::default();
    let mut chance: u64 = std::process::id().into();
    for n in 0..ROUNDS {
        chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        round(dir.path(), Duration::from_micros((chance >> 33) % 120_000), &mut acknowledged);
        // At times the next victim finds what the last one left, unexamined.
        if n % 3 != 2 {
            runtime.block_on(examine(dir.path(), &mut acknowledged));
        }
    }
    verify(dir.path()).expect("verify");
    assert!(acknowledged.total > ROUNDS, "{} transactions acknowledged", acknowledged.total);
    println!("{ROUNDS} kills, {} transactions acknowledged, none lost", acknowledged.total);
}
