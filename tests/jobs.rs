//! Jobs and CronJobs, with pods that really run.

use std::collections::BTreeSet;

use serde_json::json;

use crate::harness::{Kubectl, Version, eventually};

/// A Job of the machine's own programs.
fn job(name: &str, script: &str, more: &str) -> String {
    format!(
        "
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  {more}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{{name: c, image: host, command: [sh, -c, {script:?}]}}]
"
    )
}

fn condition(k: &Kubectl, job: &str, type_: &str) -> String {
    let path = format!("{{.status.conditions[?(@.type==\"{type_}\")].reason}}");
    eventually(&format!("{job} is {type_}"), || Some(k.value(&format!("job {job}"), &path)).filter(|r| !r.is_empty()))
}

#[test]
fn jobs_run_to_their_ends() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&job("parallel", "exit 0", "parallelism: 3\n  completions: 5\n  ttlSecondsAfterFinished: 1000"));
    let shared = tempfile::tempdir().expect("a directory");
    let script = format!("echo $(hostname) $JOB_COMPLETION_INDEX >> {}/said", shared.path().display());
    let mount = format!(
        "      volumes: [{{name: d, hostPath: {{path: {0}}}}}]\n      containers: [{{name: c, image: host, volumeMounts: [{{name: d, mountPath: {0}}}], ",
        shared.path().display()
    );
    let indexed = job("indexed", &script, "parallelism: 2\n  completions: 4\n  completionMode: Indexed");
    k.create(&indexed.replace("      containers: [{name: c, image: host, ", &mount));
    k.create(&job("failing", "exit 3", "backoffLimit: 0"));
    let policy = "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [42]}}]}";
    k.create(&job("poisoned", "exit 42", policy));
    k.create(&job("late", "sleep 1000", "activeDeadlineSeconds: 1"));

    assert_eq!(condition(&k, "parallel", "Complete"), "CompletionsReached");
    assert_eq!(k.value("job parallel", "{.status.succeeded}/{.status.failed}/{.status.active}"), "5//");
    assert!(k.ok("get job parallel").contains("Complete   5/5"));
    assert!(k.ok("wait --for=condition=complete job/parallel --timeout=5s").contains("condition met"));

    assert_eq!(condition(&k, "indexed", "Complete"), "CompletionsReached");
    assert_eq!(k.value("job indexed", "{.status.completedIndexes}"), "0-3");
    let text = std::fs::read_to_string(shared.path().join("said")).expect("what the pods wrote");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "each index once: {text}");
    let expected: BTreeSet<String> = (0..4).map(|i| format!("indexed-{i} {i}")).collect();
    assert_eq!(lines.iter().map(|line| (*line).to_owned()).collect::<BTreeSet<_>>(), expected);

    assert_eq!(condition(&k, "failing", "Failed"), "BackoffLimitExceeded");
    assert_eq!(k.value("job failing", "{.status.failed}"), "1");
    assert_eq!(condition(&k, "poisoned", "Failed"), "PodFailurePolicy");
    let message = k.value("job poisoned", "{.status.conditions[?(@.type==\"Failed\")].message}");
    assert!(message.ends_with("failed with exit code 42 matching FailJob rule at index 0"), "{message}");
    assert_eq!(condition(&k, "late", "Failed"), "DeadlineExceeded");
    eventually("what it ran is stopped", || k.ok("get pods -l job-name=late -o name").is_empty().then_some(()));

    k.ok("patch job parallel -p '{\"spec\":{\"ttlSecondsAfterFinished\":0}}'");
    eventually("it does not stay", || (k.ok("get job parallel --ignore-not-found")).is_empty().then_some(()));
    eventually("nor do its pods", || k.ok("get pods -l job-name=parallel -o name").is_empty().then_some(()));
    for reason in ["SuccessfulCreate", "Completed", "BackoffLimitExceeded", "PodFailurePolicy", "DeadlineExceeded"] {
        eventually(&format!("an event tells of {reason}"), || {
            k.ok("get events --field-selector involvedObject.kind=Job").contains(reason).then_some(())
        });
    }
}

