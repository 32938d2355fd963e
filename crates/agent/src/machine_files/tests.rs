//! With a real API, real files and real commands; as root.

use std::{fs, os::unix::fs::PermissionsExt, sync::atomic::Ordering};

use kube::api::{DeleteParams, PostParams};
use mainstay_testing::until;

use super::*;
use crate::{machine_steps::CommandLine, testing};

/// A machine that allows one directory, with a command that notes each change and fails for content that says so.
struct TestMachine {
    directory: tempfile::TempDir,
    client: Client,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl TestMachine {
    fn start(client: Client) -> Self {
        Self::start_again(tempfile::tempdir().unwrap(), client)
    }

    /// With what an earlier agent left.
    fn start_again(directory: tempfile::TempDir, client: Client) -> Self {
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("etc")).unwrap();
        let text = format!("cat $MAINSTAY_FILE >> {}; ! grep -q bad $MAINSTAY_FILE", at("ran").display());
        let allowed = AllowedDirectory {
            directory: at("etc"),
            namespaces: vec!["default".to_owned()],
            on_change: Some(CommandLine { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), text] }),
            on_change_timeout: Duration::from_secs(60),
        };
        let instance = format!("mainstay-test-{}-{}", std::process::id(), fastrand::u32(..));
        let settings = Settings {
            directory: at("agent"),
            node_name: "m1".to_owned(),
            instance,
            machine_files: vec![allowed],
            ..testing::settings()
        };
        let stop = CancellationToken::new();
        let files = MachineFiles { client: client.clone(), settings: Arc::new(settings) };
        let task = tokio::spawn(files.run(stop.clone()));
        Self { directory, client, stop, task }
    }

    /// Ends the agent; what it left stays.
    async fn stop(self) -> (tempfile::TempDir, Client) {
        self.stop.cancel();
        self.task.await.unwrap();
        (self.directory, self.client)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path_of(name)).unwrap_or_default()
    }

    fn files(&self) -> Api<MachineFile> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Has the machine have a content as a file, as the controller would.
    async fn want(&self, name: &str, file: &str, content: &str) {
        let copy = format!("{name}-{}", &digest(content.as_bytes())[..10]);
        let map = json!({ "metadata": { "name": copy }, "data": { "k": content } });
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        let path = if file.starts_with('/') { PathBuf::from(file) } else { self.path_of("etc").join(file) };
        let spec = json!({
            "nodeName": "m1", "template": name, "version": &digest(content.as_bytes())[..10], "path": path,
            "mode": "0640", "owner": "root", "group": "12", "content": { "configMap": { "name": copy, "key": "k" } },
        });
        let object = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "MachineFile", "metadata": { "name": name }, "spec": spec,
        });
        let params = PatchParams::apply("test").force();
        self.files().patch(name, &params, &Patch::Apply(object)).await.unwrap();
    }

    /// Waits until the machine says this of the present spec: the reason, or nothing.
    async fn until_reported(&self, name: &str, reason: &str) -> MachineFileStatus {
        until(&format!("{name} is reported as {reason:?}"), async || {
            let file = self.files().get(name).await.unwrap();
            file.current_status().is_some_and(|status| status.reason == reason)
        })
        .await;
        self.files().get(name).await.unwrap().status.unwrap()
    }
}

#[tokio::test]
async fn a_file_is_written_with_its_mode_and_owner_changes_and_goes_with_its_object() {
    let machine = TestMachine::start(testing::api(&["default"]).await);
    machine.want("zones", "zones.conf", "one\n").await;
    let status = machine.until_reported("zones", "").await;
    assert_eq!(status.version.as_deref(), Some(&digest(b"one\n")[..10]));
    assert_eq!(machine.read("etc/zones.conf"), "one\n");
    let meta = fs::metadata(machine.path_of("etc/zones.conf")).unwrap();
    let owner = (std::os::unix::fs::MetadataExt::uid(&meta), std::os::unix::fs::MetadataExt::gid(&meta));
    assert_eq!((meta.permissions().mode() & 0o7777, owner), (0o640, (0, 12)));
    machine.want("zones", "zones.conf", "two\n").await;
    machine.until_reported("zones", "").await;
    assert_eq!((machine.read("etc/zones.conf"), machine.read("ran")), ("two\n".to_owned(), "one\ntwo\n".to_owned()));
    // Another path: the file moves.
    machine.want("zones", "other.conf", "three\n").await;
    machine.until_reported("zones", "").await;
    assert!(!machine.path_of("etc/zones.conf").exists());
    assert_eq!(machine.read("etc/other.conf"), "three\n");
    machine.files().delete("zones", &DeleteParams::default()).await.unwrap();
    until("the file is removed", async || !machine.path_of("etc/other.conf").exists()).await;
    assert_eq!(fs::read_dir(machine.path_of("etc")).unwrap().count(), 0, "nothing stays beside it");
}

