use mainstay_controllers::runtime::reconcile;
use mainstay_testing::{TestApi, until};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    ledger::ClusterId,
    openstack::{CloudsFile, session::Deadlines},
};

/// The controller of Klusters over an API, turned by hand.
struct Bench {
    client: Client,
    controller: KlusterController,
    stop: CancellationToken,
    _api: TestApi,
}

impl Bench {
    async fn new() -> Self {
        let api = TestApi::start(&["kube-system", "default"]).await;
        let (client, stop) = (api.client("test"), CancellationToken::new());
        let klusters: Arc<Cache<Kluster>> = Arc::new(Cache::new());
        tokio::spawn(klusters.clone().run(client.clone(), stop.clone()));
        klusters.synced().await;
        let (events, writer) = EventRecorder::new();
        tokio::spawn(writer.run(client.clone(), stop.clone()));
        let (clock, resources) = (Clock::default(), Arc::new(Cache::new()));
        let ledger =
            Ledger::new(client.clone(), resources, ClusterId::from_uid("u"), clock.clone(), Duration::from_secs(1));
        let context = KlusterContext {
            client: client.clone(),
            klusters,
            events,
            clock,
            clouds: None,
            ledger: Arc::new(ledger),
            settings: Arc::new(KlusterSettings::of_this_program("1.37.0", "/usr/bin/mainstay")),
            metrics: KlusterMetrics::default(),
        };
        Self { client, controller: KlusterController::new(context), stop, _api: api }
    }

    fn klusters(&self) -> Api<Kluster> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create(&self, name: &str, spec: Value) {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let object: Kluster = serde_json::from_value(object).expect("a Kluster");
        self.klusters().create(&Default::default(), &object).await.expect("create a Kluster");
        let key = ObjectKey::new("default", name);
        until("the cache has it", async || self.controller.context.klusters.get(&key).is_some()).await;
    }

    /// One reconcile; a conflict is only another look.
    async fn turn(&self, name: &str) -> Result<(), ApiError> {
        let key = ObjectKey::new("default", name);
        reconcile(&self.controller, &key, Timestamp::now(), &self.stop).await.map(drop)
    }

    async fn turn_until(&self, name: &str, what: &str, mut is_so: impl FnMut(Option<&Kluster>) -> bool) {
        until(what, async || {
            if let Err(failure) = self.turn(name).await {
                assert!(failure.is_conflict(), "{}", failure.chain());
            }
            is_so(self.klusters().get_opt(name).await.expect("get the Kluster").as_ref())
        })
        .await;
    }

