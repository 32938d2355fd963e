//! Wakes the workers of pods. Wake-ups carry no data, so any number of them for one pod are one.

use std::{collections::BTreeSet, sync::Arc};

use mainstay_runtime::PodUid;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub struct Wake {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    due: Mutex<BTreeSet<PodUid>>,
    any: Notify,
}

impl Wake {
    pub fn pod(&self, uid: &PodUid) {
        if self.inner.due.lock().insert(uid.clone()) {
            self.inner.any.notify_one();
        }
    }

    /// The pods to look at; waits until there is one. For a single reader.
    pub async fn due(&self) -> BTreeSet<PodUid> {
        loop {
            let due = std::mem::take(&mut *self.inner.due.lock());
            if !due.is_empty() {
                return due;
            }
            self.inner.any.notified().await;
        }
    }
}
