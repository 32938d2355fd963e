use std::{net::IpAddr, path::Path};

use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_runtime::spec::{Dns, PidMode, Propagation, Seccomp};
use serde_json::{Value, json};

use super::*;
use crate::volumes::tests::{Bench, MAPS, SECRETS};

fn pod(spec: Value) -> Pod {
    let meta =
        json!({"name": "web-0", "namespace": "ns", "uid": "u", "labels": {"app": "web"}, "annotations": {"note": "x"}});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn pod_with_container(container: Value) -> (Pod, Container) {
    let pod = pod(json!({"containers": [container]}));
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    (pod, container)
}

fn machine() -> NodeFacts {
    NodeFacts {
        addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        hostname: "here".to_owned(),
        memory: 1 << 30,
        allocatable: machine::Allocatable { cpu_millis: 2500, memory: 1000 << 20, ephemeral_storage: 5 << 30 },
    }
}

mod limits {
    use super::*;

    #[test]
    fn a_container_is_limited_as_it_asks() {
        for (asked, expected) in [
            (json!({}), json!([2, null, null, null, 1000])),
            (json!({"requests": {"cpu": "500m"}}), json!([512, null, null, null, 999])),
            (json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}}), json!([2, 1000, 100_000, null, 999])),
            (json!({"limits": {"cpu": "1500m"}}), json!([1536, 150_000, 100_000, null, 999])),
            (
                json!({"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}),
                json!([1024, null, null, 1 << 30, 500]),
            ),
            (
                json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}),
                json!([1024, 100_000, 100_000, 64 << 20, -997]),
            ),
            (json!({"requests": {"memory": "10Gi"}}), json!([2, null, null, null, 3])),
        ] {
            let (pod, container) = pod_with_container(json!({"name": "c", "resources": asked}));
            let got = resources::container(&pod, &container, &machine());
            let got = json!([got.cpu_shares, got.cpu_quota, got.cpu_period, got.memory_limit, got.oom_score_adj]);
            assert_eq!(got, expected, "{asked}");
        }
    }

    #[test]
    fn a_pod_is_limited_by_the_sum_if_everything_in_it_is() {
        let of = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu, "memory": memory}});
        for (spec, cgroup, expected) in [
            (json!({"containers": [{"name": "a"}]}), "besteffort/podu", json!([2, null, null])),
            (
                json!({"containers": [{"name": "a", "resources": of("1", "1Gi")}, {"name": "b", "resources": of("1", "1Gi")}]}),
                "podu",
                json!([2048, 200_000, 2u64 << 30]),
            ),
            (
                json!({"containers": [{"name": "a", "resources": of("1", "1Gi")}, {"name": "b"}]}),
                "burstable/podu",
                json!([1024, null, null]),
            ),
            // An init container that asks for more sets the mark...
            (
                json!({
                    "initContainers": [{"name": "i", "resources": of("3", "1Mi")}],
                    "containers": [{"name": "a", "resources": of("1", "1Gi")}],
                }),
                "podu",
                json!([3072, 300_000, 1 << 30]),
            ),
            // ...beside the sidecars before it, which also count for all that comes after.
            (
                json!({
                    "initContainers": [
                        {"name": "s", "restartPolicy": "Always", "resources": of("1", "1Gi")},
                        {"name": "i", "resources": of("3", "1Mi")},
                    ],
                    "containers": [{"name": "a", "resources": of("1", "1Gi")}],
                    "overhead": {"cpu": "1"},
                }),
                "podu",
                json!([5120, 500_000, 2u64 << 30]),
            ),
            (
                json!({"resources": of("2", "2Gi"), "containers": [{"name": "a"}]}),
                "podu",
                json!([2048, 200_000, 2u64 << 30]),
            ),
        ] {
            let pod = pod(spec.clone());
            let got = resources::pod(&pod);
            assert_eq!(json!([got.cpu_shares, got.cpu_quota, got.memory_limit]), expected, "{spec}");
            assert_eq!(resources::cgroup(&pod), cgroup, "{spec}");
            assert_eq!(got.pids_limit, Some(resources::PIDS));
        }
    }

    #[test]
    fn huge_pages_and_critical_pods_are_set_in_the_kernel() {
        let (mut pod, container) =
            pod_with_container(json!({"name": "c", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}}));
        assert_eq!(resources::container(&pod, &container, &machine()).hugepages["2Mi"], 4 << 20);
        pod.spec.as_mut().unwrap().priority = Some(2_000_001_000);
        assert_eq!(resources::container(&pod, &container, &machine()).oom_score_adj, Some(-997));
    }
}

