//! With real processes and cgroups; as root.

use std::os::unix::fs::PermissionsExt;

use kube::api::{Patch, PatchParams, PostParams};
use mainstay_api::machine::{Machine, MachineAxis, MachineSpec, MachineState, StateValue};
use mainstay_runtime::cgroup::Cgroup;
use mainstay_testing::until;
use serde_json::json;

use super::*;
use crate::testing;

fn script(text: &str) -> CommandLine {
    CommandLine { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), text.to_owned()] }
}

struct Ran {
    outcome: StepOutcome,
    log: Vec<u8>,
    mode: u32,
    cgroup_exists: bool,
}

async fn run(name: &str, text: &str, timeout: Duration) -> Ran {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("logs/step.log");
    let cgroup = PathBuf::from(format!("mainstay-test-{}/{name}", std::process::id()));
    let (command, environment) = (script(text), vec![("MAINSTAY_VERSION", "v2".to_owned())]);
    let outcome = StepCommand {
        command: &command,
        environment,
        timeout,
        cgroup: cgroup.clone(),
        log: &log,
        reports_output: true,
    }
    .run()
    .await;
    let ran = Ran {
        outcome,
        log: fs::read(&log).unwrap(),
        mode: fs::metadata(&log).unwrap().permissions().mode() & 0o777,
        cgroup_exists: Cgroup::new(&cgroup).exists(),
    };
    Cgroup::new(cgroup.parent().unwrap()).remove_if_empty();
    ran
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_step_knows_its_version_and_its_output_is_kept_for_root_alone() {
    let ran = run("passes", "echo to $MAINSTAY_VERSION; echo also >&2; cat", LONG).await;
    assert_eq!(ran.outcome, StepOutcome::Passed);
    assert_eq!((String::from_utf8(ran.log).unwrap(), ran.mode), ("to v2\nalso\n".to_owned(), 0o600));
    assert!(!ran.cgroup_exists);
}

#[tokio::test]
async fn a_failure_names_its_exit_code_and_where_the_output_is() {
    let ran = run("fails", "echo the disk is full; exit 3", LONG).await;
    let StepOutcome::Failed { message, output } = ran.outcome else { panic!("passed") };
    assert!(message.starts_with("exit code 3; output: /"), "{message}");
    assert_eq!(output, "the disk is full");
    assert!(matches!(run("waits", "exit 75", LONG).await.outcome, StepOutcome::Pending { .. }));
}

#[tokio::test]
async fn a_step_that_hangs_is_killed_with_everything_it_forked() {
    let ran = run("hangs", "setsid sleep 1000 & sleep 1000", Duration::from_millis(300)).await;
    let StepOutcome::Failed { message, .. } = ran.outcome else { panic!("passed") };
    assert!(message.starts_with("killed: it took longer than 300ms"), "{message}");
    assert!(!ran.cgroup_exists, "its processes are gone");
}

#[tokio::test]
async fn a_step_that_forks_for_ever_is_bounded() {
    let ran = run("forks", "while :; do sleep 1000 & done", Duration::from_millis(300)).await;
    assert!(matches!(ran.outcome, StepOutcome::Failed { .. }));
    assert!(!ran.cgroup_exists, "its processes are gone");
}

#[tokio::test]
async fn what_a_passing_step_left_running_is_killed() {
    let ran = run("leaves", "setsid sleep 1000 & exit 0", LONG).await;
    assert_eq!(ran.outcome, StepOutcome::Passed);
    assert!(!ran.cgroup_exists);
}

#[tokio::test]
async fn of_a_gigabyte_of_output_the_end_is_kept() {
    let ran = run("prints", "head -c 1000000000 /dev/zero; echo end", LONG).await;
    assert_eq!(ran.outcome, StepOutcome::Passed);
    assert_eq!(ran.log.len(), runner::OUTPUT_TAIL);
    assert!(ran.log.ends_with(b"\0end\n"));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let command = CommandLine { program: "/nowhere/update".into(), arguments: vec![] };
    let cgroup = PathBuf::from(format!("mainstay-test-{}/missing", std::process::id()));
    let log = directory.path().join("step.log");
    let step =
        StepCommand { command: &command, environment: vec![], timeout: LONG, cgroup, log: &log, reports_output: false };
    let StepOutcome::Failed { message, .. } = step.run().await else { panic!("passed") };
    assert!(message.starts_with("exit code 127"), "{message}");
    assert!(fs::read_to_string(&log).unwrap().contains("/nowhere/update"));
}

/// A machine whose steps are scripts in a directory.
struct TestMachine {
    directory: tempfile::TempDir,
    client: Client,
    stop: CancellationToken,
}

impl TestMachine {
    fn start(client: Client, checks: &[(&str, &str)]) -> Self {
        Self::start_again(tempfile::tempdir().unwrap(), client, checks)
    }

    /// With what an earlier agent left.
    fn start_again(directory: tempfile::TempDir, client: Client, checks: &[(&str, &str)]) -> Self {
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("checks")).unwrap();
        for (name, text) in checks {
            let path = at("checks").join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let note = |word: &str| Some(script(&format!("echo {word} $MAINSTAY_VERSION >> {}", at("ran").display())));
        let update = "[ $MAINSTAY_VERSION != v404 ] || { echo no such version; exit 1; }";
        let update = format!("echo update $MAINSTAY_VERSION >> {}; {update}", at("ran").display());
        let commands = MachineCommands {
            update: Some(script(&update)),
            static_: note("static"),
            dynamic: note("dynamic"),
            validate: Some(at("checks")),
            version_file: at("current_version"),
            watch: vec![at("inputs")],
            ..MachineCommands::default()
        };
        let instance = format!("mainstay-test-{}-{}", std::process::id(), fastrand::u32(..));
        let settings = Settings { directory: at("agent"), instance, ..testing::settings() };
        let (events, _writer) = Events::new("m1");
        let steps = MachineSteps {
            client: client.clone(),
            settings: Arc::new(settings),
            commands,
            events,
            node: watch::channel(None).1,
            drain: Arc::new(|_| Box::pin(std::future::ready(Ok(())))),
            takes_no_pods: watch::channel(false).0,
        };
        let stop = CancellationToken::new();
        tokio::spawn(steps.run(stop.clone()));
        Self { directory, client, stop }
    }

    fn machines(&self) -> Api<Machine> {
        Api::all(self.client.clone())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    async fn want(&self, version: &str) {
        let patch = Patch::Merge(json!({"spec": {"version": version}}));
        self.machines().patch("m1", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn reports(&self, what: &str, is_so: impl Fn(&Machine) -> bool) {
        until(what, async || self.machines().get("m1").await.is_ok_and(|machine| is_so(&machine))).await;
    }
}

impl Drop for TestMachine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn api_with_machine() -> Client {
    let client = testing::api(&[]).await;
    let machines: Api<Machine> = Api::all(client.clone());
    machines.create(&PostParams::default(), &Machine::new("m1", MachineSpec::default())).await.unwrap();
    client
}

#[tokio::test]
async fn a_machine_brings_itself_to_the_version_that_is_wanted_and_configures_anew_on_changes() {
    let machine = TestMachine::start(api_with_machine().await, &[("10-ok", "exit 0")]);
    machine.reports("valid without a version", |own| is_validated(own, StateValue::Success)).await;
    machine.want("v2").await;
    machine.reports("version v2 runs", |own| own.running_version() == Some("v2")).await;
    assert_eq!(machine.read("ran"), "static\ndynamic\nupdate v2\nstatic v2\ndynamic v2\n");
    assert_eq!(machine.read("current_version"), "v2\n");
    fs::write(machine.directory.path().join("inputs"), "members: 2").unwrap();
    until("dynamic configuration again", async || machine.read("ran").matches("dynamic v2").count() == 2).await;
}

#[tokio::test]
async fn a_version_that_fails_validation_does_not_run() {
    let checks = [("10-fails-at-v2", "echo no route; [ \"$MAINSTAY_VERSION\" != v2 ]")];
    let machine = TestMachine::start(api_with_machine().await, &checks);
    machine.want("v1").await;
    machine.reports("version v1 runs", |own| own.running_version() == Some("v1")).await;
    machine.want("v2").await;
    machine.reports("validation failed", |own| is_validated(own, StateValue::Failed)).await;
    let own = machine.machines().get("m1").await.unwrap();
    assert_eq!(own.running_version(), Some("v1"));
    let status = own.status.unwrap();
    let MachineState { message, output, .. } = status.validated.unwrap();
    assert!(message.starts_with("check 10-fails-at-v2: exit code 1; output: /"), "{message}");
    assert_eq!(output, "check 10-fails-at-v2:\nno route");
    assert_eq!(status.configured.unwrap().state, StateValue::Success);
    machine.want("v1").await;
    machine.reports("back at v1", |own| is_validated(own, StateValue::Success)).await;
    let own = machine.machines().get("m1").await.unwrap();
    let validated = own.state(MachineAxis::Validated).unwrap();
    assert_eq!((validated.message.as_str(), validated.output.as_str()), ("", ""), "nothing of the failure stays");
    assert!(machine.read("ran").ends_with("update v1\nstatic v1\ndynamic v1\n"), "{}", machine.read("ran"));
}

#[tokio::test]
async fn what_is_true_is_reported_anew_to_a_machine_that_was_made_anew_or_set_back() {
    let machine = TestMachine::start(api_with_machine().await, &[("10-ok", "exit 0")]);
    machine.want("v1").await;
    machine.reports("version v1 runs", |own| own.running_version() == Some("v1")).await;
    // As after the store was restored from a backup.
    let older = Patch::Merge(json!({"status": {
        "validated": {"state": "failed", "since": "2026-01-01T00:00:00Z", "message": "exit code 1"}, "version": {"running": "v0"},
    }}));
    machine.machines().patch_status("m1", &PatchParams::default(), &older).await.unwrap();
    let is_true = |own: &Machine| own.running_version() == Some("v1") && is_validated(own, StateValue::Success);
    machine.reports("what is true", is_true).await;
    machine.machines().delete("m1", &Default::default()).await.unwrap();
    machine.machines().create(&PostParams::default(), &Machine::new("m1", MachineSpec::default())).await.unwrap();
    machine.reports("what is true, to the new object", is_true).await;
    let ran = machine.read("ran");
    assert_eq!(ran.matches("update").count(), 1, "nothing is done twice: {ran}");
}

#[tokio::test]
async fn a_machine_goes_on_while_no_server_answers() {
    let (client, severed) = testing::severable(api_with_machine().await);
    severed.store(true, std::sync::atomic::Ordering::SeqCst);
    let directory = tempfile::tempdir().unwrap();
    let desired = DesiredVersion { version: Some("v3".to_owned()), drain: false };
    let record = StepRecord { desired, running: Some("v2".to_owned()), ..StepRecord::default() };
    record_file::write(&directory.path().join("agent/machine/steps.json"), &record);
    let machine = TestMachine::start_again(directory, client, &[]);
    until("version v3 runs", async || machine.read("current_version") == "v3\n").await;
    assert_eq!(machine.read("ran"), "update v3\nstatic v3\ndynamic v3\n");
}

#[tokio::test]
async fn a_machine_that_was_away_goes_to_what_is_wanted_by_now() {
    let client = api_with_machine().await;
    let directory = tempfile::tempdir().unwrap();
    let desired = DesiredVersion { version: Some("v2".to_owned()), drain: false };
    let mut record = StepRecord { desired, running: Some("v1".to_owned()), ..StepRecord::default() };
    record.begin(Step::Update, "v2", 0, Timestamp::now());
    record_file::write(&directory.path().join("agent/machine/steps.json"), &record);
    let machines: Api<Machine> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"version": "v3"}}));
    machines.patch("m1", &PatchParams::default(), &patch).await.unwrap();
    let machine = TestMachine::start_again(directory, client, &[]);
    machine.reports("version v3 runs", |own| own.running_version() == Some("v3")).await;
    assert_eq!(machine.read("ran"), "update v3\nstatic v3\ndynamic v3\n", "its update to v2 was cut off");
}

