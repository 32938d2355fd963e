//! Containers as records: their states and the repetition of every call.

use std::{sync::Arc, time::Duration};

use crate::{
    RuntimeError,
    observed::{ContainerId, ContainerState, SandboxId},
    suite::{Bench, bench::eventually},
};

pub async fn a_created_container_does_not_run(b: Arc<Bench>) {
    let pod = b.pod().await;
    let spec = pod.sleeper("c");
    let id = pod.create(spec.clone()).await;
    let found = pod.status(&id).await.expect("is observed");
    assert_eq!(found.state, ContainerState::Created);
    assert_eq!((found.name.as_str(), found.attempt, &found.sandbox), ("c", 0, &pod.id));
    assert_eq!(found.pod, pod.spec.pod);
    assert_eq!(found.image, spec.image);
    assert_eq!(found.log_path, spec.log_path);
    assert_eq!(found.annotations.get("suite/name").map(String::as_str), Some("c"));
    assert!(!found.image_id.is_empty());
}

pub async fn creating_it_again_answers_the_same(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.create(pod.sleeper("c")).await;
    assert_eq!(pod.create(pod.sleeper("c")).await, id);
    b.runtime.start_container(&id).await.expect("start");
    assert_eq!(pod.create(pod.sleeper("c")).await, id, "also while it runs");
    assert_eq!(pod.containers().await.len(), 1);
}

pub async fn starting_it_again_is_not_an_error(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    let first = pod.status(&id).await.expect("is observed").state;
    assert!(first.is_running(), "{first:?}");
    b.runtime.start_container(&id).await.expect("start again");
    assert_eq!(pod.status(&id).await.expect("is observed").state, first);
}

pub async fn stopping_and_removing_may_be_repeated(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    for _ in 0..2 {
        b.runtime.stop_container(&id, Duration::ZERO).await.expect("stop");
    }
    let found = pod.status(&id).await.expect("is observed");
    assert!(found.state.has_ended(), "stop returns when it has ended: {found:?}");
    for _ in 0..2 {
        b.runtime.remove_container(&id).await.expect("remove");
    }
    assert!(pod.status(&id).await.is_none());
    let never_started = pod.create(pod.sleeper("d")).await;
    b.runtime.remove_container(&never_started).await.expect("remove what never ran");
    assert!(pod.containers().await.is_empty());
}

pub async fn a_running_container_is_not_removed(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    let refused = b.runtime.remove_container(&id).await;
    assert!(matches!(refused, Err(RuntimeError::Invalid { .. })), "{refused:?}");
    assert!(pod.status(&id).await.expect("is observed").state.is_running());
}

pub async fn what_ran_once_is_not_started_again(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    b.runtime.stop_container(&id, Duration::ZERO).await.expect("stop");
    b.runtime.start_container(&id).await.expect_err("a restart is a new container");
    assert!(pod.status(&id).await.expect("is observed").state.has_ended());
}

pub async fn an_attempt_is_a_fresh_container(b: Arc<Bench>) {
    let pod = b.pod().await;
    let first = pod.start(pod.sleeper("c")).await;
    b.runtime.stop_container(&first, Duration::ZERO).await.expect("stop");
    let mut spec = pod.sleeper("c");
    spec.attempt = 1;
    spec.log_path = pod.log_path("c", 1);
    let second = pod.start(spec).await;
    assert_ne!(first, second);
    let mut found: Vec<_> = pod.containers().await.iter().map(|c| (c.attempt, c.state.is_running())).collect();
    found.sort();
    assert_eq!(found, [(0, false), (1, true)]);
}

pub async fn what_is_not_there_is_not_found(b: Arc<Bench>) {
    let pod = b.pod().await;
    let nobody = ContainerId("0".repeat(64));
    let no_start = b.runtime.start_container(&nobody).await.expect_err("no such container");
    assert!(no_start.is_not_found(), "{no_start:?}");
    b.runtime.stop_container(&nobody, Duration::ZERO).await.expect("what is gone has stopped");
    b.runtime.remove_container(&nobody).await.expect("what is gone is removed");
    let spec = crate::ContainerSpec { image_id: b.subject.image(), ..pod.sleeper("c") };
    let nowhere = b.runtime.create_container(&SandboxId("0".repeat(64)), &spec).await.expect_err("no such sandbox");
    assert!(nowhere.is_not_found(), "{nowhere:?}");
}

pub async fn an_absent_image_is_named(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.sleeper("c");
    spec.image = "mainstay.test/absent:9".to_owned();
    spec.image_id = format!("sha256:{}", "9".repeat(64));
    let refused = b.runtime.create_container(&pod.id, &spec).await.expect_err("no such image");
    let RuntimeError::ImageMissing { image } = refused else { panic!("{refused:?}") };
    assert_eq!(image, "mainstay.test/absent:9");
    assert!(pod.containers().await.is_empty());
}

pub async fn an_end_wakes_the_watcher(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    let mut wakeups = b.runtime.wakeups();
    let stop = b.runtime.stop_container(&id, Duration::ZERO);
    let woken = async {
        loop {
            match wakeups.recv().await {
                Ok(uid) if uid == *pod.uid() && pod.status(&id).await.is_some_and(|c| c.state.has_ended()) => break,
                Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(closed) => panic!("{closed}"),
            }
        }
    };
    let both = futures::future::join(stop, woken);
    tokio::time::timeout(Duration::from_secs(30), both).await.expect("a wake-up comes").0.expect("stop");
    eventually("it is known to have ended", async || pod.status(&id).await.filter(|c| c.state.has_ended())).await;
}