mod contexts {
    use super::*;

    fn merged(pod_context: Value, own: Value) -> mainstay_runtime::spec::Security {
        let (pod, container) = pod_with_container(json!({"name": "c", "securityContext": own}));
        let mut pod = pod;
        pod.spec.as_mut().unwrap().security_context = serde_json::from_value(pod_context).unwrap();
        security::security(&pod, &container, Path::new("/profiles"))
    }

    #[test]
    fn a_container_speaks_before_its_pod() {
        let got = merged(
            json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 5, "supplementalGroups": [3, 4],
                   "supplementalGroupsPolicy": "Strict", "seccompProfile": {"type": "Unconfined"}}),
            json!({"runAsUser": 10, "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "procMount": "Unmasked",
                   "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true}),
        );
        assert_eq!((got.run_as_user, got.run_as_group), (Some(10), Some(2)));
        assert_eq!((got.supplemental_groups, got.strict_groups), (vec![3, 4, 5], true));
        assert_eq!((got.add_capabilities, got.drop_capabilities), (vec!["NET_ADMIN".into()], vec!["ALL".into()]));
        assert!(got.no_new_privileges && got.read_only_root && got.unmasked_proc && !got.privileged);
        assert_eq!(got.seccomp, Seccomp::Unconfined);
    }

    #[test]
    fn containers_are_confined_unless_they_are_privileged() {
        assert_eq!(merged(json!({}), json!({})).seccomp, Seccomp::RuntimeDefault);
        assert!(!merged(json!({}), json!({})).no_new_privileges);
        assert_eq!(merged(json!({}), json!({"privileged": true})).seccomp, Seccomp::Unconfined);
        let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
        assert_eq!(merged(local.clone(), json!({})).seccomp, Seccomp::Localhost("/profiles/a/b.json".into()));
        assert_eq!(
            merged(local, json!({"seccompProfile": {"type": "RuntimeDefault"}})).seccomp,
            Seccomp::RuntimeDefault
        );
    }

    #[test]
    fn who_must_not_be_root_is_not() {
        let whose = "(pod: \"web-0_ns(u)\", container: c)";
        let root = format!("container has runAsNonRoot and image will run as root {whose}");
        for (context, image, expected) in [
            (json!({}), "", None),
            (json!({"runAsNonRoot": true}), "", Some(root.clone())),
            (json!({"runAsNonRoot": true}), "0", Some(root.clone())),
            (json!({"runAsNonRoot": true}), "0:1000", Some(root)),
            (json!({"runAsNonRoot": true}), "1000:0", None),
            (
                json!({"runAsNonRoot": true}),
                "nobody",
                Some(format!(
                    "container has runAsNonRoot and image has non-numeric user (nobody), cannot verify user is non-root \
                     {whose}"
                )),
            ),
            (json!({"runAsNonRoot": true, "runAsUser": 7}), "root", None),
            (
                json!({"runAsNonRoot": true, "runAsUser": 0}),
                "7",
                Some(format!("container's runAsUser breaks non-root policy {whose}")),
            ),
        ] {
            let (pod, container) = pod_with_container(json!({"name": "c", "securityContext": context}));
            let got = security::verify_non_root(&pod, &container, image).err().map(|error| error.to_string());
            assert_eq!(got, expected, "{context} {image}");
        }
    }
}

mod names {
    use super::*;

