//! Jobs run pods to an end. The pods here are objects: the tests say how they end.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::{Job, JobStatus},
    core::v1::{Event, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

const TRACKING: &str = "batch.kubernetes.io/job-tracking";

impl Cluster {
    pub fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub async fn job(&self, name: &str, spec: Value) -> Job {
        let mut job = json!({
            "metadata": { "name": name },
            "spec": { "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
            } } },
        });
        job["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = serde_json::from_value(job).unwrap();
        self.jobs().create(&PostParams::default(), &job).await.expect("create a job")
    }

    pub async fn job_status(&self, name: &str) -> JobStatus {
        self.jobs().get(name).await.unwrap().status.unwrap_or_default()
    }

    async fn job_pods(&self, job: &str) -> Vec<Pod> {
        let labels = format!("batch.kubernetes.io/job-name={job}");
        self.all_pods().list(&ListParams::default().labels(&labels)).await.unwrap().items
    }

    /// Pods that neither ended nor are being deleted.
    async fn active(&self, job: &str) -> Vec<Pod> {
        let over = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let pods = self.job_pods(job).await.into_iter();
        pods.filter(|pod| pod.metadata.deletion_timestamp.is_none() && !over(pod)).collect()
    }

    /// Waits until so many pods are active.
    async fn has_active(&self, job: &str, count: usize) -> Vec<Pod> {
        until(&format!("{job} has {count} active pods"), async || self.active(job).await.len() == count).await;
        self.active(job).await
    }

    /// As the machine's agent would say.
    async fn ends(&self, pod: &Pod, code: i32) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let now = jiff::Timestamp::now().to_string();
        let terminated = json!({ "exitCode": code, "finishedAt": now, "startedAt": now });
        let status = json!({ "status": { "phase": phase, "containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": terminated },
        }] } });
        let name = pod.metadata.name.as_deref().unwrap();
        let patched = self.all_pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.expect("report a pod's status");
    }

    /// Waits for a condition and returns its reason and message.
    async fn has_condition(&self, job: &str, type_: &str) -> (String, String) {
        let find = |status: JobStatus| {
            let mut conditions = status.conditions.into_iter().flatten();
            conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
        };
        until(&format!("{job} is {type_}"), async || find(self.job_status(job).await).is_some()).await;
        let condition = find(self.job_status(job).await).unwrap();
        (condition.reason.unwrap_or_default(), condition.message.unwrap_or_default())
    }

    pub async fn change_job(&self, name: &str, change: Value) {
        self.jobs().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("change a job");
    }

    pub async fn has_event(&self, about: &str, reason: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        until(&format!("an event {reason} about {about}"), async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let ours = |event: &Event| event.involved_object.name.as_deref() == Some(about);
            all.iter().any(|event| ours(event) && event.reason.as_deref() == Some(reason))
        })
        .await;
    }
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

fn counts(status: &JobStatus) -> (i32, i32, i32) {
    let count = |count: Option<i32>| count.unwrap_or(0);
    (count(status.active), count(status.succeeded), count(status.failed))
}

#[tokio::test]
async fn a_job_runs_as_many_as_it_says_and_is_complete() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "parallelism": 2, "completions": 3 })).await;
    for left in [2, 2, 1] {
        let pods = cluster.has_active("j", left).await;
        assert!(pods.iter().all(is_tracked));
        cluster.ends(&pods[0], 0).await;
    }
    let (reason, message) = cluster.has_condition("j", "Complete").await;
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("CompletionsReached", "Reached expected number of succeeded pods")
    );
    let status = cluster.job_status("j").await;
    assert_eq!(counts(&status), (0, 3, 0));
    assert!(status.completion_time >= status.start_time && status.start_time.is_some());
    let types: Vec<String> = status.conditions.unwrap().into_iter().map(|condition| condition.type_).collect();
    assert_eq!(types, ["SuccessCriteriaMet", "Complete"]);
    let pods = cluster.job_pods("j").await;
    assert!(pods.len() == 3 && !pods.iter().any(is_tracked), "they stay to be looked at, and nothing holds them");
    cluster.has_event("j", "SuccessfulCreate").await;
    cluster.has_event("j", "Completed").await;
    cluster.stop().await;
}

