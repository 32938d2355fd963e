use super::*;

fn unit(name: &str, text: &str) -> Unit {
    Unit { name: UnitName::parse(name).expect("a name"), file: UnitFile::parse(text).expect("a unit") }
}

const WEB: &str = include_str!("../../testdata/web@.service");
const DB: &str = include_str!("../../testdata/db.service");
const COLLECTOR: &str = include_str!("../../testdata/collector.service");

fn service(options: &str) -> String {
    format!("[Service]\nRestart=always\nExecStart=/usr/bin/docker run app\n{options}")
}

fn find<'a>(converted: &'a Converted, kind: &str, name: &str) -> &'a Value {
    let found = |manifest: &&Value| manifest["kind"] == kind && manifest["metadata"]["name"] == name;
    converted.manifests.iter().find(found).unwrap_or_else(|| panic!("no {kind} {name} in {:#?}", converted.manifests))
}

fn notes(converted: &Converted) -> Vec<String> {
    converted.notes.iter().map(Note::to_string).collect()
}

#[test]
fn numbered_instances_become_a_stateful_set_with_their_placement_and_needs() {
    let units = [unit("web@1", WEB), unit("web@2", WEB), unit("web@3", WEB), unit("db", DB)];
    let converted = convert(&units).unwrap();
    let set = find(&converted, "StatefulSet", "web");
    assert_eq!(set["spec"]["replicas"], 3);
    assert_eq!(set["spec"]["ordinals"]["start"], 1);
    assert_eq!(set["metadata"]["annotations"][DESCRIPTION], "A web server, once for each instance");
    let pod = &set["spec"]["template"];
    assert_eq!(pod["metadata"]["annotations"][needs::ANNOTATION], "deployment/db");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.example/web:1.4");
    assert_eq!(container["args"], json!(["serve", "--id", "$(UNIT_INSTANCE)"]));
    assert_eq!(container["env"][0], instance_variable());
    assert_eq!(container["env"][1], json!({ "name": "INSTANCE", "value": "$(UNIT_INSTANCE)" }));
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 15);
    assert_eq!(pod["spec"].get("initContainers"), None, "nothing is left of an earlier container");
    let affinity = &pod["spec"]["affinity"];
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(
        affinity["nodeAffinity"][required]["nodeSelectorTerms"][0]["matchExpressions"],
        json!([
            { "key": "disk", "operator": "In", "values": ["ssd"] },
            { "key": "region", "operator": "In", "values": ["eu", "us"] },
        ])
    );
    assert_eq!(
        affinity["podAntiAffinity"][required],
        json!([{ "labelSelector": { "matchLabels": { NAME_LABEL: "web" } }, "topologyKey": "kubernetes.io/hostname" }])
    );
    assert_eq!(find(&converted, "Service", "web")["spec"]["ports"], json!([{ "name": "port-80", "port": 80 }]));
    let told = notes(&converted);
    assert!(told.contains(&"web@1.service:9: RestartSec=10s: the wait before a restart doubles from the node's setting, not the unit's".to_owned()), "{told:#?}");
}

#[test]
fn a_unit_of_its_own_becomes_a_deployment_that_never_runs_twice() {
    let converted = convert(&[unit("db", DB)]).unwrap();
    let deployment = find(&converted, "Deployment", "db");
    assert_eq!(deployment["spec"]["strategy"], json!({ "type": "Recreate" }));
    let spec = &deployment["spec"]["template"]["spec"];
    assert_eq!(spec["terminationGracePeriodSeconds"], 60);
    assert_eq!(spec["volumes"], json!([{ "name": "volume-0", "hostPath": { "path": "/srv/db" } }]));
    let container = &spec["containers"][0];
    assert_eq!(container["ports"], json!([{ "containerPort": 5432, "protocol": "TCP", "hostPort": 5432 }]));
    assert_eq!(container["resources"]["limits"]["memory"], "512Mi");
    assert!(notes(&converted)[0].contains("kubectl label node NAME mainstay.dev/machine-id=7c1b2a90"));
}

