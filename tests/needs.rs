//! Pods that wait for what they need, with pods that really run.

use crate::harness::{Kubectl, Version, eventually};

/// A Deployment of one pod of the machine's own programs, with its Service.
fn app(name: &str, needs: &str, script: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 80}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata:
      labels: {{app: {name}}}
      annotations: {{{needs}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [sh, -c, {script:?}]
"#
    )
}

fn needs(text: &str) -> String {
    format!("mainstay.dev/needs: {text:?}")
}

fn condition(k: &Kubectl, app: &str, type_: &str, field: &str) -> String {
    k.value(&format!("pods -l app={app}"), &format!("{{.items[*].status.conditions[?(@.type==\"{type_}\")].{field}}}"))
}

fn until_condition(k: &Kubectl, app: &str, type_: &str, status: &str) {
    eventually(&format!("{type_} of {app} is {status}"), || {
        (condition(k, app, type_, "status") == status).then_some(())
    });
}

fn restarts(k: &Kubectl, app: &str) -> String {
    k.value(&format!("pods -l app={app}"), "{.items[0].status.containerStatuses[0].restartCount}")
}

#[test]
fn a_pod_waits_without_failing_until_the_service_it_needs_is_ready() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&app("web", &needs("db >= 1 ready keep"), "sleep 1000"));
    until_condition(&k, "web", "DependenciesMet", "False");
    assert_eq!(condition(&k, "web", "DependenciesMet", "reason"), "Waiting");
    let message = condition(&k, "web", "DependenciesMet", "message");
    assert!(message.starts_with("db: no such Service (since "), "{message}");
    assert_eq!(condition(&k, "web", "PodReadyToStartContainers", "status"), "True", "all but its containers is ready");
    eventually("the progress of its Deployment says so", || {
        let path = "{.status.conditions[?(@.type==\"Progressing\")].message}";
        k.value("deployment web", path).contains("Waiting: 1 pod waits for needs: db: no such Service").then_some(())
    });
    let waiting = k.value("pods -l app=web", "{.items[0].status.containerStatuses[0].state.waiting.reason}");
    assert_eq!(waiting, "WaitingForDependencies");
    assert!(k.ok("get pods -l app=web").contains("WaitingForDependencies"));

    k.create(&app("db", "", "sleep 1000"));
    until_condition(&k, "web", "Ready", "True");
    assert_eq!((condition(&k, "web", "DependenciesMet", "status"), restarts(&k, "web")), ("True".into(), "0".into()));

    k.ok("scale deployment db --replicas=0");
    until_condition(&k, "web", "Ready", "False");
    assert_eq!(condition(&k, "web", "Ready", "reason"), "DependenciesNotMet");
    assert_eq!(restarts(&k, "web"), "0", "the need is kept by being unready, not by restarts");
    k.ok("scale deployment db --replicas=1");
    until_condition(&k, "web", "Ready", "True");
    assert_eq!(restarts(&k, "web"), "0");
    eventually("events tell of the wait and its end", || {
        let events = k.ok("get events");
        (events.contains("WaitingForDependencies") && events.contains("DependenciesMet")).then_some(())
    });
}

#[test]
fn needs_of_jobs_and_objects_are_met_in_their_order() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&app("api", &needs("job/migrate, config/zones"), "sleep 1000"));
    eventually("both are named", || {
        let message = condition(&k, "api", "DependenciesMet", "message");
        let both = message.starts_with("job/migrate: does not exist, configmap/zones: does not exist (since ");
        both.then_some(())
    });
    k.ok("create configmap zones --from-literal=a=b");
    k.create(
        r#"
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec:
  template:
    metadata: {annotations: {mainstay.dev/needs: "db"}}
    spec:
      restartPolicy: Never
      containers: [{name: c, image: host, command: [sh, -c, "exit 0"]}]
"#,
    );
    eventually("only the Job is missing", || {
        let message = condition(&k, "api", "DependenciesMet", "message");
        message.starts_with("job/migrate: is not complete (since ").then_some(())
    });
    let out = k.cluster.mainstay_alone("needs").ok();
    assert!(out.contains("default/job/migrate: 1 of 1 pods wait\n  db >= 1 ready   not met: no such Service"), "{out}");
    let why = k.cluster.mainstay("why", "deployment/api").ok();
    assert!(why.contains("waits for job/migrate, which waits for db, which has no pod"), "{why}");
    k.create(&app("db", "", "sleep 1000"));
    until_condition(&k, "api", "Ready", "True");
    assert_eq!(k.value("job migrate", "{.status.succeeded}"), "1");
}