#[tokio::test]
async fn every_index_runs_once() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "parallelism": 3, "completions": 3, "completionMode": "Indexed" })).await;
    let pods = cluster.has_active("j", 3).await;
    let hosts: BTreeSet<String> = pods.iter().map(|pod| pod.spec.clone().unwrap().hostname.unwrap()).collect();
    assert_eq!(hosts, ["j-0", "j-1", "j-2"].map(str::to_owned).into());
    let variable = &pods[0].spec.as_ref().unwrap().containers[0].env.as_ref().unwrap()[0];
    assert_eq!(variable.name, "JOB_COMPLETION_INDEX");
    let of =
        |index: &str| pods.iter().find(|pod| pod.spec.as_ref().unwrap().hostname.as_deref() == Some(index)).unwrap();
    assert!(of("j-2").metadata.name.as_deref().unwrap().starts_with("j-2-"));
    cluster.ends(of("j-0"), 0).await;
    cluster.ends(of("j-2"), 0).await;
    until("two are counted", async || cluster.job_status("j").await.completed_indexes.as_deref() == Some("0,2")).await;
    cluster.ends(of("j-1"), 0).await;
    cluster.has_condition("j", "Complete").await;
    assert_eq!(cluster.job_status("j").await.completed_indexes.as_deref(), Some("0-2"));
    assert_eq!(cluster.job_pods("j").await.len(), 3);
    cluster.stop().await;
}

#[tokio::test]
async fn a_pod_deleted_behind_its_back_is_counted_all_the_same() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "parallelism": 1, "completions": 1 })).await;
    let pod = cluster.has_active("j", 1).await.remove(0);
    let name = pod.metadata.name.unwrap();
    cluster.all_pods().delete(&name, &DeleteParams::default()).await.expect("delete a pod");
    until("it counts as failed", async || counts(&cluster.job_status("j").await).2 == 1).await;
    until("it is gone", async || {
        let found = cluster.all_pods().get_opt(&name).await.unwrap();
        found.is_none_or(|found| found.metadata.uid != pod.metadata.uid)
    })
    .await;
    assert_eq!(cluster.job_status("j").await.uncounted_terminated_pods, Some(Default::default()));
    cluster.stop().await;
}

#[tokio::test]
pub async fn too_many_failures_fail_it_and_end_the_rest() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "parallelism": 2, "completions": 2, "backoffLimit": 0 })).await;
    let pods = cluster.has_active("j", 2).await;
    cluster.ends(&pods[0], 1).await;
    let (reason, message) = cluster.has_condition("j", "Failed").await;
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    );
    assert_eq!(counts(&cluster.job_status("j").await), (0, 0, 2));
    assert_eq!(cluster.has_active("j", 0).await.len(), 0);
    cluster.has_event("j", "BackoffLimitExceeded").await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_failure_policy_decides_by_exit_code() {
    let cluster = Cluster::start().await;
    let policy = json!({ "rules": [
        { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [7] } },
        { "action": "FailJob", "onExitCodes": { "containerName": "c", "operator": "In", "values": [42] } },
    ] });
    cluster.job("j", json!({ "parallelism": 2, "completions": 2, "podFailurePolicy": policy })).await;
    let pods = cluster.has_active("j", 2).await;
    cluster.ends(&pods[0], 7).await;
    until("the ignored one is released", async || {
        !is_tracked(&cluster.all_pods().get(pods[0].metadata.name.as_deref().unwrap()).await.unwrap())
    })
    .await;
    assert_eq!(counts(&cluster.job_status("j").await).2, 0);
    cluster.ends(&pods[1], 42).await;
    let (reason, message) = cluster.has_condition("j", "Failed").await;
    let name = pods[1].metadata.name.as_deref().unwrap();
    let expected =
        format!("Container c for pod default/{name} failed with exit code 42 matching FailJob rule at index 1");
    assert_eq!((reason.as_str(), message), ("PodFailurePolicy", expected));
    assert_eq!(counts(&cluster.job_status("j").await), (0, 0, 1));
    cluster.stop().await;
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_counts_none_of_them() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "suspend": true, "parallelism": 2, "completions": 2 })).await;
    assert_eq!(cluster.has_condition("j", "Suspended").await.0, "JobSuspended");
    assert!(cluster.job_pods("j").await.is_empty() && cluster.job_status("j").await.start_time.is_none());
    cluster.change_job("j", json!({ "spec": { "suspend": false } })).await;
    cluster.has_active("j", 2).await;
    until("its clock runs", async || cluster.job_status("j").await.start_time.is_some()).await;
    cluster.change_job("j", json!({ "spec": { "suspend": true } })).await;
    cluster.has_active("j", 0).await;
    cluster.has_condition("j", "Suspended").await;
    until("they are gone", async || cluster.job_pods("j").await.is_empty()).await;
    cluster.change_job("j", json!({ "spec": { "suspend": false } })).await;
    for pod in cluster.has_active("j", 2).await {
        cluster.ends(&pod, 0).await;
    }
    cluster.has_condition("j", "Complete").await;
    assert_eq!(counts(&cluster.job_status("j").await), (0, 2, 0));
    for reason in ["Suspended", "Resumed"] {
        cluster.has_event("j", reason).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn an_index_fails_for_itself() {
    let cluster = Cluster::start().await;
    let spec = json!({
        "parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "maxFailedIndexes": 1,
    });
    cluster.job("j", spec).await;
    let pods = cluster.has_active("j", 2).await;
    let annotation = "batch.kubernetes.io/job-index-failure-count";
    assert!(pods.iter().all(|pod| pod.metadata.annotations.as_ref().unwrap()[annotation] == "0"));
    let host = |pod: &Pod| pod.spec.as_ref().unwrap().hostname.clone().unwrap();
    let (one, other) = if host(&pods[0]) == "j-1" { (0, 1) } else { (1, 0) };
    cluster.ends(&pods[one], 3).await;
    until("the index failed", async || cluster.job_status("j").await.failed_indexes.as_deref() == Some("1")).await;
    cluster.ends(&pods[other], 0).await;
    assert_eq!(cluster.has_condition("j", "Failed").await.0, "FailedIndexes");
    let status = cluster.job_status("j").await;
    assert_eq!((counts(&status), status.completed_indexes.as_deref()), ((0, 1, 1), Some("0")));
    cluster.stop().await;
}

#[tokio::test]
async fn a_deadline_ends_it() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "activeDeadlineSeconds": 1 })).await;
    cluster.has_active("j", 1).await;
    assert_eq!(cluster.has_condition("j", "Failed").await.0, "DeadlineExceeded");
    assert_eq!(counts(&cluster.job_status("j").await), (0, 0, 1));
    cluster.stop().await;
}

