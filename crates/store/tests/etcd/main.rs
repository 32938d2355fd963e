//! The etcd backend against real etcd servers, the oldest version we support and a recent one.
//! `tools/test-deps` fetches them.

mod basics;
mod compaction;
mod outage;
mod secured;
mod server;
mod suite;
mod watching;

use std::{future::Future, sync::Arc, time::Duration};

use mainstay_store::{Compare, Etcd, EtcdConfig, Expect, Op, Outcome, Revision, Store, Txn, Watch, WatchEvent};

/// Longer than anything here takes on a busy machine; a hang fails instead of hanging.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}: still waiting"))
}

/// A claim about the backend, held against every version of etcd.
macro_rules! claims {
    ($($name:ident),+ $(,)?) => {
        mod against_3_4 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(crate::server::Version::V3_4).await })+
        }
        mod against_3_5 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(crate::server::Version::V3_5).await })+
        }
    };
}
pub(crate) use claims;

pub async fn client(server: &server::Server) -> Etcd {
    Etcd::connect(&EtcdConfig::new(server.url())).await.expect("etcd answers")
}

pub fn put(key: &str, value: &str) -> Op {
    Op::Put { key: key.into(), value: value.to_owned().into() }
}

pub fn delete(key: &str) -> Op {
    Op::Delete { key: key.into() }
}

pub fn expect(key: &str, expect: Expect) -> Compare {
    Compare { key: key.into(), expect }
}

pub async fn write(store: &Etcd, ops: Vec<Op>) -> Revision {
    match store.commit(Txn { compares: vec![], ops }).await.expect("commit") {
        Outcome::Committed(at) => at,
        Outcome::Conflict { .. } => panic!("conflict without compares"),
    }
}

/// One change, in a line.
pub fn line(change: &mainstay_store::Change) -> String {
    let value = |entry: &Option<Arc<mainstay_store::Entry>>| match entry {
        Some(entry) => String::from_utf8_lossy(&entry.value).into_owned(),
        None => "-".into(),
    };
    format!("{} {} {}>{}", change.revision, change.key, value(&change.previous), value(&change.current))
}

/// The next changes, at least `count` of them; progress is passed over.
pub async fn changes(watch: &mut dyn Watch, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    while lines.len() < count {
        match within("the next change", watch.next()).await.expect("watch goes on") {
            WatchEvent::Changes(changes) => lines.extend(changes.iter().map(line)),
            WatchEvent::Progress(_) => {}
        }
    }
    lines
}