#[tokio::test]
async fn what_is_not_allowed_or_not_ours_is_refused_and_left_alone() {
    let machine = TestMachine::start(testing::api(&["default"]).await);
    machine.want("outside", "/etc/mainstay-test-outside", "x").await;
    let status = machine.until_reported("outside", reason::NOT_ALLOWED).await;
    assert!(status.message.contains("/etc/mainstay-test-outside is not below a directory"), "{}", status.message);
    assert!(!Path::new("/etc/mainstay-test-outside").exists());
    fs::write(machine.path_of("etc/theirs"), "an administrator's").unwrap();
    machine.want("theirs", "theirs", "ours").await;
    let status = machine.until_reported("theirs", reason::CONFLICT).await;
    assert!(status.message.contains("was made or changed by somebody else") && status.version.is_none(), "{status:?}");
    assert_eq!(machine.read("etc/theirs"), "an administrator's");
    machine.want("first", "shared", "first").await;
    machine.until_reported("first", "").await;
    machine.want("second", "shared", "second").await;
    let status = machine.until_reported("second", reason::CONFLICT).await;
    assert!(status.message.contains("is the file of MachineFile default/first"), "{}", status.message);
    machine.want("deep", "missing/file", "x").await;
    machine.until_reported("deep", reason::WRITE_FAILED).await;
    // What an administrator changed stays when nobody asks for it any longer.
    fs::write(machine.path_of("etc/shared"), "edited").unwrap();
    machine.files().delete("first", &DeleteParams::default()).await.unwrap();
    machine.until_reported("second", reason::CONFLICT).await;
    assert_eq!(machine.read("etc/shared"), "edited");
}

#[tokio::test]
async fn a_command_that_fails_is_reported_and_the_next_version_is_tried() {
    let machine = TestMachine::start(testing::api(&["default"]).await);
    machine.want("zones", "zones.conf", "bad").await;
    let status = machine.until_reported("zones", reason::COMMAND_FAILED).await;
    assert!(status.message.starts_with("exit code 1; output: /"), "{}", status.message);
    assert_eq!(machine.read("etc/zones.conf"), "bad", "whoever asked for it takes it back");
    machine.want("zones", "zones.conf", "good").await;
    machine.until_reported("zones", "").await;
    assert_eq!(machine.read("ran"), "badgood");
}

#[tokio::test]
async fn files_stay_while_no_server_answers_and_what_went_meanwhile_is_removed_later() {
    let api = testing::api(&["default"]).await;
    let machine = TestMachine::start(api.clone());
    machine.want("zones", "zones.conf", "one").await;
    machine.want("stays", "stays.conf", "two").await;
    machine.until_reported("zones", "").await;
    machine.until_reported("stays", "").await;
    let (directory, _) = machine.stop().await;
    let files: Api<MachineFile> = Api::namespaced(api.clone(), "default");
    files.delete("zones", &DeleteParams::default()).await.unwrap();
    // An agent that starts while no server answers knows nothing, and so removes nothing.
    let (client, severed) = testing::severable(api.clone());
    severed.store(true, Ordering::SeqCst);
    let machine = TestMachine::start_again(directory, client);
    tokio::task::yield_now().await;
    assert_eq!((machine.read("etc/zones.conf"), machine.read("etc/stays.conf")), ("one".to_owned(), "two".to_owned()));
    let (directory, _) = machine.stop().await;
    let machine = TestMachine::start_again(directory, api);
    until("the file is removed", async || !machine.path_of("etc/zones.conf").exists()).await;
    assert_eq!((machine.read("etc/stays.conf"), machine.read("ran").len()), ("two".to_owned(), 6), "told once each");
}

#[tokio::test]
async fn an_agent_that_was_killed_between_writing_and_the_command_runs_the_command() {
    let api = testing::api(&["default"]).await;
    let machine = TestMachine::start(api.clone());
    machine.want("zones", "zones.conf", "one").await;
    machine.until_reported("zones", "").await;
    let path = machine.path_of("agent/machine/files.json");
    let (directory, client) = machine.stop().await;
    let mut records = record::read(&path).unwrap();
    let own = records.files.get_mut("default/zones").unwrap();
    (own.done, own.announced) = (None, false);
    record::write(&path, &records).unwrap();
    fs::remove_file(directory.path().join("ran")).unwrap();
    let machine = TestMachine::start_again(directory, client);
    until("the command has run", async || machine.read("ran") == "one").await;
}