#[tokio::test]
async fn a_version_that_does_not_exist_fails_at_the_update_and_is_named() {
    let machine = TestMachine::start(api_with_machine().await, &[]);
    machine.want("v1").await;
    machine.reports("version v1 runs", |own| own.running_version() == Some("v1")).await;
    machine.want("v404").await;
    let is_failed =
        |own: &Machine| own.state(MachineAxis::Configured).is_some_and(|own| own.state == StateValue::Failed);
    machine.reports("the update failed", is_failed).await;
    let own = machine.machines().get("m1").await.unwrap();
    let MachineState { message, output, .. } = own.state(MachineAxis::Configured).unwrap();
    assert!(message.starts_with("update to version \"v404\": exit code 1; output: /"), "{message}");
    assert_eq!(output, "no such version");
    assert_eq!((own.running_version(), &*machine.read("current_version")), (Some("v1"), "v1\n"));
    assert!(machine.read("ran").ends_with("dynamic v1\nupdate v404\n"), "nothing is configured for it");
    machine.want("v1").await;
    machine.reports("back at v1", |own| is_validated(own, StateValue::Success)).await;
}

fn is_validated(machine: &Machine, state: StateValue) -> bool {
    machine.status.as_ref().and_then(|status| status.validated.as_ref()).is_some_and(|own| own.state == state)
}