#[test]
fn a_global_unit_becomes_a_daemon_set_and_every_line_without_a_translation_is_named() {
    let converted = convert(&[unit("collector", COLLECTOR)]).unwrap();
    let spec = &find(&converted, "DaemonSet", "collector")["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "host");
    assert_eq!(
        container["command"],
        json!(["/usr/local/bin/collector", "--interval", "30", "--address", "$(PRIVATE_IPV4)"])
    );
    assert_eq!(container["env"][1], json!({ "name": "LABEL", "value": "all nodes" }));
    assert_eq!(container["securityContext"], json!({ "runAsUser": 1000 }));
    assert_eq!(container["resources"]["limits"]["cpu"], "500m");
    assert_eq!(container["lifecycle"]["preStop"]["exec"]["command"], json!(["/usr/local/bin/collector", "--flush"]));
    assert_eq!(
        spec["initContainers"][0]["command"],
        json!(["/bin/sh", "-c", "\"$@\" || true", "sh", "/bin/mkdir", "/run/collector"])
    );
    let named: Vec<_> = converted.notes.iter().filter_map(|note| note.line).collect();
    assert_eq!(named, [4, 5, 10, 13], "{:#?}", notes(&converted));
}

#[test]
fn how_a_unit_restarts_decides_what_it_becomes() {
    let kind = |service: &str| {
        let text = format!("[Service]\nExecStart=/bin/true\n{service}");
        let converted = convert(&[unit("x", &text)]).unwrap();
        let manifest = converted.manifests[0].clone();
        (manifest["kind"].as_str().unwrap().to_owned(), manifest["spec"]["template"]["spec"]["restartPolicy"].clone())
    };
    assert_eq!(kind("Restart=always"), ("Deployment".to_owned(), Value::Null));
    assert_eq!(kind("Type=oneshot"), ("Job".to_owned(), json!("Never")));
    assert_eq!(kind(""), ("Job".to_owned(), json!("Never")));
    assert_eq!(kind("Restart=on-failure"), ("Job".to_owned(), json!("OnFailure")));
    assert_eq!(kind("Restart=on-success").0, "Deployment");
}

#[test]
fn equal_instances_are_replicas_and_odd_ones_workloads_of_their_own() {
    let same = service("");
    let converted = convert(&[unit("a@x", &same), unit("a@y", &same)]).unwrap();
    assert_eq!(find(&converted, "Deployment", "a")["spec"]["replicas"], 2);
    let odd = "[Service]\nRestart=always\nExecStart=/usr/bin/docker run -v /srv/%i:/data app";
    let converted = convert(&[unit("a@1", odd), unit("a@2", odd)]).unwrap();
    let volume = &find(&converted, "Deployment", "a-2")["spec"]["template"]["spec"]["volumes"][0];
    assert_eq!(volume["hostPath"]["path"], "/srv/2", "a volume takes no variable");
    let gap = "[Service]\nRestart=always\nExecStart=/usr/bin/docker run app %i";
    let converted = convert(&[unit("a@1", gap), unit("a@3", gap)]).unwrap();
    let labels = &find(&converted, "Deployment", "a-3")["spec"]["selector"]["matchLabels"];
    assert_eq!(*labels, json!({ NAME_LABEL: "a", INSTANCE_LABEL: "3" }));
}

#[test]
fn units_follow_conflict_with_and_replace_each_other() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let term = |name: &str| json!([{ "labelSelector": { "matchLabels": { NAME_LABEL: name } }, "topologyKey": "kubernetes.io/hostname" }]);
    let plain = service("");
    let affinity = |converted: &Converted, name: &str| {
        find(converted, "Deployment", name)["spec"]["template"]["spec"]["affinity"].clone()
    };

    let follower = service("[X-Fleet]\nMachineOf=leader.service");
    let converted = convert(&[unit("leader", &plain), unit("follower", &follower)]).unwrap();
    assert_eq!(affinity(&converted, "follower")["podAffinity"][required], term("leader"));
    assert_eq!(affinity(&converted, "leader"), Value::Null);
    let pod = &find(&converted, "Deployment", "follower")["spec"]["template"]["metadata"];
    assert_eq!(pod["annotations"][mainstay::FOLLOW], "true", "it moves along");

    let rival = service("[X-Fleet]\nConflicts=lead*");
    let converted = convert(&[unit("leader", &plain), unit("rival", &rival)]).unwrap();
    assert_eq!(affinity(&converted, "rival")["podAntiAffinity"][required], term("leader"));

    let newer = service("[X-Fleet]\nReplaces=leader*");
    let converted = convert(&[unit("leader", &plain), unit("newer", &newer)]).unwrap();
    assert_eq!(converted.manifests[0]["kind"], "PriorityClass");
    assert_eq!(
        find(&converted, "Deployment", "newer")["spec"]["template"]["spec"]["priorityClassName"],
        PRIORITY_CLASS
    );
    assert_eq!(affinity(&converted, "newer")["podAntiAffinity"][required], term("leader"));

    let back = service("[X-Fleet]\nReplaces=newer*");
    let converted = convert(&[unit("leader", &back), unit("newer", &newer)]).unwrap();
    assert!(converted.manifests.iter().all(|manifest| manifest["kind"] == "Deployment"), "a circle is ignored");
    assert!(notes(&converted).iter().any(|note| note.contains("both replace each other")));

    let alone = convert(&[unit("rival", &rival)]).unwrap();
    assert!(notes(&alone)[0].contains("matches no other of the units given"), "{:?}", notes(&alone));
}

