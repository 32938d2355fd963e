//! Machines that bring themselves to a version, and the commands about them; each machine is a network namespace.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    harness::{Machines, PATIENCE, command::run, eventually, machines::SERVER},
    services::lab::Lab,
};

/// Longer than a release of all machines takes here, with servers that are killed meanwhile.
const LONG: Duration = Duration::from_secs(400);

/// A machine whose steps note what they do, and whose check fails at a version that a file names.
fn configure(machines: &Machines, name: &str) -> String {
    let directory = machines.dir().join(format!("{name}-machine"));
    let checks = directory.join("checks");
    fs::create_dir_all(&checks).expect("make a directory");
    let directory = directory.display();
    let script = |path: &Path, text: String| {
        fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("write a script");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("make it executable");
    };
    let check = format!(
        "echo looking at disk sda; [ ! -f {directory}/broken ] || [ \"$MAINSTAY_VERSION\" != \"$(cat {directory}/broken)\" ]"
    );
    script(&checks.join("10-version"), check);
    let config = machines.dir().join(format!("{name}.toml"));
    let text = format!(
        "[machine]\nupdate = [\"/bin/sh\", \"-c\", \"while [ -f {directory}/hold ]; do sleep 0.2; done; echo $MAINSTAY_VERSION >> {directory}/updates; \
         [ $MAINSTAY_VERSION != v404 ] || {{ echo there is no v404; exit 1; }}\"]\n\
         static = [\"/bin/true\"]\ndynamic = [\"/bin/true\"]\nvalidate = \"{}\"\nversion-file = \"{directory}/version\"\n",
        checks.display()
    );
    fs::write(&config, text).expect("write the configuration");
    config.display().to_string()
}

