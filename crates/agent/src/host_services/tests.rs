//! With a real API and real processes; as root.

use std::{fs, os::unix::fs::PermissionsExt};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use mainstay_api::host_service::NAMESPACE;
use mainstay_network::catalogue::{Catalogue, Key};
use mainstay_runtime::cgroup::Cgroup;
use mainstay_testing::until;
use mainstay_watch::Event;
use serde_json::{Value, json};

use super::*;
use crate::{
    host_services::{definition::parse_definitions, health::CheckReport, reports::write_report},
    services::LocalCatalogue,
    testing,
};

/// The services of a machine whose files are in a directory of its own.
struct TestServices {
    directory: tempfile::TempDir,
    client: Client,
    catalogue: Arc<Catalogue>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl TestServices {
    async fn start() -> Self {
        // Every server has namespaces before it serves. The version of a store to which nothing was ever written is 0: a watch from there
        // begins with what there is when it begins, and tells nothing of what came and went before.
        Self::start_again(tempfile::tempdir().unwrap(), testing::api(&["default"]).await)
    }

    fn start_again(directory: tempfile::TempDir, client: Client) -> Self {
        let agent = directory.path().join("agent");
        let instance = format!("mainstay-test-{}-{}", std::process::id(), fastrand::u32(..));
        let settings = Settings { directory: agent, instance, ..testing::settings() };
        let catalogue = Arc::<Catalogue>::default();
        let (local, mut updates) = LocalCatalogue::new(catalogue.clone());
        // As the reconciler of Services does.
        let known = catalogue.clone();
        tokio::spawn(async move {
            let mut names = crate::services::wire::Names::default();
            while let Some(update) = updates.slices.recv().await {
                match update {
                    crate::services::follow::WatchUpdate::Applied(slice) => {
                        let key = crate::services::follow::key(&slice);
                        known.set_slice(key, slice.to_catalogue(&mut names));
                    }
                    crate::services::follow::WatchUpdate::Deleted(key) => drop(known.set_slice(key, None)),
                    _ => {}
                }
            }
        });
        let services = HostServices {
            client: client.clone(),
            settings: Arc::new(settings),
            events: Events::new("m1").0,
            node: watch::channel(Some(Node::default())).1,
            local,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(services.run(stop.clone()));
        Self { directory, client, catalogue, stop, task }
    }

    fn define(&self, file: &str, definition: &Value) {
        let directory = self.directory.path().join("services.d");
        create_private_dir(&directory).unwrap();
        // In one step, as editors and package managers do.
        let (path, next) = (directory.join(file), directory.join("next"));
        fs::write(&next, definition.to_string()).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(next, path).unwrap();
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Names of services and whether they are ready, as the API has them.
    async fn published(&self) -> Vec<(String, bool)> {
        let slices = self.slices().list(&ListParams::default()).await.unwrap().items;
        let mut all: Vec<_> = slices
            .iter()
            .map(|slice| {
                let endpoint = &slice.endpoints.as_ref().unwrap()[0];
                let service = slice.metadata.labels.as_ref().unwrap()["kubernetes.io/service-name"].clone();
                (service, endpoint.conditions.as_ref().unwrap().ready == Some(true))
            })
            .collect();
        all.sort();
        all
    }

    async fn publishes(&self, what: &str, expected: &[(&str, bool)]) {
        let expected: Vec<_> = expected.iter().map(|(name, ready)| ((*name).to_owned(), *ready)).collect();
        until(what, async || self.published().await == expected).await;
    }

    async fn stop(self) -> (tempfile::TempDir, Client) {
        self.stop.cancel();
        self.task.await.unwrap();
        (self.directory, self.client)
    }
}

#[tokio::test]
async fn services_of_files_are_published_follow_their_checks_and_go_with_their_files() {
    let machine = TestServices::start().await;
    let flag = machine.directory.path().join("flag");
    let check = json!({"script": format!("test -f {} || exit 2", flag.display()), "interval": "1s"});
    machine.define("web.json", &json!({"name": "web", "port": 80, "check": check}));
    machine.define("db.json", &json!({"services": [{"name": "db"}, {"name": "beats", "check": {"ttl": "1h"}}]}));
    machine.publishes("what has no check is ready", &[("beats", false), ("db", true), ("web", false)]).await;
    fs::write(&flag, "").unwrap();
    machine.publishes("a check passes", &[("beats", false), ("db", true), ("web", true)]).await;
    let report = CheckReport { status: CheckStatus::Warning, output: String::new(), time: Timestamp::now() };
    write_report(&machine.directory.path().join("agent"), "beats", "service:beats", &report).unwrap();
    machine.publishes("a program told", &[("beats", true), ("db", true), ("web", true)]).await;
    machine.define("db.json", &json!({"name": "db", "port": 0}));
    fs::remove_file(&flag).unwrap();
    machine.publishes("a wrong file changes nothing", &[("beats", true), ("db", true), ("web", false)]).await;
    fs::remove_file(machine.directory.path().join("services.d/db.json")).unwrap();
    machine.publishes("a file is gone", &[("web", false)]).await;
    fs::remove_file(machine.directory.path().join("services.d/web.json")).unwrap();
    machine.publishes("all are gone", &[]).await;
    until("in its own catalogue too", async || machine.catalogue.read().slices().count() == 0).await;
}

#[tokio::test]
async fn what_an_earlier_agent_left_is_removed() {
    let machine = TestServices::start().await;
    machine.define("web.json", &json!({"name": "web", "port": 80}));
    machine.define("old.json", &json!({"name": "old"}));
    machine.publishes("both", &[("old", true), ("web", true)]).await;
    let (directory, client) = machine.stop().await;
    fs::remove_file(directory.path().join("services.d/old.json")).unwrap();
    let machine = TestServices::start_again(directory, client);
    machine.publishes("one that is not wanted any more", &[("web", true)]).await;
    let (directory, client) = machine.stop().await;
    publisher::withdraw_services(&client, "m1").await;
    let machine = TestServices::start_again(directory, client);
    machine.publishes("after `down` and another start", &[("web", true)]).await;
}

#[tokio::test]
async fn a_slice_that_is_deleted_as_soon_as_it_is_published_is_published_again() {
    let machine = TestServices::start().await;
    let options = mainstay_watch::WatchOptions::default();
    let mut events = mainstay_watch::Watch::<EndpointSlice>::new(machine.slices(), options);
    machine.define("web.json", &json!({"name": "web", "port": 80, "check": {"script": "true", "interval": "1s"}}));
    for round in 0..5 {
        let name = until("it is published", async || match events.next().await.unwrap() {
            Ok(Event::Apply(slice) | Event::InitApply(slice)) => slice.metadata.name,
            _ => None,
        });
        let deleted = machine.slices().delete(&name.await, &DeleteParams::default()).await;
        assert!(deleted.is_ok() || round > 0, "{deleted:?}"); // later ones may be news of one that is gone by now
    }
    machine.publishes("it is published in the end", &[("web", true)]).await;
}

#[tokio::test]
async fn a_restart_of_the_agent_takes_nobody_out_of_a_service() {
    let machine = TestServices::start().await;
    let web = json!({"name": "web", "check": {"script": "true", "interval": "1s"}});
    machine.define("web.json", &web);
    machine.publishes("it is healthy", &[("web", true)]).await;
    let (directory, client) = machine.stop().await;
    let record = ServicesRecord::read(&record_path(&directory.path().join("agent"))).unwrap();
    assert!(record.services["web"].health.is_ready());
    let definition = parse_definitions(web.to_string().as_bytes()).unwrap().remove(0);
    assert_eq!(record.services["web"].definition, definition);
    let mut health = record.services["web"].health.clone();
    health.follow(&definition, Timestamp::now());
    assert!(health.is_ready(), "what was known counts until there is a result");
    let machine = TestServices::start_again(directory, client);
    machine.publishes("it stays", &[("web", true)]).await;
}

#[tokio::test]
async fn names_follow_while_no_server_answers() {
    let (client, severed) = testing::severable(testing::api(&[]).await);
    severed.store(true, std::sync::atomic::Ordering::SeqCst);
    let machine = TestServices::start_again(tempfile::tempdir().unwrap(), client);
    machine.define("web.json", &json!({"name": "web", "port": 80}));
    let key = Key::new(NAMESPACE, &mainstay_api::host_service::slice_name("web", "m1", "web"));
    until("it is in the catalogue", async || machine.catalogue.read().slice(&key).is_some()).await;
}

/// One run of a check with this script.
async fn checked(name: &str, script: &str, timeout: &str) -> (CheckReport, bool) {
    let definition = json!({"name": "web", "check": {"script": script, "timeout": timeout, "interval": "24h"}});
    let definition = parse_definitions(definition.to_string().as_bytes()).unwrap().remove(0);
    let cgroup = PathBuf::from(format!("mainstay-test-{}/{name}", std::process::id()));
    let (outcomes, mut received) = mpsc::channel(1);
    let task = CheckTask {
        service: "web".to_owned(),
        definition: definition.checks[0].clone(),
        generation: 1,
        node_name: "m1".to_owned(),
        cgroup: cgroup.clone(),
        turns: Arc::new(Semaphore::new(1)),
        outcomes,
    };
    let running = tokio::spawn(task.run());
    let outcome = received.recv().await.unwrap();
    running.abort();
    (outcome.report, Cgroup::new(&cgroup).exists())
}

#[tokio::test]
async fn checks_that_hang_fork_or_print_for_ever_are_bounded() {
    let (report, is_left) = checked("check-hangs", "setsid sleep 1000 & sleep 1000", "1s").await;
    assert_eq!((report.status, is_left), (CheckStatus::Critical, false));
    assert!(report.output.starts_with("killed: it took longer than 1s"), "{}", report.output);
    let (report, is_left) = checked("check-forks", "while :; do sleep 1000 & done", "1s").await;
    assert_eq!((report.status, is_left), (CheckStatus::Critical, false));
    let (report, is_left) = checked("check-prints", "head -c 100000000 /dev/zero | tr '\\0' x; exit 1", "60s").await;
    assert_eq!((report.status, is_left), (CheckStatus::Warning, false));
    assert!(report.output.len() < reports::LONGEST_OUTPUT + 100, "{}", report.output.len());
    let (report, _) = checked("check-fine", "echo fine on $MAINSTAY_NODE_NAME", "60s").await;
    assert_eq!((report.status, report.output.as_str()), (CheckStatus::Passing, "exit code 0: fine on m1"));
}
