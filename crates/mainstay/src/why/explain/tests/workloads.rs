use k8s_openapi::api::core::v1::Pod;

use super::*;
use crate::why::{
    explain::{CronJobFacts, PodFacts, WorkloadFacts, explain_cron_job, explain_workload},
    target::WorkloadKind,
};

fn workload(kind: WorkloadKind, spec: Value, status: Value, pods: Vec<Pod>) -> WorkloadFacts {
    let (_, name, _) = kind.resource();
    let object = object(json!({
        "apiVersion": "v1", "kind": name, "metadata": { "name": "web", "namespace": "ns" }, "spec": spec, "status": status,
    }));
    let troubled = pods.iter().filter(|pod| crate::why::explain::is_troubled(pod));
    let troubled = troubled.map(|pod| PodFacts { pod: pod.clone(), ..PodFacts::default() }).collect();
    WorkloadFacts { kind, object, events: vec![], pods, troubled }
}

fn pod(name: &str, ready: bool) -> Pod {
    let ready = if ready { "True" } else { "False" };
    let status = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] });
    let meta = json!({ "name": name, "namespace": "ns" });
    object(json!({ "metadata": meta, "spec": { "containers": [], "nodeName": "n1" }, "status": status }))
}

fn crashed(name: &str) -> Pod {
    let end = json!({ "terminated": { "exitCode": 3, "reason": "Error" } });
    let container = json!({ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": end });
    let status = json!({ "phase": "Failed", "containerStatuses": [container] });
    let meta = json!({ "name": name, "namespace": "ns" });
    object(json!({ "metadata": meta, "spec": { "containers": [], "nodeName": "n1" }, "status": status }))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn headline(facts: &WorkloadFacts) -> String {
    first_line(&explain_workload(facts, now())).to_owned()
}

#[test]
fn the_cause_of_the_first_troubled_pod_is_the_workloads() {
    let pods = vec![pod("web-1", true), pod("web-2", false), pod("web-3", false)];
    let facts = workload(WorkloadKind::Deployment, json!({ "replicas": 3 }), json!({}), pods);
    let text = explain_workload(&facts, now());
    assert_eq!(first_line(&text), "deployment ns/web has 1 of 3 pods ready: pod ns/web-2 runs on n1 for , not ready");
    assert_eq!(text.matches("pod ns/web-3").count(), 1, "the cause alone, of all but the first:\n{text}");
}

#[test]
fn pods_that_cannot_be_created_are_the_headline() {
    let mut facts = workload(WorkloadKind::ReplicaSet, json!({ "replicas": 2 }), json!({}), vec![]);
    facts.events.push(event("FailedCreate", "Error creating: pods \"web-x\" is forbidden: exceeded quota: q", 4));
    let expected =
        "replicaset ns/web has 0 of 2 pods ready: Error creating: pods \"web-x\" is forbidden: exceeded quota: q";
    assert_eq!(headline(&facts), expected);
}

#[test]
fn workloads_that_want_nothing_say_so() {
    let scaled = workload(WorkloadKind::StatefulSet, json!({ "replicas": 0 }), json!({}), vec![]);
    assert_eq!(headline(&scaled), "statefulset ns/web wants no pods: it is scaled to 0");
    let nowhere = workload(WorkloadKind::DaemonSet, json!({}), json!({ "desiredNumberScheduled": 0 }), vec![]);
    assert!(headline(&nowhere).contains("no node matches its node selector"));
    let suspended = workload(WorkloadKind::Job, json!({ "suspend": true }), json!({}), vec![]);
    assert_eq!(headline(&suspended), "job ns/web is suspended");
}

#[test]
fn a_failed_job_names_its_reason_and_how_its_pod_ended() {
    let failed = json!({ "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit" });
    let facts = workload(
        WorkloadKind::Job,
        json!({ "completions": 1 }),
        json!({ "conditions": [failed] }),
        vec![crashed("web-x")],
    );
    assert_eq!(
        headline(&facts),
        "job ns/web failed: BackoffLimitExceeded: Job has reached the specified backoff limit; pod ns/web-x failed: \
         container c ended with exit code 3"
    );
    let complete = json!({ "succeeded": 1, "conditions": [{ "type": "Complete", "status": "True" }] });
    let facts = workload(WorkloadKind::Job, json!({ "completions": 1 }), complete, vec![]);
    assert_eq!(headline(&facts), "job ns/web is complete: 1 of 1 pods succeeded");
}

#[test]
fn a_cron_job_reports_its_last_job() {
    let cron_job = |suspend: bool| {
        object(json!({ "metadata": { "name": "nightly", "namespace": "ns" },
            "spec": { "schedule": "0 3 * * *", "suspend": suspend, "jobTemplate": {} },
            "status": { "lastScheduleTime": "2026-01-01T00:59:00Z" } }))
    };
    let line = |facts: &CronJobFacts| first_line(&explain_cron_job(facts, now())).to_owned();
    let suspended = CronJobFacts { cron_job: cron_job(true), ..CronJobFacts::default() };
    assert_eq!(line(&suspended), "cronjob ns/nightly is suspended; schedule \"0 3 * * *\" in UTC");
    let job = workload(WorkloadKind::Job, json!({ "suspend": true }), json!({}), vec![]);
    let ran = CronJobFacts { cron_job: cron_job(false), last_job: Some(job), ..CronJobFacts::default() };
    let expected =
        "cronjob ns/nightly last started a Job 1m0s ago: job ns/web is suspended; schedule \"0 3 * * *\" in UTC";
    assert_eq!(line(&ran), expected);
}