    #[test]
    fn a_pod_is_called_by_its_hostname_or_its_name() {
        let long = "a".repeat(62) + "-b";
        for (spec, name, expected) in [
            (json!({}), "web-0", Ok("web-0")),
            (json!({}), long.as_str(), Ok(&long[..62])),
            (json!({"hostname": "db"}), "x", Ok("db")),
            (json!({"hostname": "db", "subdomain": "s"}), "x", Ok("db")),
            (
                json!({"hostname": "db", "subdomain": "s", "setHostnameAsFQDN": true}),
                "x",
                Ok("db.s.ns.svc.cluster.local"),
            ),
            (json!({"setHostnameAsFQDN": true}), "x", Ok("x")),
            (json!({"hostNetwork": true}), "x", Ok("here")),
            (json!({"hostname": "d".repeat(60), "subdomain": "s", "setHostnameAsFQDN": true}), "x", Err("is too long")),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let mut pod = pod(spec.clone());
            pod.metadata.name = Some(name.to_owned());
            match (hostname::names(&pod, "cluster.local", &machine()), expected) {
                (Ok(names), Ok(expected)) => assert_eq!(names.hostname, expected, "{spec}"),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                (got, _) => panic!("{spec}: {got:?}"),
            }
        }
    }

    #[test]
    fn names_are_looked_up_as_the_policy_says() {
        let host =
            dns::parse("nameserver 1.1.1.1 # first\nsearch example.org\noptions rotate\n; no\nnameserver 9.9.9.9");
        let cluster: [IpAddr; 1] = ["10.96.0.10".parse().unwrap()];
        let get = |spec: Value, cluster: &[IpAddr]| {
            let mut spec = spec;
            spec["containers"] = json!([]);
            dns::file(&dns::resolve(&pod(spec), &host, cluster, "cluster.local"))
        };
        let machine = "search example.org\nnameserver 1.1.1.1\nnameserver 9.9.9.9\noptions rotate\n";
        let first = "search ns.svc.cluster.local svc.cluster.local cluster.local example.org\nnameserver 10.96.0.10\n\
                     options ndots:5\n";
        assert_eq!(get(json!({}), &cluster), first);
        assert_eq!(get(json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), &cluster), machine);
        assert_eq!(get(json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), &cluster), first);
        assert_eq!(get(json!({"dnsPolicy": "Default"}), &cluster), machine);
        assert_eq!(get(json!({}), &[]), machine);
        let own = json!({
            "nameservers": ["1.2.3.4", "10.96.0.10"], "searches": ["a.b", "cluster.local"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        });
        assert_eq!(
            get(json!({"dnsPolicy": "None", "dnsConfig": own}), &cluster),
            "search a.b cluster.local\nnameserver 1.2.3.4\nnameserver 10.96.0.10\noptions ndots:2 edns0\n"
        );
        assert_eq!(
            get(json!({"dnsConfig": own}), &cluster),
            "search ns.svc.cluster.local svc.cluster.local cluster.local example.org a.b\nnameserver 10.96.0.10\n\
             nameserver 1.2.3.4\noptions ndots:2 edns0\n"
        );
        assert_eq!(get(json!({"dnsPolicy": "None"}), &cluster), "");
        assert_eq!(dns::parse(""), Dns::default());
    }

    #[test]
    fn hosts_know_the_pod_and_its_aliases() {
        let pod = pod(json!({
            "containers": [], "subdomain": "s",
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}],
        }));
        let names = hostname::names(&pod, "cluster.local", &machine()).unwrap();
        let text = hosts::file(&pod, &names, &["10.1.1.1".parse().unwrap()], "");
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), "{text}");
        let tail = "10.1.1.1\tweb-0.s.ns.svc.cluster.local\tweb-0\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n";
        assert!(text.ends_with(tail), "{text}");
    }
}

