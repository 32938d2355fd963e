//! Looks at the runtime again and again, and wakes who has to know of a difference.

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
const HURRIED: Duration = Duration::from_millis(100);
const HURRY: Duration = Duration::from_secs(3);
/// How often logs are measured.
const LOGS: Duration = Duration::from_secs(2);

/// When something is about to happen.
#[derive(Default)]
pub struct Hurry {
    until: Mutex<Option<Instant>>,
    now: Notify,
}

/// Looks at once when it is over.
pub struct Asked<'a>(&'a Hurry);

impl Hurry {
    pub fn begin(&self) -> Asked<'_> {
        *self.until.lock() = Some(Instant::now() + HURRY);
        Asked(self)
    }

    async fn pause(&self, usual: Duration) {
        let hurried = self.until.lock().is_some_and(|until| Instant::now() < until);
        let pause = if hurried { HURRIED.min(usual) } else { usual };
        let _ = tokio::time::timeout(pause, self.now.notified()).await;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *self.0.until.lock() = Some(Instant::now() + HURRY);
        self.0.now.notify_one();
    }
}

/// Whose it is and in which state, of everything.
type Seen = HashMap<String, (PodUid, i32)>;

pub async fn run(inner: Arc<Inner>, stop: CancellationToken) {
    let look = async {
        let (mut before, mut swept, mut measured) = (Seen::new(), false, Instant::now());
        let mut reachable = true;
        loop {
            match inner.look().await {
                Ok((now, containers)) => {
                    for pod in different(&before, &now) {
                        let _ = inner.wakeups.send(pod);
                    }
                    before = now;
                    swept = swept || inner.sweep_cgroups().await.is_ok();
                    if measured.elapsed() >= LOGS {
                        inner.rotate_logs(&containers).await;
                        measured = Instant::now();
                    }
                    reachable = true;
                }
                Err(error) if reachable => {
                    tracing::warn!(%error, "cannot look at the container runtime");
                    reachable = false;
                }
                Err(_) => {}
            }
            inner.hurry.pause(inner.settings.poll).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = look => {}
    }
}

impl Inner {
    async fn look(&self) -> Result<(Seen, Vec<proto::Container>)> {
        let labels = label::selector(&self.settings.instance, None);
        let (sandboxes, containers) =
            futures::try_join!(self.client.sandboxes(labels.clone()), self.client.containers(labels))?;
        let sandboxes = sandboxes.iter().map(|s| (&s.id, &s.labels, s.state));
        let all = sandboxes.chain(containers.iter().map(|c| (&c.id, &c.labels, c.state)));
        let seen = all.filter_map(|(id, labels, state)| Some((id.clone(), (label::pod(labels)?.uid, state)))).collect();
        Ok((seen, containers))
    }
}

/// The pods of which something came, went, or changed its state.
fn different(before: &Seen, now: &Seen) -> BTreeSet<PodUid> {
    let came = now.iter().filter(|(id, seen)| before.get(*id) != Some(seen));
    let went = before.iter().filter(|(id, _)| !now.contains_key(*id));
    came.chain(went).map(|(_, (pod, _))| pod.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(all: &[(&str, &str, i32)]) -> Seen {
        let one = |&(id, pod, state): &(&str, &str, i32)| (id.to_owned(), (PodUid(pod.to_owned()), state));
        all.iter().map(one).collect()
    }

    #[test]
    fn only_pods_with_a_difference_are_woken() {
        let before = seen(&[("a", "same", 1), ("b", "ended", 1), ("c", "gone", 1)]);
        let now = seen(&[("a", "same", 1), ("b", "ended", 2), ("d", "new", 0)]);
        let woken: Vec<_> = different(&before, &now).into_iter().map(|pod| pod.0).collect();
        assert_eq!(woken, ["ended", "gone", "new"]);
        assert!(different(&now, &now).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_call_it_looks_at_once_and_then_often() {
        let hurry = Hurry::default();
        let usual = Duration::from_secs(1);
        let took = async || {
            let began = Instant::now();
            hurry.pause(usual).await;
            began.elapsed()
        };
        assert_eq!(took().await, usual);
        drop(hurry.begin());
        assert_eq!(took().await, Duration::ZERO);
        assert_eq!(took().await, HURRIED);
        tokio::time::advance(HURRY).await;
        assert_eq!(took().await, usual);
    }
}
