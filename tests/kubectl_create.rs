//! `kubectl create`, `run`, `expose` and their kin: objects made from flags.

use crate::{harness::Kubectl, with_each_kubectl};

fn config_maps_and_secrets_come_from_literals_and_files(k: &Kubectl) {
    let file = k.cluster.file("greeting", "hello\n");
    assert_eq!(
        k.ok(&format!("create configmap c --from-literal=a=1 --from-file={file} --from-file=other={file}")),
        "configmap/c created"
    );
    assert_eq!(k.value("cm c", "{.data}"), r#"{"a":"1","greeting":"hello\n","other":"hello\n"}"#);
    assert_eq!(k.ok("create secret generic s --from-literal=password=hunter2"), "secret/s created");
    assert_eq!(k.value("secret s", "{.data.password}"), "aHVudGVyMg==");
    assert_eq!(k.value("secret s", "{.type}"), "Opaque");
    assert_eq!(k.ok("create secret docker-registry r --docker-username=u --docker-password=p"), "secret/r created");
    assert_eq!(k.value("secret r", "{.type}"), "kubernetes.io/dockerconfigjson");
    let table = k.ok("get secret s r");
    assert!(table.starts_with("NAME   TYPE "), "{table}");
}

fn services_of_each_type_are_created(k: &Kubectl) {
    assert_eq!(k.ok("create service clusterip c --tcp=80:8080"), "service/c created");
    assert!(k.value("svc c", "{.spec.clusterIP}").starts_with("10.96."));
    assert_eq!(k.value("svc c", "{.spec.ports[0].targetPort}"), "8080");
    k.ok("create service nodeport n --tcp=80");
    let port: u16 = k.value("svc n", "{.spec.ports[0].nodePort}").parse().expect("a port");
    assert!((30000..=32767).contains(&port), "{port}");
    k.ok("create service loadbalancer l --tcp=80");
    k.ok("create service externalname e --external-name example.org");
    let table = k.ok("get svc c n l e --no-headers");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows[0][1], rows[0][3], rows[0][4]), ("ClusterIP", "<none>", "80/TCP"), "{table}");
    assert_eq!((rows[1][1], rows[1][4]), ("NodePort", format!("80:{port}/TCP").as_str()), "{table}");
    assert_eq!((rows[2][1], rows[2][3]), ("LoadBalancer", "<pending>"), "{table}");
    assert_eq!((rows[3][1], rows[3][2], rows[3][3]), ("ExternalName", "<none>", "example.org"), "{table}");
    k.ok("create service clusterip h --clusterip=None --tcp=80");
    assert_eq!(k.value("svc h", "{.spec.clusterIP}"), "None");
}