#[tokio::test]
async fn a_sandbox_is_what_the_pod_says() {
    let bench = Bench::new();
    let (events, _writer) = Events::new("m1");
    let specs = Specs::new(bench.settings.clone(), bench.objects.clone(), bench.volumes.clone(), events);
    let asked = pod(json!({
        "shareProcessNamespace": true, "hostIPC": true,
        "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
        "containers": [{"name": "a", "ports": [
            {"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}, {"containerPort": 81},
            {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
        ]}],
    }));
    let got = specs.sandbox(&asked, 3).unwrap();
    assert_eq!((got.attempt, got.pid, got.host_ipc, got.host_network), (3, PidMode::Pod, true, false));
    assert_eq!(got.sysctls["net.ipv4.tcp_syncookies"], "1");
    let ports: Vec<_> =
        got.ports.iter().map(|port| (port.host_port, port.container_port, port.host_ip.as_str())).collect();
    assert_eq!(ports, [(8080, 80, ""), (53, 53, "127.0.0.1")]);
    assert!(got.log_directory.ends_with("logs/ns_web-0_u"));
    assert_eq!(got.labels["app"], "web");
}

#[tokio::test]
async fn a_container_gets_its_variables_arguments_and_files() {
    let bench = Bench::new();
    let services = "/api/v1/namespaces/default/services";
    bench.api.set_object(
        services,
        "kubernetes",
        json!({"spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}}),
    );
    let service = json!({"spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80, "protocol": "TCP"}]}});
    bench.api.set_object("/api/v1/namespaces/ns/services", "my-shop", service);
    bench.api.set_object(
        "/api/v1/namespaces/ns/services",
        "headless",
        json!({"spec": {"clusterIP": "None", "ports": [{"port": 1}]}}),
    );
    bench.api.set_object(MAPS, "conf", json!({"data": {"A": "from map", "B": "map"}}));
    bench.api.set_object(SECRETS, "key", json!({"data": {"B": k8s_openapi::ByteString(b"secret".to_vec())}}));
    let (events, _writer) = Events::new("m1");
    let specs = Specs::new(bench.settings.clone(), bench.objects.clone(), bench.volumes.clone(), events);
    let asked = pod(json!({
        "nodeName": "here", "serviceAccountName": "robot",
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "conf"}}],
        "containers": [{
            "name": "main", "image": "web:1", "tty": true,
            "command": ["run", "$(A)"], "args": ["--host=$(MY_SHOP_SERVICE_HOST)", "$$(A)", "$(NOBODY)"],
            "envFrom": [
                {"prefix": "P_", "configMapRef": {"name": "conf"}},
                {"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "key"}},
                {"configMapRef": {"name": "none", "optional": true}},
            ],
            "env": [
                {"name": "A", "value": "own"},
                {"name": "URL", "value": "http://$(MY_SHOP_SERVICE_HOST):$(MY_SHOP_SERVICE_PORT)/$(A)/$(LATER)"},
                {"name": "LATER", "value": "x"},
                {"name": "MY_SHOP_PORT", "value": "mine"},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "B"}}},
                {"name": "NO", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "none", "optional": true}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
            ],
            "resources": {"requests": {"cpu": "250m"}},
            "volumeMounts": [
                {"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"},
                {"name": "data", "mountPath": "/part", "subPathExpr": "of/$(A)"},
                {"name": "conf", "mountPath": "/conf"},
            ],
        }],
    }));
    bench.volumes.prepare(&asked).await.unwrap();
    let image = Image { id: "sha256:1".to_owned(), ..Image::default() };
    let addresses = ["10.244.0.2".parse().unwrap()];
    let wanted = ContainerRequest { pod: &asked, name: "main", attempt: 2, image: &image, addresses: &addresses };
    let got = specs.container(&wanted).await.unwrap();
    assert_eq!(got.command, ["run", "own"]);
    assert_eq!(got.args, ["--host=10.96.0.9", "$(A)", "$(NOBODY)"]);
    let env = |name: &str| got.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
    for (name, expected) in [
        ("A", Some("own")),
        ("B", Some("secret")),
        ("P_A", Some("from map")),
        ("URL", Some("http://10.96.0.9:80/own/$(LATER)")),
        ("MY_SHOP_PORT", Some("mine")),
        ("MY_SHOP_PORT_80_TCP_ADDR", Some("10.96.0.9")),
        ("KUBERNETES_SERVICE_HOST", Some("10.96.0.1")),
        ("KUBERNETES_SERVICE_PORT_HTTPS", Some("443")),
        ("KUBERNETES_PORT", Some("tcp://10.96.0.1:443")),
        ("HEADLESS_SERVICE_HOST", None),
        ("KEY", Some("secret")),
        ("NO", None),
        ("IP", Some("10.244.0.2")),
        ("HOST", Some("192.0.2.1")),
        ("LABEL", Some("web")),
        ("ACCOUNT", Some("robot")),
        ("CPU", Some("250")),
    ] {
        assert_eq!(env(name), expected, "{name}");
    }
    let mount = |target: &str| got.mounts.iter().find(|mount| mount.target == Path::new(target)).unwrap();
    assert_eq!(mount("/data").propagation, Propagation::HostToContainer);
    assert!(mount("/conf").read_only && !mount("/data").read_only);
    std::fs::write(mount("/part").source.join("f"), "").unwrap();
    assert!(mount("/data").source.join("of/own/f").exists());
    assert!(std::fs::read_to_string(&mount("/etc/hosts").source).unwrap().contains("10.244.0.2\tweb-0\n"));
    assert!(std::fs::read_to_string(&mount("/etc/resolv.conf").source).unwrap().contains("nameserver 10.96.0.10\n"));
    let words = specs.termination_log(&PodUid("u".to_owned()), "main", 2);
    assert_eq!(mount("/dev/termination-log").source, words);
    assert!(words.exists() && got.tty);
    assert!(got.log_path.ends_with("ns_web-0_u/main/2.log"));
    assert_eq!(got.annotations[SPEC_HASH], identity(&asked.spec.as_ref().unwrap().containers[0]));
}

/// The most memory that this process had so far, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn a_container_that_makes_its_hosts_file_huge_costs_no_memory_of_the_agent_and_the_next_one_has_its_own() {
    let bench = Bench::new();
    let (events, _writer) = Events::new("m1");
    let specs = Specs::new(bench.settings.clone(), bench.objects.clone(), bench.volumes.clone(), events);
    let (asked, _) = pod_with_container(json!({"name": "main", "image": "busybox"}));
    let image = Image { id: "sha256:1".to_owned(), ..Image::default() };
    let addresses = ["10.244.0.2".parse().unwrap()];
    let wanted = ContainerRequest { pod: &asked, name: "main", attempt: 0, image: &image, addresses: &addresses };
    let hosts = async || {
        let got = specs.container(&wanted).await.unwrap();
        got.mounts.into_iter().find(|mount| mount.target == Path::new("/etc/hosts")).unwrap().source
    };
    let file = hosts().await;
    let written = std::fs::read_to_string(&file).unwrap();
    // What root in the container may do; it takes no disk.
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(2 << 30).unwrap();
    hosts().await;
    assert_eq!(std::fs::metadata(&file).unwrap().len(), written.len() as u64);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), written);
    assert!(peak_memory() < 1 << 20, "{} KiB", peak_memory());
}