#[test]
fn a_pod_that_runs_once_fails_when_its_needs_take_too_long() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: once, annotations: {mainstay.dev/needs: "db, within 2s"}}
spec:
  restartPolicy: Never
  containers: [{name: c, image: host, command: [sh, -c, "exit 0"]}]
"#,
    );
    eventually("it failed", || {
        (k.value("pod once", "{.status.phase}/{.status.reason}") == "Failed/DependencyTimeout").then_some(())
    });
    let message = k.value("pod once", "{.status.message}");
    assert!(message.starts_with("The needs of the pod were not met within 2 s: db: no such Service"), "{message}");
}

#[test]
fn two_that_need_each_other_start_by_their_addresses_and_never_by_their_readiness() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&app("lb", &needs("controller addressable"), "sleep 1000"));
    k.create(&app("controller", &needs("lb addressable"), "sleep 1000"));
    k.create(&app("web", &needs("api"), "sleep 1000"));
    let warned = k.run_with("create -f -", &app("api", &needs("web"), "sleep 1000"));
    let warning = "pods that wait for each other to be ready never start: api → web → api";
    assert!(warned.stderr.contains("Warning") && warned.stderr.contains(warning), "{}", warned.stderr);
    for name in ["lb", "controller"] {
        until_condition(&k, name, "Ready", "True");
    }
    until_condition(&k, "web", "mainstay.dev/DependencyCycle", "True");
    assert_eq!(condition(&k, "web", "mainstay.dev/DependencyCycle", "message"), "web → api → web");
    until_condition(&k, "api", "mainstay.dev/DependencyCycle", "True");
    eventually("the node says so too", || {
        (condition(&k, "web", "DependenciesMet", "reason") == "DependencyCycle").then_some(())
    });
    eventually("an event does, too", || k.ok("get events").contains("DependencyCycle").then_some(()));
    k.ok("patch deployment api --type=merge -p '{\"spec\":{\"template\":{\"metadata\":{\"annotations\":{\"mainstay.dev/needs\":\"web addressable\"}}}}}'");
    for name in ["api", "web"] {
        eventually(&format!("{name} is available"), || {
            (k.value(&format!("deployment {name}"), "{.status.availableReplicas}") == "1").then_some(())
        });
    }
}

#[test]
fn needs_that_make_no_sense_are_refused_by_field() {
    let k = Kubectl::with_pods(Version::V1_32);
    for (text, words) in [
        ("db >= 0", "the number must be from 1 to 10000"),
        ("cronjob/x", "which is none of deployment"),
        ("db, within 400h", "from 1s to 168h"),
        ("deployment/bad", "names the workload itself"),
    ] {
        let refused = k.run_with("create -f -", &app("bad", &needs(text), "true"));
        let refused = refused.refused();
        let field = "spec.template.metadata.annotations[mainstay.dev/needs]: Invalid value";
        assert!(refused.contains(field) && refused.contains(words), "{text}: {refused}");
    }
}

