//! `kubectl describe`, `explain` and field validation: what people read when they wonder.

use crate::{harness::Kubectl, with_each_kubectl};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: p}, annotations: {note: hi}}
spec:
  containers:
  - name: c
    image: nginx
    ports: [{containerPort: 80}]
    resources: {requests: {cpu: 100m}, limits: {cpu: 200m, memory: 64Mi}}
    livenessProbe: {httpGet: {path: /healthz, port: 80}}
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, emptyDir: {}}]
";

const OTHERS: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {capacity: {cpu: '4', memory: 8Gi, pods: '110'}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i}
spec: {rules: [{host: example.org, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: cron}
spec: {schedule: '@daily', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: h}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: b}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
";

/// `describe` says all of these.
#[track_caller]
fn says(k: &Kubectl, what: &str, parts: &[&str]) {
    let output = k.ok(&format!("describe {what}"));
    let spaced = output.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(spaced.contains(part), "{part:?} is not in what describe {what} says:\n{output}");
    }
}

fn common_kinds_are_described(k: &Kubectl) {
    k.apply(POD);
    k.apply(OTHERS);
    k.ok("create deployment web --image=nginx");
    k.ok("expose deployment web --port=80");
    k.ok("create configmap c --from-literal=key=value");
    k.ok("create secret generic s --from-literal=k=12345");
    says(
        k,
        "pod p",
        &[
            "Name: p",
            "Labels: app=p",
            "Annotations: note: hi",
            "Status: Pending",
            "Image: nginx",
            "cpu: 200m",
            "Liveness: http-get http://:80/healthz",
            "KEY: <set to the key 'k' in secret 's'>",
            "/v from v (rw)",
            "Type: EmptyDir",
            "QoS Class: Burstable",
        ],
    );
    says(
        k,
        "deployment web",
        &[
            "Selector: app=web",
            "Replicas: 1 desired",
            "StrategyType: RollingUpdate",
            "25% max unavailable, 25% max surge",
            "Image: nginx",
        ],
    );
    says(k, "service web", &["Type: ClusterIP", "Selector: app=web", "Port: <unset> 80/TCP", "Session Affinity: None"]);
    says(k, "node node-1", &["Name: node-1", "Taints:", "cpu: 4", "memory: 8Gi"]);
    says(k, "configmap c", &["key: ---- value"]);
    says(k, "secret s", &["Type: Opaque", "k: 5 bytes"]);
    says(k, "pvc claim", &["Status: Pending", "VolumeMode: Filesystem"]);
    says(k, "job job", &["Parallelism: 1", "Completions: 1", "Image: x"]);
    says(k, "ingress i", &["example.org", "/ web:80"]);
    says(k, "namespace default", &["Name: default", "Status: Active", "No resource quota."]);
    if k.is_recent() {
        says(k, "cronjob cron", &["Schedule: @daily", "Concurrency Policy: Allow", "Successful Job History Limit: 3"]);
        says(
            k,
            "hpa h",
            &[
                "Reference: Deployment/web",
                "resource cpu on pods (as a percentage of request): <unknown> / 50%",
                "Max replicas: 3",
            ],
        );
        says(k, "pdb b", &["Min available: 1", "Selector: app=web"]);
    }
}

fn fields_are_explained(k: &Kubectl) {
    let pods = k.ok("explain pods");
    assert!(pods.contains("KIND:") && pods.contains("VERSION:") && pods.contains("spec"), "{pods}");
    let template = k.ok("explain deployment.spec.template");
    assert!(template.contains("PodTemplateSpec") && template.contains("metadata"), "{template}");
    let probe = k.ok("explain pod.spec.containers.livenessProbe.httpGet.port");
    assert!(probe.to_lowercase().contains("name or number of the port"), "{probe}");
    let all = k.ok("explain deployment --recursive");
    assert!(
        all.contains("revisionHistoryLimit") && all.contains("matchLabels") && all.lines().count() > 500,
        "{}",
        all.lines().count()
    );
    let old = k.ok("explain hpa --api-version=autoscaling/v1 --recursive");
    assert!(old.contains("targetCPUUtilizationPercentage"), "{old}");
    let refused = k.refused("explain pod.spec.wheels");
    assert!(refused.contains("wheels") && refused.contains("does not exist"), "{refused}");
}

fn mistyped_fields_are_noticed(k: &Kubectl) {
    let wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\ncolour: red\n";
    let refused = k.run_with("apply -f -", wrong).refused();
    if k.is_recent() {
        assert!(refused.contains(r#"strict decoding error: unknown field "colour""#), "{refused}");
        let warned = k.run_with("apply --validate=warn -f -", wrong);
        assert_eq!(warned.stderr.trim(), r#"Warning: unknown field "colour""#, "{warned}");
        assert_eq!(warned.ok().trim(), "configmap/c created");
        let silent = k.run_with("apply --validate=ignore -f -", wrong);
        assert_eq!((silent.stderr.as_str(), silent.code), ("", 0), "{silent}");
        let twice = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d"},"data":{},"data":{}}"#;
        let raw = "create --raw /api/v1/namespaces/default/configmaps?fieldValidation=Strict -f -";
        let refused = k.run_with(raw, twice).refused();
        assert!(refused.contains(r#"strict decoding error: duplicate field "data""#), "{refused}");
    } else {
        assert!(refused.contains(r#"error validating data: ValidationError(ConfigMap): unknown field "colour" in io.k8s.api.core.v1.ConfigMap"#), "{refused}");
        assert_eq!(k.run_with("apply --validate=false -f -", wrong).ok().trim(), "configmap/c created");
    }
    let typed = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: many}\n";
    let refused = k.run_with("apply --validate=false -f -", typed).refused();
    assert!(
        refused.contains("Deployment in version \"v1\" cannot be handled as a Deployment")
            && refused.contains("spec.replicas"),
        "{refused}"
    );
}

with_each_kubectl!(common_kinds_are_described, fields_are_explained, mistyped_fields_are_noticed);
