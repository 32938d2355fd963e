//! The loop of the fence: asks witnesses while there is no contact, has shims obey, and lets pods start again after it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::ListParams};
use mainstay_api::wellknown;
use mainstay_errors::error_chain;
use mainstay_runtime::{PodUid, fence::boot_time};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{BootTime, ContactAnswer, Fence, FenceCommand, peers::ask, state::PodList};
use crate::{events::EventType, pods::Source};

/// What a question to a witness has come to.
struct FinishedQuestion {
    witness: String,
    asked: BootTime,
    answer: Option<ContactAnswer>,
}

impl Fence {
    /// Works until asked to stop. Shims go on by themselves.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.watch_contact()).await;
    }

    async fn watch_contact(&self) {
        let mut questions = JoinSet::new();
        let mut outstanding = BTreeSet::new();
        loop {
            let pause = tokio::time::sleep(self.core.lock().next_look(&self.parts.timing, boot_time()));
            tokio::select! {
                () = pause => {}
                () = self.changed.notified() => {}
                Some(finished) = questions.join_next() => {
                    let Ok(FinishedQuestion { witness, asked, answer }) = finished else { continue };
                    outstanding.remove(&witness);
                    self.core.lock().record_reply(&witness, asked, answer);
                }
            }
            let witnesses = self.core.lock().witnesses_to_ask(&self.parts.timing, boot_time());
            for witness in witnesses {
                if outstanding.insert(witness.clone()) {
                    let wait = self.core.lock().wait_before_asking(&witness, boot_time());
                    self.spawn_question(&mut questions, witness, wait);
                }
            }
            match self.tick() {
                Some(FenceCommand::Enforce) => drop(self.enforce().await),
                Some(FenceCommand::Start) => self.start_pods().await,
                None => {}
            }
            self.return_to_service().await;
        }
    }

    /// Asks after `wait`. What it comes to is known at once: an answer decides, and so does one that does not come.
    fn spawn_question(&self, questions: &mut JoinSet<FinishedQuestion>, witness: String, wait: Duration) {
        let address = self.peers.lock().get(&witness).map(|peer| peer.address);
        let tls = self.parts.identity.as_ref().and_then(|identity| identity.peer_client_config(&witness).ok());
        let patience = self.parts.timing.heartbeat;
        questions.spawn(async move {
            tokio::time::sleep(wait).await;
            let asked = boot_time();
            let answer = match address.zip(tls) {
                Some((address, tls)) => tokio::time::timeout(patience, ask(address, tls)).await,
                None => Ok(Err(std::io::Error::other("its address is not known"))),
            };
            let answer = match answer {
                Ok(Ok(answer)) => Some(answer),
                Ok(Err(error)) => {
                    tracing::debug!(witness, %error, "a witness cannot be asked");
                    None
                }
                Err(_) => None,
            };
            FinishedQuestion { witness, asked, answer }
        });
    }

    /// Has all shims of unique pods look at the limit now. Whether all did.
    pub(super) async fn enforce(&self) -> bool {
        let fenced: Vec<_> = {
            let sandboxes = self.sandboxes.lock().await;
            sandboxes.iter().filter(|(_, (is_unique, _))| *is_unique).map(|(id, _)| id.clone()).collect()
        };
        let runtime = &self.parts.runtime;
        let looks = fenced.iter().map(|sandbox| async move {
            let looked = runtime.fence_sandbox(sandbox, true).await;
            looked.inspect_err(|error| tracing::warn!(%sandbox, %error, "a unique pod's shim does not answer")).is_ok()
        });
        futures::future::join_all(looks).await.into_iter().all(|looked| looked)
    }

    /// After contact: unique pods that nobody has replaced may start again.
    async fn return_to_service(&self) {
        let timing = self.parts.timing;
        let (contact, was_closed) = {
            let core = self.core.lock();
            let Some(contact) = core.wants_list(&timing, boot_time()) else { return };
            (contact, core.is_closed())
        };
        let listed = tokio::time::timeout(2 * timing.heartbeat, self.list_pods()).await;
        match listed {
            Ok(Ok(Some(list))) => {
                if let Some(FenceCommand::Start) = self.record_list(list, contact) {
                    if was_closed {
                        tracing::info!("contact with the cluster is back: pods that must be unique may start again");
                    }
                    self.start_pods().await;
                }
            }
            Ok(Ok(None)) => tracing::debug!("the node is tainted as unreachable; its unique pods wait"),
            Ok(Err(error)) => tracing::debug!(error = error_chain(&error), "cannot list the pods of this node"),
            Err(_) => tracing::debug!("cannot list the pods of this node: no answer"),
        }
    }

    /// The pods of this node as the API has them, unless the node is still tainted. What the API no longer has is stopped.
    async fn list_pods(&self) -> Result<Option<PodList>, kube::Error> {
        let node = Api::<Node>::all(self.parts.client.clone()).get(&self.parts.node_name).await?;
        let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.any(|taint| taint.key == wellknown::taint::UNREACHABLE && taint.effect == "NoExecute") {
            return Ok(None);
        }
        let only_ours = ListParams::default().fields(&format!("spec.nodeName={}", self.parts.node_name));
        let listed = Api::<Pod>::all(self.parts.client.clone()).list(&only_ours).await?;
        let version = listed.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0);
        let uid = |pod: &Pod| pod.metadata.uid.clone();
        let found: BTreeSet<String> = listed.items.iter().filter_map(uid).collect();
        for gone in self.parts.pods.all().into_iter().filter(|wanted| wanted.source == Source::Api) {
            let known = gone.pod.metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
            if let Some(uid) = uid(&gone.pod).filter(|uid| !found.contains(uid) && known.unwrap_or(0) < version) {
                self.parts.pods.remove(Source::Api, &PodUid(uid));
            }
        }
        let stay = listed.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(Some(PodList { uids: stay.filter_map(uid).collect(), version }))
    }

    async fn start_pods(&self) {
        let observed = self.parts.runtime.observe(None).await.unwrap_or_default();
        for (uid, pod) in self.unique_pods() {
            if observed.containers.iter().any(|c| c.pod.uid == uid && c.state.was_fenced()) {
                let text = "Contact with the cluster is back: containers that were stopped for lack of it start again";
                self.parts.events.pod(&pod, EventType::Normal, "ContactRestored", text);
            }
            self.parts.wake.pod(&uid);
        }
    }
}