#[test]
fn a_restart_of_mainstay_makes_no_pod_unready_that_has_what_it_needs() {
    let mut k = Kubectl::with_pods(Version::V1_32);
    k.create(&app("db", "", "sleep 1000"));
    k.create(&app("web", &needs("db keep"), "sleep 1000"));
    until_condition(&k, "web", "Ready", "True");
    let before = condition(&k, "web", "Ready", "lastTransitionTime");
    // A transition would be noted with another second.
    eventually("a second is over", || {
        let now = jiff::Timestamp::now().strftime("%FT%TZ").to_string();
        (now > before).then_some(())
    });
    k.cluster.kill();
    k.cluster.start_again();
    k.create(&app("later", "", "sleep 1000"));
    until_condition(&k, "later", "Ready", "True");
    assert_eq!(condition(&k, "web", "Ready", "status"), "True");
    assert_eq!(condition(&k, "web", "Ready", "lastTransitionTime"), before, "it was ready all the time");
    assert_eq!(condition(&k, "web", "DependenciesMet", "status"), "True");
}

/// Five apps that need each other, each with what it needs.
const FIVE: [(&str, &str); 5] = [
    ("db", ""),
    ("queue", "db"),
    ("api", "db >= 1 ready, queue keep"),
    ("web", "api, cache.FIVE addressable"),
    ("cache", "web addressable, deployment/queue"),
];

/// All orders of five: 120.
fn orders() -> Vec<[usize; 5]> {
    let mut all = Vec::new();
    for number in 0..120 {
        let (mut left, mut rest) = (vec![0, 1, 2, 3, 4], number);
        all.push([5, 4, 3, 2, 1].map(|count| {
            let next = left.remove(rest % count);
            rest /= count;
            next
        }));
    }
    all
}

/// Five of the orders, or as many as `MAINSTAY_ORDERS` says; who is killed is drawn by `MAINSTAY_SEED`.
#[test]
fn five_apps_end_the_same_whatever_the_order_of_creation_and_whoever_is_killed_meanwhile() {
    let k = Kubectl::with_pods(Version::V1_32);
    let number = |name: &str, stock: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(stock);
    let mut random = fastrand::Rng::with_seed(number("MAINSTAY_SEED", 13));
    let mut orders = orders();
    random.shuffle(&mut orders);
    orders.truncate(usize::try_from(number("MAINSTAY_ORDERS", 5)).expect("a number of orders"));
    for (round, order) in orders.iter().enumerate() {
        let namespace = format!("five-{round}");
        k.ok(&format!("create namespace {namespace}"));
        let order = order.map(|index| FIVE[index]);
        for (name, needed) in order {
            let needed = needed.replace("FIVE", &namespace);
            let annotation = if needed.is_empty() { String::new() } else { needs(&needed) };
            let created = k.run_with(&format!("create -n {namespace} -f -"), &app(name, &annotation, "sleep 1000"));
            assert_eq!(created.code, 0, "{created}");
        }
        for _ in 0..3 {
            let (victim, _) = FIVE[random.usize(..FIVE.len())];
            k.ok(&format!("delete pod -n {namespace} -l app={victim} --grace-period=0 --force --wait=false"));
            // Whoever is killed next is killed at another stage.
            eventually(&format!("{victim} has another pod"), || {
                let phases = k.value(&format!("pods -n {namespace} -l app={victim}"), "{.items[*].status.phase}");
                (!phases.is_empty()).then_some(())
            });
        }
        let order: Vec<&str> = order.iter().map(|(name, _)| *name).collect();
        eventually(&format!("all are ready in round {round}, created as {order:?}"), || {
            let ready = k.value(&format!("deployments -n {namespace}"), "{.items[*].status.readyReplicas}");
            (ready == "1 1 1 1 1").then_some(())
        });
        let restarts = k.value(&format!("pods -n {namespace}"), "{.items[*].status.containerStatuses[0].restartCount}");
        assert!(restarts.split_whitespace().all(|count| count == "0"), "waiting is not failing: {order:?}: {restarts}");
        let cycles = k.ok(&format!("get events -n {namespace}"));
        assert!(!cycles.contains("DependencyCycle"), "{cycles}");
        k.ok(&format!("delete namespace {namespace} --wait=false"));
    }
}
