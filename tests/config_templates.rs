//! Configuration that is rendered from the cluster and reaches pods that really run.

use crate::harness::{Kubectl, Version, eventually};

/// A Deployment whose pods read the output `zones`, and print it when they get a SIGHUP.
fn web(replicas: usize) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [sh, -c, "trap 'echo reload: $(cat /etc/zones/zones.conf)' HUP; echo started; while :; do sleep 0.2; done"]
        volumeMounts: [{{name: zones, mountPath: /etc/zones}}]
      volumes: [{{name: zones, configMap: {{name: zones}}}}]
"#
    )
}

fn pods(k: &Kubectl) -> Vec<String> {
    k.value("pods -l app=web", "{.items[*].metadata.name}").split_whitespace().map(str::to_owned).collect()
}

fn until_ready(k: &Kubectl, count: usize) {
    eventually("all pods are ready", || {
        (k.value("deployment web", "{.status.readyReplicas}") == count.to_string()).then_some(())
    });
}

fn current(k: &Kubectl) -> (String, String) {
    let field = |field: &str| {
        k.value("configtemplate zones", &format!("{{.status.conditions[?(@.type==\"Current\")].{field}}}"))
    };
    (field("reason"), field("message"))
}

fn until_reason(k: &Kubectl, reason: &str) {
    eventually(&format!("the template is {reason}"), || (current(k).0 == reason).then_some(()));
}

/// What every pod reads.
fn files(k: &Kubectl) -> Vec<String> {
    pods(k)
        .iter()
        .map(|pod| k.run(&format!("exec {pod} -- cat /etc/zones/zones.conf")).stdout.trim().to_owned())
        .collect()
}

fn until_files(k: &Kubectl, content: &str) {
    eventually(&format!("all pods read {content:?}"), || {
        let files = files(k);
        (!files.is_empty() && files.iter().all(|file| file == content)).then_some(())
    });
}

#[test]
fn endpoints_reach_a_mounted_file_and_then_a_signal_arrives() {
    let k = Kubectl::with_pods(Version::V1_32);
    let endpoints = |addresses: &str| {
        format!(
            "apiVersion: v1\nkind: Endpoints\nmetadata: {{name: db}}\nsubsets: [{{addresses: [{addresses}], ports: [{{port: 3306}}]}}]\n"
        )
    };
    k.create("apiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec: {ports: [{port: 3306}]}\n");
    k.create(&endpoints("{ip: 10.200.0.1}"));
    k.create(&web(2));
    k.create(
        r#"
apiVersion: mainstay.dev/v1
kind: ConfigTemplate
metadata: {name: zones}
spec:
  inputs: [{name: db, service: {name: db}}]
  template: "{{ db.ready|join(' ') }}"
  output: {configMap: {name: zones, key: zones.conf}}
  consumers:
  - workload: {kind: Deployment, name: web}
    onChange: {signal: {signal: SIGHUP}}
  rollout: {waves: [1], maxUnavailable: 1}
"#,
    );
    until_ready(&k, 2);
    until_reason(&k, "Current");
    until_files(&k, "10.200.0.1");
    k.apply(&endpoints("{ip: 10.200.0.1}, {ip: 10.200.0.2}"));
    eventually("both were signalled once their files had changed", || {
        let logs: Vec<String> = pods(&k).iter().map(|pod| k.ok(&format!("logs {pod}"))).collect();
        logs.iter().all(|log| log.contains("reload: 10.200.0.1 10.200.0.2")).then_some(())
    });
    until_reason(&k, "Current");
    until_files(&k, "10.200.0.1 10.200.0.2");
    assert_eq!(k.value("configmap zones", "{.data.zones\\.conf}"), "10.200.0.1 10.200.0.2");
    let restarts = k.value("pods -l app=web", "{.items[*].status.containerStatuses[0].restartCount}");
    assert_eq!((restarts.as_str(), pods(&k).len()), ("0 0", 2), "nobody was restarted");
    let table = k.ok("get configtemplates");
    assert!(table.contains("configmap/zones[zones.conf]") && table.contains("2/2"), "{table}");
    let history = k.cluster.mainstay_with(&["config", "history", "zones"]).ok();
    assert!(history.lines().count() == 3 && history.contains("Succeeded  db"), "{history}");
}

