use std::{
    fs::OpenOptions,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::*;

/// A container that writes until it is stopped.
#[derive(Clone, Default)]
struct Container {
    ended: Arc<AtomicBool>,
}

impl Writing for Container {
    async fn writing(&mut self) -> bool {
        !self.ended.load(Ordering::SeqCst)
    }
}

struct Log {
    directory: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("0.log")
    }

    fn write(&self, second: u32, stream: &str, tag: &str, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path()).unwrap();
        writeln!(file, "2024-01-01T00:00:{second:02}.5Z {stream} {tag} {text}").unwrap();
    }

    fn rotate(&self, second: i64) {
        let time = jiff::Timestamp::from_second(1_704_067_200 + second).unwrap();
        std::fs::rename(self.path(), path::aside(&self.path(), time)).unwrap();
    }

    async fn read(&self, query: &str) -> String {
        let options = Options::parse(query, "2024-01-01T00:01:00Z".parse().unwrap()).unwrap();
        let (to, mut from) = mpsc::channel(1);
        let path = self.path();
        let reading = tokio::spawn(async move { read(&path, &options, Container::default(), to).await });
        let mut text = Vec::new();
        while let Some(piece) = from.recv().await {
            text.extend_from_slice(&piece);
        }
        reading.await.unwrap().unwrap();
        String::from_utf8(text).unwrap()
    }
}

#[tokio::test]
async fn options_choose_lines() {
    let log = Log::new();
    log.write(1, "stdout", "F", "one");
    log.rotate(10);
    log.write(2, "stderr", "F", "two");
    log.write(3, "stdout", "P", "thr");
    log.write(3, "stdout", "F", "ee");
    log.write(4, "stdout", "F", "four");
    assert_eq!(log.read("").await, "one\ntwo\nthree\nfour\n");
    assert_eq!(log.read("tailLines=2").await, "three\nfour\n");
    assert_eq!(log.read("tailLines=0").await, "");
    assert_eq!(log.read("sinceTime=2024-01-01T00:00:03Z").await, "three\nfour\n");
    assert_eq!(log.read("sinceSeconds=57").await, "three\nfour\n");
    assert_eq!(log.read("stream=Stderr").await, "two\n");
    assert_eq!(log.read("limitBytes=6").await, "one\ntw");
    let stamped = log.read("timestamps=true&tailLines=2").await;
    assert_eq!(stamped, "2024-01-01T00:00:03.5Z three\n2024-01-01T00:00:04.5Z four\n");
}

#[tokio::test]
async fn a_log_that_does_not_exist_is_empty() {
    assert_eq!(Log::new().read("tailLines=3").await, "");
}

#[tokio::test]
async fn long_logs_come_whole() {
    let log = Log::new();
    let text = "x".repeat(1000);
    for second in 0..200 {
        log.write(second % 60, "stdout", "F", &text);
    }
    assert_eq!(log.read("").await.len(), 200 * 1001);
}

#[tokio::test]
async fn following_survives_rotation_and_ends_with_the_container() {
    let log = Log::new();
    log.write(1, "stdout", "F", "old");
    log.write(2, "stdout", "F", "one");
    let container = Container::default();
    let options = Options { follow: true, tail_lines: Some(1), ..Options::default() };
    let (to, mut from) = mpsc::channel(16);
    let (path, writing) = (log.path(), container.clone());
    let reading = tokio::spawn(async move { read(&path, &options, writing, to).await });
    assert_eq!(from.recv().await.unwrap(), "one\n");
    // Two rotations between two looks lose nothing.
    log.write(3, "stdout", "F", "two");
    log.rotate(10);
    log.write(4, "stdout", "F", "three");
    log.rotate(11);
    log.write(5, "stdout", "F", "four");
    let mut observed = String::new();
    while !observed.ends_with("four\n") {
        observed += std::str::from_utf8(&from.recv().await.unwrap()).unwrap();
    }
    assert_eq!(observed, "two\nthree\nfour\n");
    log.write(6, "stdout", "F", "last words");
    container.ended.store(true, Ordering::SeqCst);
    assert_eq!(from.recv().await.unwrap(), "last words\n");
    assert_eq!(from.recv().await, None);
    reading.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_follower_that_leaves_ends_the_reading() {
    let log = Log::new();
    log.write(1, "stdout", "F", "one");
    let options = Options { follow: true, ..Options::default() };
    let (to, mut from) = mpsc::channel(16);
    let path = log.path();
    let reading = tokio::spawn(async move { read(&path, &options, Container::default(), to).await });
    assert_eq!(from.recv().await.unwrap(), "one\n");
    drop(from);
    reading.await.unwrap().unwrap();
}