#[test]
fn what_cannot_become_a_manifest_is_refused_and_says_why() {
    let error = |units: &[Unit]| {
        let error = convert(units).unwrap_err();
        let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    };
    let plain = service("");
    assert_eq!(error(&[unit("a@", &plain)]), "a@.service is a template; give instances of it, such as a@1");
    assert_eq!(error(&[unit("a", &plain), unit("a", &plain)]), "a.service is given twice");
    assert_eq!(
        error(&[unit("a_b", &plain), unit("a.b.service", &plain)]),
        "a_b.service and a.b.service would both be called \"a-b\""
    );
    assert_eq!(error(&[unit("a", "[Service]\n")]), "a.service: there is no ExecStart in [Service]");
    assert_eq!(
        error(&[unit("a", "[Service]\nExecStart=/usr/bin/docker start -a x")]),
        "a.service: line 2: ExecStart: only `docker run` names an image; use it in place of this command"
    );
    assert_eq!(
        error(&[unit("a", &service("[X-Fleet]\nGlobal=1\nMachineID=x"))]),
        "a.service: MachineID and Global contradict each other; leave one of them out"
    );
    assert_eq!(
        error(&[unit("a", "[Service]\nExecStart=/bin/echo %m")]),
        "a.service: line 2: ExecStart: %m is not known here; parts of the unit's name (%i, %I, %j, %p, %P, %n, %N), directories (%t, %S, %C, \
         %L, %E, %T, %V, %h), %H and %% are"
    );
}

#[test]
fn other_types_of_units_are_named_and_left_out() {
    let converted = convert(&[unit("a.timer", "[Timer]\nOnCalendar=daily"), unit("a", &service(""))]).unwrap();
    assert_eq!(converted.manifests.len(), 1);
    assert_eq!(notes(&converted), ["a.timer: a timer has no manifest; only services become pods"]);
}

/// Units as fleet's and Deis' users had them.
const PUBLISHED: [(&str, &str); 4] = [
    ("subgun-http@1", include_str!("../../testdata/published/subgun-http@.service")),
    ("subgun-presence@1", include_str!("../../testdata/published/subgun-presence@.service")),
    ("apache-discovery@1", include_str!("../../testdata/published/apache-discovery@.service")),
    ("deis-router", include_str!("../../testdata/published/deis-router.service")),
];

#[test]
fn units_that_people_published_become_manifests() {
    let units: Vec<Unit> = PUBLISHED.iter().map(|(name, text)| unit(name, text)).collect();
    let converted = convert(&units).unwrap();
    let pod = |kind: &str, name: &str| find(&converted, kind, name)["spec"]["template"]["spec"].clone();
    let subgun = pod("Deployment", "subgun-http-1");
    assert_eq!(subgun["containers"][0]["image"], "coreos/subgun");
    assert_eq!(
        subgun["containers"][0]["ports"],
        json!([{ "containerPort": 8080, "hostPort": 8080, "protocol": "TCP" }])
    );
    let presence = pod("Deployment", "subgun-presence-1");
    let beside = &presence["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(
        beside["labelSelector"]["matchLabels"],
        find(&converted, "Deployment", "subgun-http-1")["metadata"]["labels"]
    );
    // The shell announces the machine that the pod is on.
    let announce = pod("Deployment", "apache-discovery-1")["containers"][0].clone();
    assert_eq!(announce["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    let script = announce["command"][2].as_str().unwrap();
    assert!(script.contains(r#"apache@1 '{ "host": "$(UNIT_HOST)", "port": 80"#), "{script}");
    let router = pod("DaemonSet", "deis-router");
    assert_eq!(
        (&router["containers"][0]["image"], router["initContainers"].as_array().map(Vec::len)),
        (&json!("host"), Some(2))
    );

    let notes = notes(&converted);
    for note in [
        "apache-discovery@1.service:12: names none of the units given",
        "deis-router.service:5: EnvironmentFile=/etc/environment: is not read",
        "deis-router.service:12: RestartSec=5: the wait before a restart",
    ] {
        assert!(notes.iter().any(|own| own.starts_with(note)), "{note}: {notes:#?}");
    }
    for ((name, text), unit) in PUBLISHED.iter().zip(&units) {
        let again = UnitFile::parse(&unit.file.to_string()).unwrap();
        let plain = |file: &UnitFile| {
            file.options
                .iter()
                .map(|own| (own.section.clone(), own.name.clone(), own.value.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(plain(&again), plain(&UnitFile::parse(text).unwrap()), "{name}");
    }
}

#[test]
fn the_name_of_the_machine_is_for_commands_that_start() {
    let text = "[Service]\nExecStart=/bin/announce %H\nExecStop=/bin/withdraw %H\nRestart=always\n";
    let refused = convert(&[unit("web", text)]).unwrap_err().to_string();
    assert!(refused.contains("line 2: ExecStart: %H is known to commands that start"), "{refused}");
}