#[test]
fn a_bad_value_reaches_one_replica_is_taken_back_and_says_so_and_undo_goes_back() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&web(3));
    k.ok("create configmap settings --from-literal=mode=good");
    k.create(
        r#"
apiVersion: mainstay.dev/v1
kind: ConfigTemplate
metadata: {name: zones}
spec:
  inputs: [{name: settings, configMap: {name: settings}}]
  template: "mode={{ settings.mode }}"
  output: {configMap: {name: zones, key: zones.conf}}
  consumers:
  - selector: {matchLabels: {app: web}}
    onChange: {exec: {command: [sh, -c, "cat /etc/zones/zones.conf >> /tmp/reloads; ! grep bad /etc/zones/zones.conf"]}}
  validate: {command: [sh, -c, "! grep invalid"], timeoutSeconds: 5}
  rollout: {waves: [1], maxUnavailable: 1}
"#,
    );
    until_ready(&k, 3);
    until_reason(&k, "Current");
    until_files(&k, "mode=good");
    let set =
        |mode: &str| k.ok(&format!(r#"patch configmap settings --type=merge -p '{{"data":{{"mode":"{mode}"}}}}'"#));
    let config = |arguments: &[&str]| k.cluster.mainstay_with(&[&["config"], arguments].concat());

    set("bad");
    until_reason(&k, "RolledBack");
    let (_, message) = current(&k);
    assert!(message.contains("web-") && message.contains("mode=bad"), "{message}");
    until_files(&k, "mode=good");
    let reloads: Vec<String> =
        pods(&k).iter().map(|pod| k.run(&format!("exec {pod} -- cat /tmp/reloads")).stdout).collect();
    assert_eq!(reloads.iter().filter(|reloads| reloads.contains("mode=bad")).count(), 1, "{reloads:?}");
    assert_eq!(k.value("configmap zones", "{.data.zones\\.conf}"), "mode=good", "new pods never have it");
    eventually("an event says so", || k.ok("get events").contains("ConfigurationRolledBack").then_some(()));
    let status = config(&["status", "zones"]).ok();
    assert!(status.contains("RolledBack") && status.contains("rejected:"), "{status}");

    set("invalid");
    until_reason(&k, "ValidationFailed");
    until_files(&k, "mode=good");

    set("better");
    until_files(&k, "mode=better");
    until_reason(&k, "Current");
    config(&["undo", "zones"]).ok();
    until_files(&k, "mode=good");
    until_reason(&k, "Pinned");
    set("best");
    config(&["resume", "zones"]).ok();
    until_files(&k, "mode=best");
    config(&["pause", "zones"]).ok();
    set("paused");
    until_reason(&k, "Paused");
    assert_eq!(files(&k), ["mode=best"; 3]);
    assert_eq!(config(&["undo", "zones", "--to", "0000000000"]).code, 1);
    assert!(config(&["status", "nothing"]).refused().contains("there is no ConfigTemplate nothing"));
}

#[test]
fn templates_that_take_all_memory_or_never_end_harm_nobody_and_bad_ones_are_refused_with_their_line() {
    let k = Kubectl::start(Version::V1_32);
    let template = |name: &str, text: &str| {
        format!(
            "apiVersion: mainstay.dev/v1\nkind: ConfigTemplate\nmetadata: {{name: {name}}}\nspec:\n  inputs: []\n  template: {text:?}\n  \
             output: {{configMap: {{name: {name}, key: k}}}}\n"
        )
    };
    let doubling = "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% set c = b %}{% endfor %}{% endfor %}";
    for (name, text, expected) in [
        ("doubling", doubling, "spec.template: takes more than 256 MiB of memory"),
        ("endless", endless, "takes more than 5000000 steps"),
        ("unknown", "a\n{{ nothing }}", "spec.template: line 2: undefined value in \"{{ nothing }}\""),
    ] {
        k.create(&template(name, text));
        eventually(&format!("template {name} says what is wrong"), || {
            let path = "{.status.conditions[?(@.type==\"Rendered\")].message}";
            k.value(&format!("configtemplate {name}"), path).contains(expected).then_some(())
        });
    }
    let refused = k.run_with("create -f -", &template("bad", "a\n{% for x %}"));
    assert!(
        refused.code != 0 && refused.stderr.contains("spec.template: Invalid value: line 2: syntax error"),
        "{refused}"
    );
    k.create(&template("good", "fine"));
    eventually("others are rendered all the same", || (k.value("configmap good", "{.data.k}") == "fine").then_some(()));
}

#[test]
fn a_validate_command_that_hangs_is_ended_and_the_last_good_version_stays() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&web(1));
    k.ok("create configmap settings --from-literal=mode=good");
    k.create(
        r#"
apiVersion: mainstay.dev/v1
kind: ConfigTemplate
metadata: {name: zones}
spec:
  inputs: [{name: settings, configMap: {name: settings}}]
  template: "mode={{ settings.mode }}"
  output: {configMap: {name: zones, key: zones.conf}}
  consumers: [{workload: {kind: Deployment, name: web}}]
  validate: {command: [sh, -c, "if grep -q hang; then sleep 1000; fi"], timeoutSeconds: 2}
"#,
    );
    until_ready(&k, 1);
    until_reason(&k, "Current");
    until_files(&k, "mode=good");
    let set = |mode: &str| {
        k.ok(&format!(r#"patch configmap settings --type=merge -p '{{"data":{{"mode":"{mode}"}}}}'"#));
    };
    set("hang");
    until_reason(&k, "ValidationFailed");
    let (_, message) = current(&k);
    assert!(message.contains("validate in pod web-") && message.contains("not finished after 2 s"), "{message}");
    assert_eq!(files(&k), ["mode=good"]);
    set("better");
    until_files(&k, "mode=better");
    until_reason(&k, "Current");
}

#[test]
fn consumers_are_told_by_a_request_and_others_are_restarted_and_begin_with_the_version() {
    let k = Kubectl::with_pods(Version::V1_32);
    let server = "import http.server as h, sys\nclass R(h.BaseHTTPRequestHandler):\n  def do_POST(self):\n    \
                  print('told', self.path, open('/etc/zones/zones.conf').read(), flush=True); self.send_response(204); self.end_headers()\n\
                  h.ThreadingHTTPServer(('', 8080), R).serve_forever()";
    k.ok("create configmap settings --from-literal=mode=one");
    k.create(&format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [python3, -c, {server:?}]
        readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
        volumeMounts: [{{name: zones, mountPath: /etc/zones}}]
      volumes: [{{name: zones, configMap: {{name: zones}}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: env}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: env}}}}
  template:
    metadata: {{labels: {{app: env}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [sh, -c, "trap exit TERM; echo begun with $ZONES; while :; do sleep 0.2; done"]
        env: [{{name: ZONES, valueFrom: {{configMapKeyRef: {{name: zones, key: zones.conf}}}}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: env}}
spec: {{maxUnavailable: 1, selector: {{matchLabels: {{app: env}}}}}}
---
apiVersion: mainstay.dev/v1
kind: ConfigTemplate
metadata: {{name: zones}}
spec:
  inputs: [{{name: settings, configMap: {{name: settings}}}}]
  template: "mode={{{{ settings.mode }}}}"
  output: {{configMap: {{name: zones, key: zones.conf}}}}
  consumers:
  - workload: {{kind: Deployment, name: web}}
    onChange: {{http: {{port: 8080, path: /reload}}}}
  - workload: {{kind: Deployment, name: env}}
    onChange: {{restart: {{}}}}
  rollout: {{maxUnavailable: 1}}
"#
    ));
    let until_all_ready = || {
        eventually("all pods are ready", || {
            let ready = ["web", "env"].map(|name| k.value(&format!("deployment {name}"), "{.status.readyReplicas}"));
            (ready == ["2", "2"]).then_some(())
        });
    };
    until_all_ready();
    until_reason(&k, "Current");
    let names = |app: &str| -> Vec<String> {
        let names = k.value(&format!("pods -l app={app}"), "{.items[*].metadata.name}");
        names.split_whitespace().map(str::to_owned).collect()
    };
    let before = names("env");
    k.ok(r#"patch configmap settings --type=merge -p '{"data":{"mode":"two"}}'"#);
    eventually("those with a server were told once each", || {
        let logs: Vec<String> = names("web").iter().map(|pod| k.ok(&format!("logs {pod}"))).collect();
        let counts: Vec<usize> = logs.iter().map(|log| log.matches("told /reload mode=two").count()).collect();
        (counts == [1, 1]).then_some(())
    });
    eventually("the others were replaced, and began with the version", || {
        let after = names("env");
        let logs: Vec<String> = after.iter().map(|pod| k.run(&format!("logs {pod}")).stdout).collect();
        let begun = logs.iter().filter(|log| log.trim() == "begun with mode=two").count();
        (after.len() == 2 && begun == 2 && after.iter().all(|pod| !before.contains(pod))).then_some(())
    });
    until_reason(&k, "Current");
    until_all_ready();
    let restarts = k.value("pods", "{.items[*].status.containerStatuses[0].restartCount}");
    assert_eq!(restarts, "0 0 0 0", "none of it counts as a failure");
}
