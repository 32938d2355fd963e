//! What the log says about requests and outages.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use mainstay_store::{Entry, List, Listing, Outcome, Revision, Store, StoreError, Txn, Watch};
use parking_lot::Mutex;
use tracing::{Level, subscriber::DefaultGuard};

use super::*;

/// The log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that have this text.
    fn lines(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().clone()).unwrap();
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

/// A store that can be cut off.
#[derive(Default)]
struct CutStore {
    store: Memory,
    is_cut: AtomicBool,
}

impl CutStore {
    fn check(&self) -> Result<(), StoreError> {
        match self.is_cut.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable { why: "cut off".into() }),
            false => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl Store for CutStore {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.check()?;
        self.store.get(key).await
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.check()?;
        self.store.list(query).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.check()?;
        self.store.commit(txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.check()?;
        self.store.watch(prefix, after).await
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.check()?;
        self.store.compact(at).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.check()?;
        self.store.revision().await
    }
}

#[tokio::test]
async fn a_request_is_one_line_with_user_object_and_code() {
    let server = Server::new(Settings::default()).await;
    let (log, _guard) = Log::start();
    let path = format!("{CONFIG_MAPS}/none");
    assert_eq!(server.send(&administrator(), Method::GET, &path, &Value::Null).await.0, 404);
    let lines = log.lines("request answered");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for field in
        ["user=\"admin\"", "verb=GET", "resource=\"configmaps\"", "namespace=\"default\"", "name=\"none\"", "code=404"]
    {
        assert!(lines[0].contains(field), "{field} in {}", lines[0]);
    }
    assert!(lines[0].contains("duration=") && lines[0].contains(&format!("path=\"{path}\"")), "{}", lines[0]);
}

#[tokio::test]
async fn a_store_that_is_away_is_one_warning_and_503_for_everybody() {
    let store = Arc::new(CutStore::default());
    let api = Api::new(Registry::builtin(), store.clone(), Settings::default());
    let server = Server(Arc::new(Handler::new(api, CancellationToken::new())));
    let (log, _guard) = Log::start();
    let get = async || server.send(&administrator(), Method::GET, CONFIG_MAPS, &Value::Null).await.0;
    assert_eq!(get().await, 200);
    store.is_cut.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(get().await, 503);
    }
    let warnings = log.lines("WARN");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("the store does not answer") && warnings[0].contains("cut off"), "{warnings:?}");
}

#[tokio::test]
async fn an_object_that_cannot_be_parsed_is_an_error_in_the_log_with_its_key() {
    let server = Server::new(Settings::default()).await;
    let op = mainstay_store::Op::Put {
        key: "/registry/configmaps/default/torn".into(),
        value: Bytes::from_static(b"{\"kind\":"),
    };
    server.0.store().commit(Txn { compares: Vec::new(), ops: vec![op] }).await.unwrap();
    let (log, _guard) = Log::start();
    let path = format!("{CONFIG_MAPS}/torn");
    assert_eq!(server.send(&administrator(), Method::GET, &path, &Value::Null).await.0, 500);
    let errors = log.lines("ERROR");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("/registry/configmaps/default/torn"), "{errors:?}");
}
