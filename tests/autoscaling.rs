//! HorizontalPodAutoscalers scale what burns CPU up and down, and say what keeps them from it.

use std::path::Path;

use crate::harness::{Kubectl, Version, eventually};

/// A Deployment whose pods use all the CPU they may while `load` is in a directory of the host.
fn burner(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: burner}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: burner}}}}
  template:
    metadata: {{labels: {{app: burner}}}}
    spec:
      terminationGracePeriodSeconds: 0
      volumes: [{{name: d, hostPath: {{path: {directory}}}}}]
      containers:
      - name: c
        image: host
        command: [sh, -c, 'while :; do if [ -e {directory}/load ]; then i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; else sleep 1; fi; done']
        volumeMounts: [{{name: d, mountPath: {directory}}}]
        resources: {{requests: {{cpu: 20m}}, limits: {{cpu: 100m}}}}
"
    )
}

/// Scales `target` between one and three by a metric, without waiting for anything to last.
fn autoscaler(name: &str, target: &str, metric: &str) -> String {
    format!(
        "
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: {name}}}
spec:
  minReplicas: 1
  maxReplicas: 3
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}
  metrics: [{metric}]
  behavior:
    scaleUp: {{stabilizationWindowSeconds: 0}}
    scaleDown: {{stabilizationWindowSeconds: 0}}
"
    )
}

const CPU: &str = "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 100}}}";

fn condition(k: &Kubectl, autoscaler: &str, type_: &str) -> String {
    let path =
        format!("{{range .status.conditions[?(@.type==\"{type_}\")]}}{{.status}} {{.reason}}: {{.message}}{{end}}");
    k.value(&format!("hpa {autoscaler}"), &path)
}

fn has_condition(k: &Kubectl, autoscaler: &str, type_: &str, start: &str) {
    eventually(&format!("{autoscaler}: {type_} {start}"), || {
        condition(k, autoscaler, type_).starts_with(start).then_some(())
    });
}

fn has_replicas(k: &Kubectl, count: &str) {
    eventually(&format!("{count} replicas"), || {
        (k.value("deployment burner", "{.spec.replicas}") == count).then_some(())
    });
}

#[test]
fn load_adds_pods_and_its_end_removes_them() {
    let k = Kubectl::with_pods(Version::V1_32);
    let directory = tempfile::tempdir().expect("a directory");
    let load = directory.path().join("load");
    std::fs::write(&load, "").expect("write the load file");
    k.create(&burner(directory.path()));
    let usage = |k: &Kubectl| -> Vec<u32> {
        let top = k.run("top pod -l app=burner --no-headers").stdout;
        let cpu = |line: &str| line.split_whitespace().nth(1)?.strip_suffix('m')?.parse().ok();
        top.lines().filter_map(cpu).collect()
    };
    eventually("its use is measured", || usage(&k).first().is_some_and(|cpu| *cpu >= 40).then_some(()));
    k.create(&autoscaler("burner", "burner", CPU));
    has_replicas(&k, "3");
    has_condition(&k, "burner", "AbleToScale", "True");
    let active = "True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization";
    has_condition(&k, "burner", "ScalingActive", active);
    has_condition(&k, "burner", "ScalingLimited", "True TooManyReplicas");
    assert!(k.ok("get hpa burner").contains("%/100%"), "its use is shown");
    assert!(!k.value("hpa burner", "{.status.lastScaleTime}").is_empty());
    let described = eventually("the event appears", || {
        let described = k.ok("describe hpa burner");
        described.contains("SuccessfulRescale").then_some(described)
    });
    let reason = "reason: cpu resource utilization (percentage of request) above target";
    assert!(described.contains(reason) && described.contains("horizontal-pod-autoscaler"), "{described}");

    std::fs::remove_file(&load).expect("end the load");
    eventually("they use nothing", || {
        let usage = usage(&k);
        (!usage.is_empty() && usage.iter().all(|cpu| *cpu < 5)).then_some(())
    });
    k.ok("patch hpa burner -p '{\"spec\": {\"maxReplicas\": 4}}'"); // looked at now, and not fifteen seconds later
    has_replicas(&k, "1");
    eventually("why is said", || {
        k.ok("describe hpa burner").contains("reason: All metrics below target").then_some(())
    });
    assert_eq!(
        k.value("horizontalpodautoscalers.v1.autoscaling burner", "{.spec.targetCPUUtilizationPercentage}"),
        "100",
        "as version 1"
    );

    k.ok("scale deployment burner --replicas=0");
    has_condition(&k, "burner", "ScalingActive", "False ScalingDisabled");
    assert_eq!(k.value("deployment burner", "{.spec.replicas}"), "0", "who scales to nothing by hand means it");
}

#[test]
fn what_keeps_an_autoscaler_from_its_work_is_reported() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&autoscaler("lost", "nothing", CPU));
    let missing = "False FailedGetScale: the HPA controller was unable to get the target's current scale: deployments.apps \"nothing\" not found";
    has_condition(&k, "lost", "AbleToScale", missing);

    let directory = tempfile::tempdir().expect("a directory");
    k.create(&burner(directory.path()));
    let pods = "{type: Pods, pods: {metric: {name: rps}, target: {type: AverageValue, averageValue: '1'}}}";
    k.create(&autoscaler("custom", "burner", pods));
    let why = "False FailedGetPodsMetric: the HPA was unable to compute the replica count: unable to get metric rps: unable to fetch metrics from custom metrics API: ";
    has_condition(&k, "custom", "ScalingActive", why);
    k.ok("delete hpa custom");
    let external = "{type: External, external: {metric: {name: queue}, target: {type: Value, value: '1'}}}";
    k.create(&autoscaler("outside", "burner", external));
    has_condition(&k, "outside", "ScalingActive", "False FailedGetExternalMetric: ");
    k.create(&autoscaler("rival", "burner", CPU));
    let both = "pods by selector app=burner are controlled by multiple HPAs: [default/outside, default/rival]";
    has_condition(&k, "rival", "ScalingActive", &format!("False AmbiguousSelector: {both}"));
    let events = k.ok("get events --field-selector involvedObject.kind=HorizontalPodAutoscaler");
    for reason in ["FailedGetScale", "FailedGetPodsMetric", "FailedComputeMetricsReplicas"] {
        assert!(events.contains(reason), "{reason}: {events}");
    }
}