#[test]
fn a_suspended_job_stops_and_goes_on_through_a_restart_of_the_server() {
    let mut k = Kubectl::with_pods(Version::V1_32);
    k.create(&job("j", "sleep 1000", "parallelism: 2\n  completions: 2"));
    let ready = |k: &Kubectl| k.value("job j", "{.status.active}/{.status.ready}");
    eventually("both run", || (ready(&k) == "2/2").then_some(()));
    k.ok("patch job j -p '{\"spec\":{\"suspend\":true}}'");
    assert_eq!(condition(&k, "j", "Suspended"), "JobSuspended");
    eventually("its pods are gone", || k.ok("get pods -l job-name=j -o name").is_empty().then_some(()));
    assert_eq!(k.value("job j", "{.status.failed}"), "", "stopping is no failure");
    k.cluster.kill();
    k.cluster.start_again();
    k.ok("patch job j -p '{\"spec\":{\"suspend\":false}}'");
    eventually("both run again", || (ready(&k) == "2/2").then_some(()));
    // Deleted behind its back: counted as failed once, and waited for before it is replaced.
    let pod = k.value("pods -l job-name=j", "{.items[0].metadata.name}");
    k.ok(&format!("delete pod {pod} --wait=false"));
    eventually("it is counted", || (k.value("job j", "{.status.failed}") == "1").then_some(()));
    k.ok("delete job j");
    eventually("nothing is left", || k.ok("get pods -l job-name=j -o name").is_empty().then_some(()));
}

#[test]
fn cron_jobs_start_jobs_and_people_do_so_by_hand() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create cronjob tick --image=host --schedule='0 0 1 1 *' -- true");
    k.ok("create job by-hand --from=cronjob/tick");
    assert_eq!(condition(&k, "by-hand", "Complete"), "CompletionsReached");
    assert_eq!(k.value("job by-hand", "{.metadata.annotations.cronjob\\.kubernetes\\.io/instantiate}"), "manual");
    assert_eq!(k.value("cronjob tick", "{.status.lastScheduleTime}"), "", "that was none of its own");

    // As if it had last run a year and more ago.
    let path = "/apis/batch/v1/namespaces/default/cronjobs/tick";
    let mut object = k.json("get cronjob tick -o json");
    let last = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * 367);
    object["status"] = json!({ "lastScheduleTime": last.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() });
    let output = k.run_with(&format!("replace --raw {path}/status -f -"), &object.to_string());
    assert!(output.code == 0, "{}", output.stderr);
    let name = eventually("a job is started", || {
        let names = k.value("jobs", "{.items[*].metadata.name}");
        names.split_whitespace().find(|name| name.starts_with("tick-")).map(str::to_owned)
    });
    let minutes: i64 = name.trim_start_matches("tick-").parse().expect("minutes");
    assert_eq!(minutes % 60, 0, "{name}");
    assert_eq!(condition(&k, &name, "Complete"), "CompletionsReached");
    eventually("its success is on record", || {
        Some(k.value("cronjob tick", "{.status.lastSuccessfulTime}")).filter(|time| !time.is_empty())
    });
    assert!(k.ok("get cronjob tick").contains("0 0 1 1 *"));
    eventually("events tell both", || {
        let events = k.ok("get events --field-selector involvedObject.name=tick");
        (events.contains("SuccessfulCreate") && events.contains("SawCompletedJob")).then_some(())
    });
    let bad = k.json("get cronjob tick -o json");
    let bad = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "bad" },
        "spec": { "schedule": "61 * * * *", "jobTemplate": bad["spec"]["jobTemplate"] },
    });
    let refused = k.run_with("create -f -", &bad.to_string());
    let expected = r#"spec.schedule: Invalid value: "61 * * * *": end of range (61) above maximum (59)"#;
    assert!(refused.code != 0 && refused.stderr.contains(expected), "{}", refused.stderr);
}
