//! Sandboxes: created once, found after a restart, removed completely.

use std::sync::Arc;

use crate::{observed::SandboxId, suite::Bench};

pub async fn a_sandbox_is_observed_as_it_was_asked_for(b: Arc<Bench>) {
    let pod = b.pod().await;
    let all = pod.sandboxes().await;
    let [found] = all.as_slice() else { panic!("one sandbox: {all:?}") };
    assert_eq!(found.id, pod.id);
    assert_eq!(found.pod, pod.spec.pod);
    assert_eq!(found.attempt, 0);
    assert!(found.ready, "{found:?}");
    assert!(!found.host_network);
    assert_eq!(found.annotations.get("suite/claim"), pod.spec.annotations.get("suite/claim"));
    let age = jiff::Timestamp::now().duration_since(found.created_at);
    assert!(age.as_secs().abs() < 60, "made just now: {age:?}");
    assert!(pod.containers().await.is_empty(), "nothing runs in it yet");
}

pub async fn making_it_again_answers_the_same(b: Arc<Bench>) {
    let pod = b.pod().await;
    let again = b.runtime.create_sandbox(&pod.spec).await.expect("create it again");
    assert_eq!(again, pod.id);
    assert_eq!(pod.sandboxes().await.len(), 1);
}

pub async fn a_new_attempt_is_another_sandbox(b: Arc<Bench>) {
    let first = b.pod().await;
    b.runtime.remove_sandbox(&first.id).await.expect("remove the first");
    let mut spec = first.spec.clone();
    spec.attempt = 1;
    let second = b.pod_of(spec).await;
    assert_ne!(first.id, second.id);
    let all = second.sandboxes().await;
    assert_eq!(all.iter().map(|s| (&s.id, s.attempt)).collect::<Vec<_>>(), [(&second.id, 1)]);
}

pub async fn sandboxes_have_addresses_of_their_own(b: Arc<Bench>) {
    let (one, two) = (b.pod().await, b.pod().await);
    let (one, two) = (&one.sandboxes().await[0], &two.sandboxes().await[0]);
    assert!(!one.addresses.is_empty() && !two.addresses.is_empty(), "{one:?} {two:?}");
    assert_ne!(one.addresses, two.addresses);
}

pub async fn host_network_has_no_address(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.host_network = true;
    let pod = b.pod_of(spec).await;
    let found = &pod.sandboxes().await[0];
    assert!(found.host_network && found.ready, "{found:?}");
    assert!(found.addresses.is_empty(), "{found:?}");
}

pub async fn removing_it_leaves_nothing_and_may_be_repeated(b: Arc<Bench>) {
    let pod = b.pod().await;
    b.runtime.remove_sandbox(&pod.id).await.expect("remove");
    assert!(pod.sandboxes().await.is_empty());
    b.runtime.remove_sandbox(&pod.id).await.expect("remove again");
    b.runtime.remove_sandbox(&SandboxId("0".repeat(64))).await.expect("remove what never was");
}

pub async fn removing_it_removes_what_runs_in_it(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.start(pod.sleeper("running")).await;
    pod.create(pod.sleeper("created")).await;
    b.runtime.remove_sandbox(&pod.id).await.expect("remove");
    assert!(pod.containers().await.is_empty());
    assert!(pod.sandboxes().await.is_empty());
}

pub async fn observing_one_pod_shows_no_other(b: Arc<Bench>) {
    let (one, two) = (b.pod().await, b.pod().await);
    one.start(one.sleeper("a")).await;
    two.start(two.sleeper("b")).await;
    assert_eq!(one.containers().await.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a"]);
    let all = b.runtime.observe(None).await.expect("observe everything");
    for pod in [&one, &two] {
        assert!(all.sandboxes.iter().any(|s| s.id == pod.id), "{:?} is among all", pod.id);
        assert!(all.containers.iter().any(|c| c.pod.uid == *pod.uid()), "{:?} is among all", pod.id);
    }
}

pub async fn a_reopened_runtime_finds_everything(b: Arc<Bench>) {
    let pod = b.pod().await;
    let running = pod.start(pod.sleeper("running")).await;
    let created = pod.create(pod.sleeper("created")).await;
    let stopped = pod.start(pod.sleeper("stopped")).await;
    b.runtime.stop_container(&stopped, std::time::Duration::ZERO).await.expect("stop");
    let sorted = |mut observed: crate::Observed| {
        observed.containers.sort_by(|a, b| a.name.cmp(&b.name));
        (observed.sandboxes, observed.containers)
    };
    let before = sorted(b.runtime.observe(Some(pod.uid())).await.expect("observe"));
    let second = b.subject.reopen().await;
    let after = sorted(second.observe(Some(pod.uid())).await.expect("observe through another"));
    assert_eq!(before, after);
    assert_eq!(after.1.len(), 3);
    // And it can go on with them.
    second.start_container(&created).await.expect("start through another");
    second.stop_container(&running, std::time::Duration::ZERO).await.expect("stop through another");
    // The first notices it a little later.
    assert!(pod.ended(&running).await.state.has_ended());
}
