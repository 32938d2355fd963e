//! Polls the runtime for changes, which CRI does not report, and wakes the workers of changed pods.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Inner, label, proto};
use crate::{observed::PodUid, port::Result};

/// How often to look for a while after something was asked for, and for how long.
const FAST_INTERVAL: Duration = Duration::from_millis(100);
const FAST_PERIOD: Duration = Duration::from_secs(3);
/// How often logs are measured.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// When something is about to happen.
#[derive(Default)]
pub struct FastPolling {
    until: Mutex<Option<Instant>>,
    now: Notify,
}

/// Looks at once when it is over.
pub struct FastPollingGuard<'a>(&'a FastPolling);

impl FastPolling {
    pub fn begin(&self) -> FastPollingGuard<'_> {
        *self.until.lock() = Some(Instant::now() + FAST_PERIOD);
        FastPollingGuard(self)
    }

    async fn pause(&self, usual: Duration) {
        let is_fast = self.until.lock().is_some_and(|until| Instant::now() < until);
        let pause = if is_fast { FAST_INTERVAL.min(usual) } else { usual };
        let _ = tokio::time::timeout(pause, self.now.notified()).await;
    }
}

impl Drop for FastPollingGuard<'_> {
    fn drop(&mut self) {
        *self.0.until.lock() = Some(Instant::now() + FAST_PERIOD);
        self.0.now.notify_one();
    }
}

/// Whose it is and in which state, of everything.
type ObjectStates = HashMap<String, (PodUid, i32)>;

pub async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let look = async {
        let (mut before, mut swept, mut measured) = (ObjectStates::new(), false, Instant::now());
        let mut reachable = true;
        loop {
            match inner.list_states().await {
                Ok((now, containers)) => {
                    for pod in changed_pods(&before, &now) {
                        let _ = inner.wakeups.send(pod);
                    }
                    before = now;
                    swept = swept || inner.sweep_cgroups().await.is_ok();
                    if measured.elapsed() >= LOG_CHECK_INTERVAL {
                        inner.rotate_logs(&containers).await;
                        measured = Instant::now();
                    }
                    reachable = true;
                }
                Err(error) if reachable => {
                    tracing::warn!(%error, "cannot list the sandboxes and containers of the container runtime; will retry");
                    reachable = false;
                }
                Err(_) => {}
            }
            inner.fast_polling.pause(inner.settings.poll).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = look => {}
    }
}

impl Inner {
    async fn list_states(&self) -> Result<(ObjectStates, Vec<proto::Container>)> {
        let labels = label::selector(&self.settings.instance, None);
        let (sandboxes, containers) =
            futures::try_join!(self.client.sandboxes(labels.clone()), self.client.containers(labels))?;
        let sandboxes = sandboxes.iter().map(|s| (&s.id, &s.labels, s.state));
        let all = sandboxes.chain(containers.iter().map(|c| (&c.id, &c.labels, c.state)));
        let found =
            all.filter_map(|(id, labels, state)| Some((id.clone(), (label::pod(labels)?.uid, state)))).collect();
        Ok((found, containers))
    }
}

/// The pods of which something came, went, or changed its state.
fn changed_pods(before: &ObjectStates, now: &ObjectStates) -> BTreeSet<PodUid> {
    let came = now.iter().filter(|(id, found)| before.get(*id) != Some(found));
    let went = before.iter().filter(|(id, _)| !now.contains_key(*id));
    came.chain(went).map(|(_, (pod, _))| pod.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(all: &[(&str, &str, i32)]) -> ObjectStates {
        let one = |&(id, pod, state): &(&str, &str, i32)| (id.to_owned(), (PodUid(pod.to_owned()), state));
        all.iter().map(one).collect()
    }

    #[test]
    fn only_pods_with_a_difference_are_woken() {
        let before = found(&[("a", "same", 1), ("b", "ended", 1), ("c", "gone", 1)]);
        let now = found(&[("a", "same", 1), ("b", "ended", 2), ("d", "new", 0)]);
        let woken: Vec<_> = changed_pods(&before, &now).into_iter().map(|pod| pod.0).collect();
        assert_eq!(woken, ["ended", "gone", "new"]);
        assert!(changed_pods(&now, &now).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_call_it_looks_at_once_and_then_often() {
        let fast_polling = FastPolling::default();
        let usual = Duration::from_secs(1);
        let took = async || {
            let began = Instant::now();
            fast_polling.pause(usual).await;
            began.elapsed()
        };
        assert_eq!(took().await, usual);
        drop(fast_polling.begin());
        assert_eq!(took().await, Duration::ZERO);
        assert_eq!(took().await, FAST_INTERVAL);
        tokio::time::advance(FAST_PERIOD).await;
        assert_eq!(took().await, usual);
    }
}
