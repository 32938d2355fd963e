use std::sync::Arc;

use jiff::Timestamp;
use mainstay_runtime::{ContainerId, observed::PodRef};
use serde_json::json;

use super::*;

/// A pod `web` with the container `a` in this state of the API, and these runs of it in the runtime.
fn found(state: serde_json::Value, runs: &[(u32, ContainerState)]) -> PodOnNode {
    let pod = json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u" },
        "spec": { "containers": [{ "name": "a" }] },
        "status": { "containerStatuses": [{
            "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }] },
    });
    let whose = PodRef { namespace: "shop".into(), name: "web".into(), uid: PodUid("u".into()) };
    let containers = runs
        .iter()
        .map(|(attempt, state)| ContainerStatus {
            id: ContainerId(format!("c{attempt}")),
            sandbox: SandboxId("s".into()),
            pod: whose.clone(),
            name: "a".into(),
            attempt: *attempt,
            image: String::new(),
            image_id: String::new(),
            created_at: Timestamp::UNIX_EPOCH,
            state: state.clone(),
            annotations: Default::default(),
            log_path: format!("/logs/{attempt}.log").into(),
            pid: None,
        })
        .collect();
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    PodOnNode { pod, uid: PodUid("u".into()), observed: Observed { sandboxes: vec![], containers } }
}

fn running() -> ContainerState {
    ContainerState::Running { started_at: Timestamp::UNIX_EPOCH }
}

fn ended() -> ContainerState {
    ContainerState::Exited {
        started_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
        exit_code: 1,
        signal: None,
        oom: false,
        message: String::new(),
    }
}

fn log(found: &PodOnNode, previous: bool) -> Result<PathBuf, String> {
    found.log(std::path::Path::new("/nowhere"), "a", previous).map(|log| log.path).map_err(|refusal| refusal.text)
}

#[test]
fn the_log_is_that_of_the_newest_run_and_the_one_before() {
    let now = found(json!({ "running": {} }), &[(3, running()), (2, ended())]);
    assert_eq!(log(&now, false).unwrap(), PathBuf::from("/logs/3.log"));
    assert_eq!(log(&now, true).unwrap(), PathBuf::from("/logs/2.log"));
}

#[test]
fn one_that_waits_to_be_started_again_is_already_the_one_before() {
    let waiting = found(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), &[(2, ended())]);
    assert_eq!(log(&waiting, false).unwrap(), PathBuf::from("/logs/2.log"));
    assert_eq!(log(&waiting, true).unwrap(), PathBuf::from("/logs/2.log"));
    let over = found(json!({ "terminated": { "exitCode": 1 } }), &[(0, ended())]);
    let text = "previous terminated container \"a\" in pod \"web\" not found";
    assert_eq!(log(&over, true).unwrap_err(), text);
}

#[test]
fn one_that_never_began_says_what_it_waits_for() {
    let why = |reason: &str| {
        let state = if reason.is_empty() { json!({}) } else { json!({ "waiting": { "reason": reason } }) };
        let refused = log(&found(state, &[(0, ContainerState::Created)]), false).unwrap_err();
        refused.strip_prefix("container \"a\" in pod \"web\" is waiting to start: ").unwrap().to_owned()
    };
    assert_eq!(why(""), "ContainerCreating");
    assert_eq!(why("PodInitializing"), "PodInitializing");
    assert_eq!(why("ErrImagePull"), "image can't be pulled");
    assert_eq!(why("ImagePullBackOff"), "trying and failing to pull image");
}

#[test]
fn a_log_outlives_its_container() {
    let directory = tempfile::tempdir().unwrap();
    let place = path::pod_directory(directory.path(), "shop", "web", "u").join("a");
    std::fs::create_dir_all(&place).unwrap();
    for file in ["0.log", "1.log", "1.log.20240101-000000-000000000"] {
        std::fs::write(place.join(file), "").unwrap();
    }
    let gone = found(json!({ "terminated": { "exitCode": 0 } }), &[]);
    assert_eq!(gone.log(directory.path(), "a", false).unwrap().path, place.join("1.log"));
    assert_eq!(gone.log(directory.path(), "a", true).unwrap().path, place.join("0.log"));
}

#[test]
fn one_that_ended_and_printed_nothing_has_an_empty_log() {
    let over = found(json!({ "terminated": { "exitCode": 0 } }), &[]);
    assert!(!log(&over, false).unwrap().exists());
    let text = "previous terminated container \"a\" in pod \"web\" not found";
    assert_eq!(log(&over, true).unwrap_err(), text);
}
