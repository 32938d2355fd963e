//! Machines that bring themselves to a version, and the commands about them; each machine is a network namespace.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};

use crate::harness::{Machines, PATIENCE, command::run, eventually, machines::SERVER};

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
    let check = format!("[ ! -f {directory}/broken ] || [ \"$MAINSTAY_VERSION\" != \"$(cat {directory}/broken)\" ]");
    script(&checks.join("10-version"), check);
    let config = machines.dir().join(format!("{name}.toml"));
    let text = format!(
        "[machine]\nupdate = [\"/bin/sh\", \"-c\", \"echo $MAINSTAY_VERSION >> {directory}/updates\"]\n\
         static = [\"/bin/true\"]\ndynamic = [\"/bin/true\"]\nvalidate = \"{}\"\nversion-file = \"{directory}/version\"\n",
        checks.display()
    );
    fs::write(&config, text).expect("write the configuration");
    config.display().to_string()
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
    let release = json!({
        "apiVersion": "mainstay.dev/v1", "kind": "Release", "metadata": {"name": "all"},
        "spec": {"version": "v1", "selector": {}, "waves": [{"machines": ["b"]}], "maxUnavailable": 2},
    });
    fleet.0.kubectl(&["create", "-f", "-"], &release.to_string()).ok();
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
    assert_eq!(fleet.ask(&["machine", "get-failures", "--hosts"], ""), (1, "b\n".to_owned()));
    assert_eq!(fleet.ask(&["machine", "local-health", "--hostname", "b"], "").0, 1);
    let updates = |name: &str| fs::read_to_string(fleet.0.dir().join(format!("{name}-machine/updates"))).unwrap();
    assert_eq!((updates("a"), updates("b")), ("v1\n".to_owned(), "v1\nv2\n".to_owned()));

    // Back to v1: the machine that was half way is updated again.
    assert_eq!(fleet.ask(&["release", "undo"], "").0, 0);
    fleet.phase("Complete");
    assert_eq!(updates("b"), "v1\nv2\nv1\n");
    assert_eq!(fleet.ask(&["machine", "check-single-version", "v1"], "").0, 0);

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