    async fn names<K: super::super::objects::ControlPlaneKind>(&self) -> Vec<String> {
        let all: Api<K> = Api::namespaced(self.client.clone(), "default");
        let all = all.list(&ListParams::default().labels(KLUSTER_LABEL)).await.expect("a list");
        all.items.iter().filter_map(|object| object.meta().name.clone()).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kluster_gets_a_control_plane_and_loses_it() {
    let bench = Bench::new().await;
    bench.create("berlin", json!({"noCloud": true})).await;
    let phase = |phase: KlusterPhase| move |kluster: Option<&Kluster>| kluster.is_some_and(|own| own.phase() == phase);
    bench.turn_until("berlin", "it is being created", phase(KlusterPhase::Creating)).await;
    let kluster = bench.klusters().get("berlin").await.unwrap();
    assert_eq!(kluster.spec.version, "1.37.0");
    assert!(kluster.has_finalizer(GROUND_FINALIZER));
    let status = kluster.status.unwrap();
    assert!(status.apiserver.starts_with("https://10.96."), "{status:?}");
    assert_eq!(status.spec_version, Some(super::super::migrations::LATEST));
    assert_eq!(bench.names::<StatefulSet>().await, ["berlin-server"]);
    assert_eq!(bench.names::<Service>().await, ["berlin"]);
    assert_eq!(bench.names::<Secret>().await, ["berlin-kubeconfig", "berlin-pki"]);
    let secrets: Api<Secret> = Api::namespaced(bench.client.clone(), "default");
    let kubeconfig = text(&secrets.get("berlin-kubeconfig").await.unwrap(), KUBECONFIG).unwrap();
    assert!(kubeconfig.contains(&format!("server: {}", status.apiserver)), "{kubeconfig}");
    let before = text(&secrets.get("berlin-pki").await.unwrap(), "ca.crt").unwrap();
    // Nobody runs pods here: it stays, and rests.
    bench.turn("berlin").await.unwrap();
    assert_eq!(bench.klusters().get("berlin").await.unwrap().phase(), KlusterPhase::Creating);
    // What is lost is made again, and the authority is kept.
    secrets.delete("berlin-kubeconfig", &Default::default()).await.unwrap();
    bench.turn("berlin").await.unwrap();
    assert_eq!(text(&secrets.get("berlin-pki").await.unwrap(), "ca.crt").unwrap(), before);
    secrets.get("berlin-kubeconfig").await.expect("a new kubeconfig");
    bench.klusters().delete("berlin", &Default::default()).await.unwrap();
    until("the cache knows that it goes", async || {
        let kluster = bench.controller.context.klusters.get(&ObjectKey::new("default", "berlin"));
        kluster.is_none_or(|kluster| kluster.metadata.deletion_timestamp.is_some())
    })
    .await;
    bench.turn_until("berlin", "it is gone", |kluster| kluster.is_none()).await;
    assert_eq!(bench.names::<StatefulSet>().await, [""; 0]);
    assert_eq!(bench.names::<Secret>().await, [""; 0]);
    assert_eq!(bench.names::<Service>().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_others_are_neither_used_nor_removed() {
    let bench = Bench::new().await;
    let secrets: Api<Secret> = Api::namespaced(bench.client.clone(), "default");
    let foreign = json!({"metadata": {"name": "paris-pki"}, "stringData": {"ca.crt": "mine"}});
    secrets.create(&Default::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    bench.create("paris", json!({"noCloud": true})).await;
    until("it is refused", async || match bench.turn("paris").await {
        Err(failure) if failure.chain().contains("not the Kluster's") => true,
        Ok(()) => false,
        Err(failure) => {
            assert!(failure.is_conflict(), "{}", failure.chain());
            false
        }
    })
    .await;
    let status = bench.klusters().get("paris").await.unwrap().status.unwrap();
    assert_eq!(status.phase, KlusterPhase::Pending);
    assert!(status.message.contains("paris-pki"), "{}", status.message);
    bench.klusters().delete("paris", &Default::default()).await.unwrap();
    until("the cache knows that it goes", async || {
        let kluster = bench.controller.context.klusters.get(&ObjectKey::new("default", "paris"));
        kluster.is_none_or(|kluster| kluster.metadata.deletion_timestamp.is_some())
    })
    .await;
    bench.turn_until("paris", "it is gone", |kluster| kluster.is_none()).await;
    assert_eq!(text(&secrets.get("paris-pki").await.unwrap(), "ca.crt").as_deref(), Some("mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_clouds_says_so() {
    let bench = Bench::new().await;
    bench.create("rome", json!({})).await;
    bench
        .turn_until("rome", "it is refused", |kluster| {
            let status = kluster.and_then(|kluster| kluster.status.clone()).unwrap_or_default();
            status.message.contains("spec.openstack.cloud: the server has no configuration of clouds")
        })
        .await;
    let conditions = bench.klusters().get("rome").await.unwrap().status.unwrap().conditions;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready").expect("a condition");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "ConfigurationError"));
    assert!(ready.message.starts_with("spec.openstack.cloud: "), "{}", ready.message);
    assert_eq!(bench.names::<Secret>().await, [""; 0], "nothing is half made");
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(bench.client.clone(), "default");
    until("an event", async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        events.items.iter().any(|event| event.reason.as_deref() == Some("ConfigurationError"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_the_author_names_are_looked_up_in_the_project() {
    let mut bench = Bench::new().await;
    let text = "clouds: {c: {auth: {auth_url: 'http://127.0.0.1:1', username: u, password: p, project_id: x}}}";
    let deadlines = Deadlines { attempt: Duration::from_millis(200), call: Duration::from_millis(400) };
    let file = CloudsFile::parse("test", text).expect("a clouds.yaml");
    bench.controller.context.clouds =
        Some(Arc::new(Clouds::new(file, None, deadlines, Arc::new(())).expect("a cloud")));
    let openstack = json!({
        "projectID": "p", "routerID": "another-project's", "networkID": "n", "lbSubnetID": "s", "lbFloatingNetworkID": "f",
        "securityGroupName": "default",
    });
    bench.create("oslo", json!({ "openstack": openstack })).await;
    bench
        .turn_until("oslo", "the cloud was asked", |kluster| {
            let status = kluster.and_then(|kluster| kluster.status.clone()).unwrap_or_default();
            status.message.starts_with("cloud c: ")
        })
        .await;
    assert_eq!(bench.names::<Secret>().await, [""; 0], "nothing is made before it is known whose they are");
}

#[test]
fn the_api_is_at_the_load_balancer_where_it_is_to_have_one() {
    let service = |status: Value| -> Service {
        serde_json::from_value(json!({"spec": {"clusterIP": "10.96.0.7"}, "status": status})).unwrap()
    };
    let inside = KlusterSettings::default();
    let outside = KlusterSettings { service_type: ServiceType::LoadBalancer, ..KlusterSettings::default() };
    let pending = service(json!({}));
    assert_eq!((api_address(&pending, &inside), api_address(&pending, &outside)), (Some("10.96.0.7"), None));
    let balanced = service(json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.4"}]}}));
    assert_eq!(api_address(&balanced, &outside), Some("203.0.113.4"));
}

#[test]
fn a_kluster_is_ready_while_it_runs_and_nothing_is_waited_for() {
    let report = |message: &str, warning: Option<&'static str>| Report {
        message: message.to_owned(),
        warning: warning.map(|reason| plan::Warning { reason, message: String::new() }),
        ..Report::default()
    };
    use KlusterPhase::{Pending, Running};
    assert_eq!(judge_ready(&report("", None), Running, None), (true, "Running"));
    assert_eq!(judge_ready(&report("pods are not ready", None), Running, None), (false, "Running"));
    assert_eq!(judge_ready(&report("", None), Running, Some("failedUpdate")), (false, "failedUpdate"));
    assert_eq!(judge_ready(&report("x", Some("ConfigurationError")), Pending, None), (false, "ConfigurationError"));
}
