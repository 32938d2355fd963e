//! CronJobs start Jobs when they are due, and finished Jobs do not stay for ever.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

impl Cluster {
    fn cron_jobs(&self) -> Api<CronJob> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A CronJob that is due: the last time it started something was two hours ago.
    async fn cron_job(&self, name: &str, spec: Value) {
        let mut cron = json!({
            "metadata": { "name": name },
            "spec": {
                "schedule": "0 * * * *", "suspend": true,
                "jobTemplate": {
                    "metadata": { "labels": { "of": name }, "annotations": { "note": "kept" } },
                    "spec": { "template": { "spec": {
                        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
                    } } },
                },
            },
        });
        cron["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let cron = serde_json::from_value(cron).unwrap();
        self.cron_jobs().create(&PostParams::default(), &cron).await.expect("create a cron job");
        self.comes_due(name).await;
    }

    /// The last start is made to be two hours ago, and it is resumed.
    async fn comes_due(&self, name: &str) {
        let last = (Timestamp::now() - SignedDuration::from_hours(2)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({ "status": { "lastScheduleTime": last } });
        let patched = self.cron_jobs().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await;
        patched.expect("change a status");
        self.change_cron_job(name, json!({ "spec": { "suspend": false } })).await;
    }

    /// As if it had started a Job long ago.
    async fn runs_already(&self, cron: &str) -> String {
        let uid = self.cron_jobs().get(cron).await.unwrap().metadata.uid;
        let name = format!("{cron}-1");
        let job = json!({
            "metadata": {
                "name": name, "labels": { "of": cron }, "annotations": { SCHEDULED: "2020-01-01T00:00:00Z" },
                "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "CronJob", "name": cron, "uid": uid, "controller": true }],
            },
            "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } } },
        });
        self.jobs().create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.expect("create a job");
        name
    }

    async fn change_cron_job(&self, name: &str, change: Value) {
        let patched = self.cron_jobs().patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        patched.expect("change a cron job");
    }

    async fn jobs_of(&self, cron: &str) -> Vec<Job> {
        self.jobs().list(&ListParams::default().labels(&format!("of={cron}"))).await.unwrap().items
    }

    async fn has_jobs(&self, cron: &str, count: usize) -> Vec<Job> {
        until(&format!("{cron} has {count} jobs"), async || self.jobs_of(cron).await.len() == count).await;
        self.jobs_of(cron).await
    }

    async fn job_ends(&self, name: &str) {
        until("it has started", async || self.job_status(name).await.start_time.is_some()).await;
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": now });
        let conditions = json!([condition("SuccessCriteriaMet"), condition("Complete")]);
        let status = json!({ "status": { "completionTime": now, "conditions": conditions } });
        let patched = self.jobs().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await;
        patched.expect("end a job");
    }
}

#[tokio::test]
pub async fn a_job_is_started_when_it_is_due_and_not_twice() {
    let cluster = Cluster::start().await;
    cluster.cron_job("c", json!({ "timeZone": "Asia/Kolkata", "schedule": "30 * * * *" })).await;
    let job = cluster.has_jobs("c", 1).await.remove(0);
    let annotations = job.metadata.annotations.unwrap();
    assert_eq!(annotations["note"], "kept");
    let scheduled = &annotations[SCHEDULED];
    assert!(scheduled.ends_with(":30:00+05:30"), "{scheduled}");
    let tick: Timestamp = scheduled.parse().unwrap();
    assert_eq!(job.metadata.name.as_deref(), Some(format!("c-{}", tick.as_second() / 60).as_str()));
    assert_eq!(job.metadata.owner_references.unwrap()[0].controller, Some(true));
    until("it is on record", async || {
        let status = cluster.cron_jobs().get("c").await.unwrap().status.unwrap();
        let active = status.active.unwrap_or_default();
        active.len() == 1 && active[0].uid == job.metadata.uid && status.last_schedule_time.unwrap().0 == tick
    })
    .await;
    let name = job.metadata.name.unwrap();
    cluster.job_ends(&name).await;
    until("its end is on record", async || {
        let status = cluster.cron_jobs().get("c").await.unwrap().status.unwrap();
        status.active.is_none() && status.last_successful_time.is_some()
    })
    .await;
    cluster.jobs().delete(&name, &DeleteParams::background()).await.unwrap();
    cluster.change_cron_job("c", json!({ "spec": { "failedJobsHistoryLimit": 2 } })).await;
    for reason in ["SuccessfulCreate", "SawCompletedJob"] {
        cluster.has_event("c", reason).await;
    }
    assert!(cluster.jobs_of("c").await.is_empty(), "this time has been");
    cluster.stop().await;
}

#[tokio::test]
pub async fn what_still_runs_is_waited_for_or_replaced() {
    let cluster = Cluster::start().await;
    for policy in ["Forbid", "Replace"] {
        let name = policy.to_lowercase();
        cluster.cron_job(&name, json!({ "concurrencyPolicy": policy, "schedule": "0 0 1 1 *" })).await;
        let job = cluster.runs_already(&name).await;
        let first = cluster.jobs().get(&job).await.unwrap();
        until("it is on record", async || {
            let status = cluster.cron_jobs().get(&name).await.unwrap().status.unwrap();
            status.active.is_some_and(|active| active[0].name.as_deref() == Some(&job))
        })
        .await;
        cluster.change_cron_job(&name, json!({ "spec": { "schedule": "0 * * * *" } })).await;
        if policy == "Forbid" {
            cluster.has_event(&name, "JobAlreadyActive").await;
            assert_eq!(cluster.jobs_of(&name).await.len(), 1);
            cluster.job_ends(&job).await;
            until("the next one is started", async || cluster.jobs_of(&name).await.len() == 2).await;
        } else {
            until("another is in its place", async || {
                let jobs = cluster.jobs_of(&name).await;
                jobs.len() == 1 && jobs[0].metadata.uid != first.metadata.uid
            })
            .await;
            cluster.has_event(&name, "SuccessfulDelete").await;
        }
    }
    cluster.stop().await;
}

#[tokio::test]
async fn the_history_is_bounded() {
    let cluster = Cluster::start().await;
    cluster.cron_job("c", json!({ "successfulJobsHistoryLimit": 0 })).await;
    let job = cluster.has_jobs("c", 1).await.remove(0).metadata.name.unwrap();
    cluster.job_ends(&job).await;
    cluster.has_jobs("c", 0).await;
    let status = cluster.cron_jobs().get("c").await.unwrap().status.unwrap();
    assert!(status.last_successful_time.is_some() && status.active.is_none());
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_finished_job_is_deleted_with_its_pods_after_its_time() {
    let cluster = Cluster::start().await;
    cluster.job("gone", json!({ "ttlSecondsAfterFinished": 1, "completions": 0 })).await;
    cluster.job("kept", json!({ "ttlSecondsAfterFinished": 1000, "completions": 0 })).await;
    until("it is gone", async || cluster.jobs().get_opt("gone").await.unwrap().is_none()).await;
    assert!(cluster.jobs().get_opt("kept").await.unwrap().is_some());
    cluster.change_job("kept", json!({ "spec": { "ttlSecondsAfterFinished": 0 } })).await;
    until("now, too", async || cluster.jobs().get_opt("kept").await.unwrap().is_none()).await;
    cluster.stop().await;
}
