//! Why a pod waits for what it needs: the chain of pods that wait for each other, down to its root.

use jiff::Timestamp;
use mainstay_api::needs;

use super::{Cause, explain_pod, pod::PodFacts, text};

/// What a pod waits for first.
#[derive(Clone, Debug)]
pub struct AwaitedFacts {
    /// As the pod names it: `mysql`, `job/migrate`.
    pub name: String,
    /// A pod behind it that is not as it should be; none if there is no pod.
    pub pod: Option<Box<PodFacts>>,
}

pub fn find_cause(facts: &PodFacts, now: Timestamp) -> Option<Cause> {
    let condition = facts.condition(needs::CONDITION).filter(|condition| condition.status == "False")?;
    let message = condition.message.as_deref().unwrap_or_default();
    let mut cause = match describe_chain(facts, now) {
        Some(chain) => Cause::new(chain).detail(format!("its needs are not met: {message}")),
        None => Cause::new(format!("waits for its needs: {message}")),
    };
    if condition.reason.as_deref() == Some(needs::CYCLE) {
        cause = cause.detail("none of these can ever start: make one of the needs `addressable` instead of `ready`");
    }
    let root = root(facts);
    if let Some(pod) = root.filter(|root| !std::ptr::eq(*root, facts)) {
        let meta = &pod.pod.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        cause = cause.next(format!("mainstay why -n {namespace} pod/{}", text::name(meta)), "the root of it");
    }
    Some(cause.next("mainstay needs", "who needs whom"))
}

/// `waits for api, which waits for mysql, which crashes: …`
fn describe_chain(facts: &PodFacts, now: Timestamp) -> Option<String> {
    let awaited = facts.awaited.as_ref()?;
    let behind = match &awaited.pod {
        None => return Some(format!("waits for {}, which has no pod", awaited.name)),
        Some(pod) => describe_chain(pod, now).unwrap_or_else(|| explain_pod(pod, now).headline),
    };
    Some(format!("waits for {}, which {behind}", awaited.name))
}

/// The last pod of the chain.
fn root(facts: &PodFacts) -> Option<&PodFacts> {
    match &facts.awaited {
        Some(awaited) => root(awaited.pod.as_deref()?),
        None => Some(facts),
    }
}