fn workloads_are_created(k: &Kubectl) {
    assert_eq!(k.ok("create deployment web --image=nginx --replicas=2"), "deployment.apps/web created");
    assert_eq!(k.value("deploy web", "{.spec.replicas} {.spec.strategy.type}"), "2 RollingUpdate");
    assert_eq!(k.ok("create job j --image=busybox -- true"), "job.batch/j created");
    let cron = k.run("create cronjob c --image=busybox --schedule='*/5 * * * *' -- date");
    if k.is_recent() {
        assert_eq!(cron.ok().trim(), "cronjob.batch/c created");
        assert_eq!(k.ok("create job from --from=cronjob/c"), "job.batch/from created");
        assert_eq!(k.value("job from", "{.metadata.ownerReferences[0].kind}"), "CronJob");
        assert!(k.ok("get cj c").contains("*/5 * * * *"));
    } else {
        // It knows only batch/v1beta1, which no server of our age has.
        assert!(cron.refused().contains("the server could not find the requested resource"));
    }
    assert_eq!(k.ok("run p --image=nginx --labels=app=p --port=80"), "pod/p created");
    assert_eq!(k.value("pod p", "{.spec.containers[0].image} {.status.phase}"), "nginx Pending");
    assert_eq!(k.ok("expose pod p --port=80"), "service/p exposed");
    assert_eq!(k.value("svc p", "{.spec.selector}"), r#"{"app":"p"}"#);
    assert_eq!(k.ok("expose deployment web --port=80 --target-port=8080 --type=NodePort"), "service/web exposed");
    assert_eq!(
        k.ok("autoscale deployment web --min=2 --max=5 --cpu-percent=70"),
        "horizontalpodautoscaler.autoscaling/web autoscaled"
    );
    let hpa = k.json("get hpa web -o json");
    assert_eq!((&hpa["spec"]["minReplicas"], &hpa["spec"]["maxReplicas"]), (&2.into(), &5.into()), "{hpa}");
}

fn access_and_limits_are_created(k: &Kubectl) {
    assert_eq!(k.ok("create namespace team"), "namespace/team created");
    assert_eq!(k.ok("create serviceaccount bot"), "serviceaccount/bot created");
    assert_eq!(
        k.ok("create role reader --verb=get,list --resource=pods,deployments.apps"),
        "role.rbac.authorization.k8s.io/reader created"
    );
    assert_eq!(k.json("get role reader -o json")["rules"][1]["apiGroups"], serde_json::json!(["apps"]));
    k.ok("create clusterrole all --verb=* --resource=*.*");
    assert_eq!(
        k.ok("create rolebinding read --role=reader --serviceaccount=default:bot --user=ann"),
        "rolebinding.rbac.authorization.k8s.io/read created"
    );
    k.ok("create clusterrolebinding everything --clusterrole=all --group=ops");
    assert!(k.ok("get clusterrolebinding everything -o wide").contains("ops"));
    assert_eq!(k.ok("create quota q --hard=pods=5,requests.cpu=2"), "resourcequota/q created");
    assert_eq!(k.value("quota q", "{.spec.hard}"), r#"{"pods":"5","requests.cpu":"2"}"#);
    assert_eq!(
        k.ok("create priorityclass high --value=1000 --description=important"),
        "priorityclass.scheduling.k8s.io/high created"
    );
    if k.is_recent() {
        assert_eq!(k.ok("create pdb b --selector=app=web --min-available=1"), "poddisruptionbudget.policy/b created");
        assert_eq!(
            k.ok("create ingress i --rule=example.org/api*=web:80,tls=cert"),
            "ingress.networking.k8s.io/i created"
        );
        assert!(k.ok("get ingress i").contains("example.org"));
    }
}

fn flags_of_create_are_honoured(k: &Kubectl) {
    let manifest = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"gen-"},"data":{"a":"b"}}"#;
    let name = k.run_with("create -o name -f -", manifest).ok();
    let name = name.trim().strip_prefix("configmap/gen-").expect("a generated name");
    assert_eq!(name.len(), 5, "{name}");
    k.run_with("create --save-config -f -", &manifest.replace("generateName\":\"gen-", "name\":\"saved")).ok();
    let saved = k.json("get cm saved -o json");
    assert!(
        saved["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].is_string(),
        "{saved}"
    );
    let dry = k.ok("create deployment d --image=x --dry-run=server -o json");
    assert!(dry.contains(r#""progressDeadlineSeconds": 600"#), "defaults are set: {dry}");
    assert!(k.refused("get deploy d").contains("NotFound"));
    let client = k.ok("create deployment d --image=x --dry-run=client -o yaml");
    assert!(client.contains("kind: Deployment"), "{client}");
}

fn reviews_and_lists_of_a_kind_are_created(k: &Kubectl) {
    let review = "apiVersion: authorization.k8s.io/v1\nkind: SubjectAccessReview\nspec:\n  user: bob\n  \
        resourceAttributes: {verb: get, resource: pods, namespace: default}\n";
    let answer = k.run_with("create -o jsonpath={.status.allowed} -f -", review).ok();
    assert_eq!(answer.trim(), "false");
    let binding = |name: &str| {
        format!(
            r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{{"name":"{name}"}},
            "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}}}}"#
        )
    };
    let list = format!(
        r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBindingList","items":[{},{}]}}"#,
        binding("first"),
        binding("second")
    );
    let created = k.run_with("create -f -", &list).ok();
    for name in ["first", "second"] {
        assert!(created.contains(&format!("rolebinding.rbac.authorization.k8s.io/{name} created")), "{created}");
    }
    let maps = r#"{"apiVersion":"v1","kind":"ConfigMapList","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}]}"#;
    assert_eq!(k.run_with("apply -f -", maps).ok().trim(), "configmap/m created");
}

with_each_kubectl!(
    reviews_and_lists_of_a_kind_are_created,
    config_maps_and_secrets_come_from_literals_and_files,
    services_of_each_type_are_created,
    workloads_are_created,
    access_and_limits_are_created,
    flags_of_create_are_honoured,
);