#[tokio::test]
pub async fn nothing_holds_the_pods_of_a_job_that_is_gone() {
    let cluster = Cluster::start().await;
    cluster.job("j", json!({ "parallelism": 2, "completions": 2 })).await;
    cluster.has_active("j", 2).await;
    cluster.jobs().delete("j", &DeleteParams::background()).await.expect("delete a job");
    until("its pods are gone", async || cluster.job_pods("j").await.is_empty()).await;

    cluster.job("k", json!({ "parallelism": 2, "completions": 2 })).await;
    cluster.has_active("k", 2).await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    cluster.jobs().delete("k", &orphan).await.expect("delete a job");
    until("its pods are free", async || {
        let pods = cluster.job_pods("k").await;
        let free = |pod: &Pod| !is_tracked(pod) && pod.metadata.owner_references.iter().flatten().next().is_none();
        pods.len() == 2 && pods.iter().all(free)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn pods_that_match_are_adopted_and_others_leave_in_peace() {
    let cluster = Cluster::start().await;
    let pod = json!({ "metadata": { "name": "mine", "labels": { "work": "w" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    cluster
        .all_pods()
        .create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .expect("create a pod");
    let template = json!({
        "metadata": { "labels": { "work": "w" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] },
    });
    let selector = json!({ "matchLabels": { "work": "w" } });
    cluster.job("j", json!({ "manualSelector": true, "selector": selector, "template": template })).await;
    let mine = async || cluster.all_pods().get("mine").await.unwrap();
    until("it is adopted", async || is_tracked(&mine().await) && mine().await.metadata.owner_references.is_some())
        .await;
    until("and enough", async || counts(&cluster.job_status("j").await).0 == 1).await;
    let all = cluster.all_pods().list(&ListParams::default().labels("work=w")).await.unwrap().items;
    assert_eq!(all.len(), 1);
    cluster
        .all_pods()
        .patch("mine", &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "labels": { "work": null } } })))
        .await
        .unwrap();
    until("it is let go", async || {
        let mine = mine().await;
        !is_tracked(&mine) && mine.metadata.owner_references.iter().flatten().next().is_none()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_that_others_manage_is_left_alone() {
    let cluster = Cluster::start().await;
    cluster.job("theirs", json!({ "managedBy": "example.org/other" })).await;
    cluster.job("ours", json!({})).await;
    cluster.has_active("ours", 1).await;
    assert!(cluster.job_pods("theirs").await.is_empty());
    assert_eq!(cluster.job_status("theirs").await, JobStatus::default());
    cluster.stop().await;
}

#[tokio::test]
async fn an_orphan_that_still_has_the_finalizer_is_adopted_and_goes_on_running() {
    let cluster = Cluster::start().await;
    for round in 0..20 {
        let work = format!("w{round}");
        let name = format!("orphan-{round}");
        let pod = json!({
            "metadata": { "name": name, "labels": { "work": work }, "finalizers": [TRACKING] },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let made: Pod = cluster.all_pods().create(&PostParams::default(), &pod).await.expect("create a pod");
        let template = json!({
            "metadata": { "labels": { "work": work } },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] },
        });
        let selector = json!({ "matchLabels": { "work": work } });
        let job = format!("j{round}");
        cluster.job(&job, json!({ "manualSelector": true, "selector": selector, "template": template })).await;
        until("the Job has a pod", async || counts(&cluster.job_status(&job).await).0 == 1).await;
        let now = cluster.all_pods().get(&name).await.expect("the orphan is there");
        assert_eq!(now.metadata.uid, made.metadata.uid);
        assert!(now.metadata.deletion_timestamp.is_none(), "round {round}: it was adopted, not killed");
        assert!(is_tracked(&now) && now.metadata.owner_references.is_some());
    }
    cluster.stop().await;
}