#[tokio::test]
async fn what_a_container_lacks_is_named() {
    let bench = Bench::new();
    bench.api.set_object(MAPS, "conf", json!({"data": {}}));
    let (events, _writer) = Events::new("m1");
    let specs = Specs::new(bench.settings.clone(), bench.objects.clone(), bench.volumes.clone(), events);
    for (container, expected) in [
        (json!({"envFrom": [{"configMapRef": {"name": "no"}}]}), "configmap \"no\" not found"),
        (json!({"envFrom": [{"secretRef": {"name": "no"}}]}), "secret \"no\" not found"),
        (
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "k"}}}]}),
            "couldn't find key k in ConfigMap ns/conf",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]}),
            "secret \"no\" not found",
        ),
    ] {
        let mut container = container;
        container["name"] = json!("main");
        let (pod, _) = pod_with_container(container);
        let image = Image::default();
        let wanted = ContainerRequest { pod: &pod, name: "main", attempt: 0, image: &image, addresses: &[] };
        match specs.container(&wanted).await {
            Err(ConfigError::Missing(why)) => assert_eq!(why, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    bench.api.set_down(true);
    let (pod, _) = pod_with_container(json!({"name": "main", "envFrom": [{"configMapRef": {"name": "unasked"}}]}));
    let image = Image::default();
    let wanted = ContainerRequest { pod: &pod, name: "main", attempt: 0, image: &image, addresses: &[] };
    assert!(matches!(specs.container(&wanted).await, Err(ConfigError::Unreachable(_))));
}

#[tokio::test]
async fn variables_come_from_files_that_other_containers_wrote() {
    let bench = Bench::new();
    let (events, _writer) = Events::new("m1");
    let specs = Specs::new(bench.settings.clone(), bench.objects.clone(), bench.volumes.clone(), events);
    let variable = |name: &str, path: &str, optional: bool| {
        json!({"name": name, "valueFrom": {"fileKeyRef": {
            "volumeName": "data", "path": path, "key": "COLOUR", "optional": optional,
        }}})
    };
    let with = |variables: Value| {
        pod(json!({
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [{"name": "main", "args": ["$(A)"], "env": variables}],
        }))
    };
    let asked = with(json!([variable("A", "app/env", false), variable("B", "none", true)]));
    bench.volumes.prepare(&asked).await.unwrap();
    let volume = bench.volumes.source(&asked, "data").unwrap().path;
    std::fs::create_dir(volume.join("app")).unwrap();
    std::fs::write(volume.join("app/env"), "# by init\nCOLOUR='deep blue'\n").unwrap();
    std::fs::write(volume.join("other"), "SIZE='9'\n").unwrap();
    std::fs::write(volume.join("bad"), "COLOUR = 'sesame'\n").unwrap();
    let image = Image::default();
    let made = async |pod: &Pod| {
        let request = ContainerRequest { pod, name: "main", attempt: 0, image: &image, addresses: &[] };
        specs.container(&request).await
    };
    let got = made(&asked).await.unwrap();
    assert!(got.env.contains(&("A".to_owned(), "deep blue".to_owned())));
    assert!(!got.env.iter().any(|(name, _)| name == "B"), "an optional variable is left out");
    assert_eq!(got.args, ["deep blue"]);
    for (path, optional, expected) in [
        ("none", false, r#"environment variable key "COLOUR" not found in file "none" of volume "data""#),
        ("other", false, r#"environment variable key "COLOUR" not found in file "other" of volume "data""#),
        (
            "bad",
            true,
            "couldn't parse env file \"bad\": invalid environment variable format at line 1: whitespace before '=' is \
             not allowed",
        ),
        ("app", true, r#"couldn't read env file "app" of volume "data": it is not a regular file"#),
    ] {
        let asked = with(json!([variable("A", path, optional)]));
        let refused = made(&asked).await.err().unwrap();
        assert_eq!(refused.to_string(), expected, "{path}");
    }
}

#[test]
fn an_ephemeral_container_is_one_like_the_others() {
    let pod = pod(json!({
        "containers": [{"name": "main"}],
        "ephemeralContainers": [{"name": "debug", "image": "tools", "targetContainerName": "main", "stdin": true}],
    }));
    let found = container::find(&pod, "debug").unwrap();
    assert_eq!((found.container.image.as_deref(), found.target.as_deref()), (Some("tools"), Some("main")));
    assert!(container::find(&pod, "main").unwrap().target.is_none() && container::find(&pod, "no").is_none());
}

#[test]
fn resources_are_shown_in_units_of_the_divisor() {
    let (_, container) = pod_with_container(json!({"name": "c", "resources": {
        "limits": {"cpu": "1250m", "memory": "1500Ki"}, "requests": {"memory": "1Gi"},
    }}));
    let (_, bare) = pod_with_container(json!({"name": "c"}));
    let allocatable = machine().allocatable;
    for (container, resource, divisor, expected) in [
        (&container, "limits.cpu", "", "2"),
        (&container, "limits.cpu", "1m", "1250"),
        (&container, "limits.memory", "1Mi", "2"),
        (&container, "limits.memory", "", "1536000"),
        (&container, "requests.memory", "1Gi", "1"),
        (&container, "requests.cpu", "", "0"),
        (&bare, "limits.cpu", "", "3"),
        (&bare, "limits.memory", "1Mi", "1000"),
        (&bare, "limits.ephemeral-storage", "1Gi", "5"),
    ] {
        let mut reference = json!({"resource": resource});
        if !divisor.is_empty() {
            reference["divisor"] = divisor.into();
        }
        let reference = serde_json::from_value(reference).unwrap();
        assert_eq!(
            env::resource::value(&reference, container, &allocatable).unwrap(),
            expected,
            "{resource} {divisor}"
        );
    }
}
