use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;

use super::*;
use crate::{Runtime, RuntimeError, suite};

struct Subject(Arc<Fake>, tempfile::TempDir);

#[async_trait]
impl suite::Subject for Subject {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.0.clone()
    }

    async fn reopen(&self) -> Arc<dyn Runtime> {
        self.0.clone()
    }

    fn image(&self) -> String {
        "busybox".to_owned()
    }

    fn scratch(&self) -> PathBuf {
        self.1.path().to_owned()
    }
}

#[tokio::test]
async fn it_does_what_every_runtime_does() {
    let scratch = tempfile::tempdir().expect("make a directory");
    suite::run(Subject(Arc::new(Fake::new()), scratch), &["sandboxes", "containers"]).await;
}

#[tokio::test]
async fn a_failure_is_used_up() {
    let fake = Fake::new();
    fake.fail_next(Call::Stats, RuntimeError::Invalid { why: "once".to_owned() });
    assert_eq!(fake.stats().await.expect_err("fails").to_string(), "once");
    assert!(fake.stats().await.is_ok());
    assert_eq!(fake.count(Call::Stats), 2);
}

#[tokio::test]
async fn a_hanging_call_returns_once_released() {
    let fake = Fake::new();
    fake.hang(Call::Stats);
    let mut call = fake.stats();
    assert!(futures::poll!(call.as_mut()).is_pending());
    fake.release(Call::Stats);
    assert!(call.await.is_ok());
}