/// Versions that a machine was updated to.
fn updates(machines: &Machines, name: &str) -> String {
    let noted = fs::read_to_string(machines.dir().join(format!("{name}-machine/updates"))).unwrap_or_default();
    noted.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn create_release(machines: &Machines, spec: &Value) {
    let release =
        json!({"apiVersion": "mainstay.dev/v1", "kind": "Release", "metadata": {"name": "all"}, "spec": spec});
    machines.kubectl(&["create", "-f", "-"], &release.to_string()).ok();
}

struct Fleet(Machines);

impl Fleet {
    fn start(names: &[&str]) -> Self {
        let mut machines = Machines::wired(names);
        machines.start_server();
        for name in names {
            let config = configure(&machines, name);
            machines.start_agent_with(name, &["--config", &config]);
        }
        machines.all_ready();
        Self(machines)
    }

    /// A machine that was cut off is back, with its disk as it was.
    fn bring_back(&mut self, name: &str) {
        self.0.plug(name, true);
        let config = self.0.dir().join(format!("{name}.toml")).display().to_string();
        self.0.start_agent_with(name, &["--config", &config]);
    }

    /// What a command of the administrator answers: its code and what it prints.
    fn ask(&self, arguments: &[&str], input: &str) -> (i32, String) {
        let output = run(self.0.mainstay(SERVER, arguments), &arguments.join(" "), input, PATIENCE);
        (output.code, output.stdout)
    }

    fn get(&self, what: &str) -> Value {
        let text = self.0.kubectl(&["get", what, "-o", "json"], "").stdout;
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn running(&self, machine: &str) -> String {
        let machine = self.get(&format!("machine/{machine}"));
        machine["status"]["version"]["running"].as_str().unwrap_or_default().to_owned()
    }

    fn phase(&self, phase: &str) -> Value {
        eventually(&format!("the release is {phase}"), || {
            let release = self.get("release/all");
            (release["status"]["phase"] == phase
                && release["status"]["observedGeneration"] == release["metadata"]["generation"])
                .then_some(release)
        })
    }
}

#[test]
fn a_release_brings_machines_to_a_version_in_waves_and_halts_at_one_that_fails() {
    let fleet = Fleet::start(&["a", "b", "c"]);
    eventually("all machines report", || {
        let machines = fleet.get("machines");
        let items = machines["items"].as_array()?.iter();
        (items.filter(|own| own["status"]["validated"]["state"] == "success").count() == 3).then_some(())
    });
    let spec = json!({"version": "v1", "selector": {}, "waves": [{"machines": ["b"]}], "maxUnavailable": 2});
    create_release(&fleet.0, &spec);
    fleet.phase("Complete");
    assert_eq!(["a", "b", "c"].map(|name| fleet.running(name)), ["v1", "v1", "v1"]);
    assert_eq!(fleet.ask(&["machine", "running-versions"], ""), (0, "v1\n".to_owned()));
    assert_eq!(fleet.ask(&["machine", "hosts-at-version", "v1"], ""), (0, "a\nb\nc\n".to_owned()));
    assert_eq!(fleet.ask(&["machine", "verify-hosts", "v1"], "a\nc\n").0, 0);
    assert_eq!(fleet.ask(&["machine", "verify-hosts", "v2", "a"], "").0, 1);
    assert_eq!(fleet.ask(&["machine", "check-single-version", "v1"], "").0, 0);
    assert_eq!(fleet.ask(&["machine", "get-failures"], "").0, 0);

    // The canary's check fails at v2: nobody else moves, and it keeps running v1.
    fs::write(fleet.0.dir().join("b-machine/broken"), "v2").expect("break v2");
    assert_eq!(fleet.ask(&["machine", "trigger-update", "v2"], "").0, 0);
    let stuck = fleet.phase("Stuck");
    assert!(
        stuck["status"]["failures"][0]["message"].as_str().unwrap().contains("check 10-version: exit code 1"),
        "{stuck}"
    );
    assert_eq!(["a", "b", "c"].map(|name| fleet.running(name)), ["v1", "v1", "v1"]);
    let (code, shown) = fleet.ask(&["release", "status"], "");
    assert!(code == 1 && shown.contains("wave 1") && shown.contains("b: check 10-version"), "{shown}");
    assert!(shown.contains("\n    | looking at disk sda"), "{shown}");
    let (_, shown) = fleet.ask(&["release", "status", "--json"], "");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["machines"][0]["output"], "check 10-version:\nlooking at disk sda", "{shown}");
    assert_eq!(fleet.ask(&["machine", "get-failures", "--hosts"], ""), (1, "b\n".to_owned()));
    assert_eq!(fleet.ask(&["machine", "local-health", "--hostname", "b"], "").0, 1);
    assert_eq!((updates(&fleet.0, "a"), updates(&fleet.0, "b")), ("v1".to_owned(), "v1 v2".to_owned()));

    // Back to v1: the machine that was half way is updated again.
    assert_eq!(fleet.ask(&["release", "undo"], "").0, 0);
    fleet.phase("Complete");
    assert_eq!(updates(&fleet.0, "b"), "v1 v2 v1");
    let (_, history) = fleet.ask(&["release", "history"], "");
    let results: Vec<String> =
        history.lines().skip(1).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(results, ["v1 Complete", "v2 Superseded", "v1 Complete"], "{history}");
    assert_eq!(fleet.ask(&["machine", "check-single-version", "v1"], "").0, 0);

    // A version that does not exist reaches the canary alone, and is named.
    assert_eq!(fleet.ask(&["machine", "trigger-update", "v404"], "").0, 0);
    let stuck = fleet.phase("Stuck");
    let message = stuck["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("b (update to version \"v404\": exit code 1"), "{message}");
    let (_, shown) = fleet.ask(&["release", "status"], "");
    assert!(shown.contains("\n    | there is no v404"), "{shown}");
    assert_eq!(["a", "b", "c"].map(|name| fleet.running(name)), ["v1", "v1", "v1"]);
    assert_eq!((updates(&fleet.0, "a"), updates(&fleet.0, "b")), ("v1".to_owned(), "v1 v2 v1 v404".to_owned()));
    assert_eq!(fleet.ask(&["release", "undo"], "").0, 0);
    fleet.phase("Complete");

    // A node writes the status of its own machine alone.
    let report = |name: &str, own: &str| {
        let arguments = ["machine", "update-own-status", "--hostname", own, "validation", "0"];
        run(fleet.0.mainstay(name, &arguments), "update-own-status", "", PATIENCE)
    };
    report("a", "a").ok();
    let refused = report("a", "b").refused();
    assert!(refused.contains("the machine with the same name as the node"), "{refused}");
}

#[test]
fn an_update_is_pending_in_six_ways_and_machines_are_accounted_for() {
    let mut fleet = Fleet::start(&["a"]);
    let version = fleet.0.dir().join("local");
    let pending = |fleet: &Fleet, local: Option<&str>| {
        let _ = fs::remove_file(&version);
        if let Some(local) = local {
            let set = ["machine", "local-version", local, "--version-file", version.to_str().unwrap()];
            assert_eq!(fleet.ask(&set, "").0, 0);
        }
        let asked = ["machine", "pending-update", "--hostname", "a", "--version-file", version.to_str().unwrap()];
        fleet.ask(&asked, "").0
    };
    assert_eq!(pending(&fleet, Some("v1")), 3, "no version is wanted");
    assert_eq!(fleet.ask(&["machine", "current-version"], ""), (0, "None\n".to_owned()));
    assert_eq!(fleet.ask(&["machine", "trigger-update", "v2"], "").0, 0);
    assert_eq!(fleet.ask(&["machine", "current-version"], ""), (0, "v2\n".to_owned()));
    eventually("the machine is asked for v2", || (fleet.get("machine/a")["spec"]["version"] == "v2").then_some(()));
    assert_eq!(pending(&fleet, Some("v1")), 0, "another version is wanted");
    assert_eq!(pending(&fleet, None), 0, "it has none");
    assert_eq!(pending(&fleet, Some("v2")), 1, "up to date");
    assert_eq!(fleet.ask(&["machine", "ping"], ""), (0, "success\n".to_owned()));
    assert_eq!(fleet.ask(&["machine", "pending-update", "--no-such-flag"], "").0, 64);
    assert_eq!(fleet.ask(&["machine", "trigger-update", "a b"], "").0, 64);

    // A service of the machine that fails counts as a failure of the machine, also for the machine itself.
    let service = fleet.0.data("a").join("services.d/bad.json");
    let definition = json!({"name": "bad", "port": 80, "check": {"script": "exit 2", "interval": "1s"}});
    fs::write(&service, definition.to_string()).expect("define a service");
    fs::set_permissions(&service, fs::Permissions::from_mode(0o644)).expect("set its mode");
    eventually("its failure is listed", || {
        let (code, list) = fleet.ask(&["machine", "get-failures"], "");
        (code == 1 && list.starts_with("a/service:bad: critical")).then_some(())
    });
    let health =
        run(fleet.0.mainstay("a", &["machine", "local-health", "--hostname", "a", "-v"]), "health", "", PATIENCE);
    assert!(health.code == 1 && health.stdout.starts_with("service:bad: critical"), "{health}");

    assert_eq!(fleet.ask(&["machine", "expect"], "a\nz\n").0, 0);
    eventually("the machine that never came is listed", || {
        let (code, list) = fleet.ask(&["machine", "list", "--unaccounted"], "");
        (code == 1 && list.contains("NeverSeen") && list.contains("z ") && !list.contains("a ")).then_some(())
    });

    fleet.0.kill_server();
    assert_eq!(pending(&fleet, Some("v1")), 2, "nobody answers");
    assert_eq!(pending(&fleet, None), 3, "and there is no local version");
    assert_eq!(fleet.ask(&["machine", "ping"], "").0, 1);
}

#[test]
fn a_machine_that_dies_half_way_or_was_away_for_long_follows_when_it_returns() {
    let names = ["a", "b", "c", "d"];
    let mut fleet = Fleet::start(&names);
    create_release(&fleet.0, &json!({"version": "v1", "selector": {}, "maxUnavailable": 3}));
    fleet.phase("Complete");

    // d is away; b dies in the middle of its update. The others move all the same, and the release waits.
    fleet.0.cut("d");
    eventually("d is known to be silent", || {
        (fleet.get("machine/d")["status"]["seen"]["state"] == "failed").then_some(())
    });
    fs::write(fleet.0.dir().join("b-machine/hold"), "").expect("hold it");
    assert_eq!(fleet.ask(&["machine", "trigger-update", "v2"], "").0, 0);
    eventually("b is in the middle of its update", || {
        let own = fleet.get("machine/b");
        (own["status"]["version"]["wanted"] == "v2" && own["status"]["configured"]["state"] == "running").then_some(())
    });
    fleet.0.cut("b");
    eventually("the others moved", || ["a", "c"].iter().all(|name| fleet.running(name) == "v2").then_some(()));
    eventually("both that are away are named as silent", || {
        let (code, list) = fleet.ask(&["machine", "list", "--unaccounted"], "");
        let silent = |name: &str| list.lines().any(|line| line.starts_with(name) && line.ends_with("Silent"));
        (code == 1 && silent("b ") && silent("d ")).then_some(())
    });
    let unexpired = ["machine", "hosts-at-version", "v1", "--expiry", "0s"];
    assert_eq!(fleet.ask(&unexpired, ""), (0, String::new()), "what silent machines run is not known");
    let release = fleet.get("release/all");
    assert_ne!(release["status"]["phase"], "Complete", "{release}");
    assert_eq!(updates(&fleet.0, "d"), "v1");

    // The one that died runs its step again.
    fs::remove_file(fleet.0.dir().join("b-machine/hold")).expect("let it go");
    fleet.bring_back("b");
    eventually("b follows", || (fleet.running("b") == "v2").then_some(()));

    // d comes back when the others are another version further: it goes there at once.
    assert_eq!(fleet.ask(&["machine", "trigger-update", "v3"], "").0, 0);
    eventually("the others moved on", || ["a", "b", "c"].iter().all(|name| fleet.running(name) == "v3").then_some(()));
    fleet.bring_back("d");
    fleet.phase("Complete");
    assert_eq!(names.map(|name| fleet.running(name)), ["v3"; 4]);
    assert_eq!((updates(&fleet.0, "d"), updates(&fleet.0, "a")), ("v1 v3".to_owned(), "v1 v2 v3".to_owned()));
    assert_eq!(fleet.ask(&["machine", "check-single-version", "v3"], "").0, 0);
}

/// Six machines with a pod each are drained and updated in waves, while clients call the pods and the server is killed in every wave.
#[test]
fn a_release_of_six_machines_under_load_fails_no_request() {
    let names = ["a", "b", "c", "d", "e", "f", "client"];
    let fleet = Fleet::start(&names);
    let mut lab = Lab::of(fleet.0);
    lab.kubectl("cordon client");
    let address = lab.start_service("web", json!({}));
    let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    lab.start_web_with("web", 6, json!({"topologySpreadConstraints": spread}));
    lab.create(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }));
    lab.serves("web", 6);
    lab.start_load("load", "client", 2, Duration::from_secs(15), &[&format!("http://{address}/")]);
    let others = json!({"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["client"]}]});
    let waves = json!([{"machines": ["c"]}, {"upTo": "50%"}, {"upTo": "100%"}]);
    let spec = json!({"version": "v1", "selector": others, "waves": waves, "maxUnavailable": 2, "drain": true});
    // No machine ends its update, and so no wave ends, before the server was killed in it.
    let waves = [vec!["c"], vec!["a", "b"], vec!["d", "e", "f"]];
    let directory = lab.machines.dir().to_owned();
    let hold = |name: &str| directory.join(format!("{name}-machine/hold"));
    waves.iter().flatten().for_each(|name| fs::write(hold(name), "").expect("hold its update"));
    create_release(&lab.machines, &spec);

    let (began, mut killed_in) = (Instant::now(), Vec::new());
    loop {
        assert!(began.elapsed() < LONG, "the release is not complete: {}", lab.machines.log(SERVER));
        let read = lab.machines.kubectl(&["get", "release", "all", "-o", "json"], "").stdout;
        let status = serde_json::from_str::<Value>(&read).unwrap_or_default()["status"].take();
        if status["phase"] == "Complete" {
            break;
        }
        let wave = status["wave"].as_u64().and_then(|wave| usize::try_from(wave).ok());
        match wave.filter(|wave| !killed_in.contains(wave) && status["moving"].as_i64() > Some(0)) {
            Some(wave) => {
                lab.machines.kill_server();
                lab.machines.start_server();
                killed_in.push(wave);
                waves[wave].iter().for_each(|name| fs::remove_file(hold(name)).expect("let it go on"));
            }
            None => std::thread::sleep(Duration::from_millis(200)),
        }
    }
    assert_eq!(killed_in, [0, 1, 2], "the server was killed in each wave");
    let versions = names.map(|name| updates(&lab.machines, name));
    assert_eq!(versions, ["v1", "v1", "v1", "v1", "v1", "v1", ""], "each was updated once");
    lab.serves("web", 6);
    lab.answered("load", 20);
    let (requests, failures) = (lab.requests("load"), lab.failures("load", 0.0));
    println!("{} requests during {:?}", requests.len(), began.elapsed());
    assert!(failures.is_empty(), "{} of {} failed: {failures:#?}", failures.len(), requests.len());
}
