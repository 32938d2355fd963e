//! Counts, per pod, the changes of objects that it refers to, and wakes its worker.

use std::{collections::BTreeMap, sync::Arc};

use mainstay_runtime::PodUid;
use parking_lot::Mutex;

use crate::wake::Wake;

#[derive(Clone)]
pub(super) struct Changes {
    wake: Wake,
    counts: Arc<Mutex<BTreeMap<PodUid, u64>>>,
}

impl Changes {
    pub(super) fn new(wake: Wake) -> Self {
        Self { wake, counts: Arc::default() }
    }

    pub(super) fn record(&self, pod: &PodUid) {
        *self.counts.lock().entry(pod.clone()).or_default() += 1;
        self.wake.pod(pod);
    }

    pub(super) fn count(&self, pod: &PodUid) -> u64 {
        self.counts.lock().get(pod).copied().unwrap_or_default()
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        self.counts.lock().remove(pod);
    }
}
