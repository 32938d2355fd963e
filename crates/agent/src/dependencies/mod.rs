//! What pods of this node need ([`mainstay_api::needs`]), judged from the node's own catalogue of Services.
//!
//! Endpoints are counted here, so that a pod goes on when its needs are met although no server answers. Needs of workloads and objects
//! are judged by the controllers, which write the result into a condition of the pod: what it last said holds.
//!
//! [`evaluate`] is pure. A change of the catalogue wakes exactly the workers of pods for which it changed the result.

mod evaluate;
#[cfg(test)]
mod orders;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::needs::Needs;
use mainstay_network::catalogue::Catalogue;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;

use evaluate::evaluate;
pub use evaluate::{NeedsObservation, UnmetNeed};

use crate::{pods::Source, wake::Wake};

/// Changes of the catalogue that come together are one.
const DEBOUNCE: Duration = Duration::from_millis(50);

pub struct Dependencies {
    /// None on a machine without a cluster.
    catalogue: Option<Arc<Catalogue>>,
    wake: Wake,
    observed: Mutex<BTreeMap<PodUid, Observed>>,
}

struct Observed {
    pod: Arc<Pod>,
    source: Source,
    needs: Needs,
    result: NeedsObservation,
}

impl Dependencies {
    pub fn new(catalogue: Option<Arc<Catalogue>>, wake: Wake) -> Arc<Self> {
        Arc::new(Self { catalogue, wake, observed: Mutex::default() })
    }

    /// The pod's needs as they are now; its worker is woken when that changes.
    pub fn observe(&self, uid: &PodUid, pod: &Arc<Pod>, source: Source) -> NeedsObservation {
        let needs = Needs::from_annotations(&pod.metadata.annotations);
        if needs.is_empty() {
            self.observed.lock().remove(uid);
            return NeedsObservation::default();
        }
        let result = self.judge(&needs, pod, source);
        let observed = Observed { pod: pod.clone(), source, needs, result: result.clone() };
        self.observed.lock().insert(uid.clone(), observed);
        result
    }

    pub fn forget(&self, uid: &PodUid) {
        self.observed.lock().remove(uid);
    }

    /// Wakes workers for as long as it is polled.
    pub async fn run(&self) {
        let Some(catalogue) = &self.catalogue else { return };
        let mut changes = catalogue.changes();
        while changes.changed().await.is_ok() {
            tokio::time::sleep(DEBOUNCE).await;
            changes.mark_unchanged();
            let observed = self.observed.lock();
            for (uid, Observed { pod, source, needs, result }) in observed.iter() {
                if self.judge(needs, pod, *source) != *result {
                    self.wake.pod(uid);
                }
            }
        }
    }

    fn judge(&self, needs: &Needs, pod: &Pod, source: Source) -> NeedsObservation {
        let catalogue = self.catalogue.as_ref().map(|catalogue| catalogue.read());
        evaluate(needs, pod, source, catalogue.as_deref())
    }
}
