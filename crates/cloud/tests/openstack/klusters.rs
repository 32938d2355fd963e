//! Klusters with the real Keystone and Neutron: discovery, service users, and removal of both. There are no machines here, so that pods never run:
//! what is made of them is looked at, not what they do.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Event, Secret, Service},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use mainstay_api::cloud::kluster::{Kluster, KlusterPhase};
use mainstay_cloud::{
    klusters::{KlusterSettings, ServiceUserSettings, cloud_secret, kubeconfig_secret, pki_secret, workload_name},
    openstack::{SecretText, Session, identity::NewUser},
};
use mainstay_testing::until;
use serde_json::{Value, json};

use crate::harness::{Manager, TestProject, cloud_client, cluster, entries, openstack};

const ROLE: &str = "network_admin";

/// The cloud as its administrator sees it, who may make users.
async fn administrator() -> (Session, String) {
    let session = Session::new(openstack().cloud(Some("admin")).expect("the cloud admin")).expect("a session");
    let identity = session.identity();
    let roles = identity.list_roles().await.expect("list roles");
    if !roles.iter().any(|role| role.name == ROLE) {
        // Another test may be faster.
        let _ = identity.create_role(ROLE).await;
    }
    let domains = identity.list_domains(Some("kubernikus")).await.expect("list domains");
    if domains.is_empty() {
        let _ = identity.create_domain("kubernikus").await;
    }
    let text = std::fs::read_to_string(crate::harness::directory().join("clouds.yaml")).expect("read clouds.yaml");
    (session, text)
}

fn settings() -> KlusterSettings {
    let service_users = Some(ServiceUserSettings::default());
    KlusterSettings { service_users, ..KlusterSettings::of_this_program("1.37.0", "/usr/bin/mainstay") }
}

fn kluster(project: &str, spec: Value) -> Kluster {
    let mut object = json!({"metadata": {"name": "berlin"}, "spec": {"openstack": {"projectID": project}}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    serde_json::from_value(object).expect("a Kluster")
}

async fn reasons(client: &Client) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let events = events.list(&ListParams::default()).await.expect("list events");
    events.items.into_iter().filter_map(|event| event.reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_discovered_and_a_user_comes_and_goes_with_its_kluster() {
    let project = TestProject::create("klusters").await;
    let (admin, yaml) = administrator().await;
    let api = cluster().await;
    let client = api.client("test");
    let manager = Manager::start_klusters(cloud_client(&api), &yaml, "admin", settings(), &[]);
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), "default");
    klusters.create(&PostParams::default(), &kluster(&project.id, json!({}))).await.expect("create a Kluster");
    until("a Kluster that is created", async || {
        klusters.get("berlin").await.unwrap().phase() == KlusterPhase::Creating
    })
    .await;
    let found = klusters.get("berlin").await.unwrap();
    let openstack = &found.spec.openstack;
    assert_eq!(
        [&openstack.router_id, &openstack.network_id, &openstack.lb_subnet_id],
        [&project.router, &project.network, &project.subnet]
    );
    assert!(!openstack.lb_floating_network_id.is_empty());
    assert_eq!((found.spec.version.as_str(), openstack.security_group_name.as_str()), ("1.37.0", "default"));
    assert_eq!(found.metadata.labels.unwrap()["account"], project.id);
    // Its user logs in with what the Secret says, and has its roles.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let secret = secrets.get(&cloud_secret("berlin")).await.expect("a Secret of the cloud");
    let text = String::from_utf8(secret.data.unwrap()["clouds.yaml"].0.clone()).unwrap();
    let own = Session::new(crate::harness::config(&text)).unwrap();
    assert_eq!(own.project_id().await.expect("it logs in"), project.id);
    let user = own.user_id().await.unwrap();
    let roles = admin.identity().list_user_roles(&project.id, &user).await.unwrap();
    let mut roles: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["member", ROLE]);
    assert_eq!(entries(&client).await.len(), 1, "the user is an entry of the ledger");
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), "default");
    sets.get(&workload_name("berlin")).await.expect("its servers");
    for name in [pki_secret("berlin"), kubeconfig_secret("berlin")] {
        secrets.get(&name).await.expect("its Secrets");
    }
    klusters.delete("berlin", &DeleteParams::default()).await.unwrap();
    until("a Kluster that is gone", async || klusters.get_opt("berlin").await.unwrap().is_none()).await;
    assert!(
        own.identity().list_users(None, None).await.is_err()
            || Session::new(crate::harness::config(&text)).unwrap().user_id().await.is_err()
    );
    let users = admin.identity().list_users(None, None).await.unwrap();
    assert!(!users.iter().any(|own| own.id == user), "its user is gone");
    assert_eq!(entries(&client).await.len(), 0);
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    assert!(services.get_opt("berlin").await.unwrap().is_none());
    assert!(secrets.get_opt(&cloud_secret("berlin")).await.unwrap().is_none());
    drop(manager);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_user_that_lost_a_role_gets_it_back_and_a_user_of_its_name_does_not() {
    let project = TestProject::create("lost-role").await;
    let (admin, yaml) = administrator().await;
    let api = cluster().await;
    let client = api.client("test");
    let manager = Manager::start_klusters(cloud_client(&api), &yaml, "admin", settings(), &["flight"]);
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), "default");
    klusters.create(&PostParams::default(), &kluster(&project.id, json!({}))).await.expect("create a Kluster");
    until("a Kluster that is created", async || {
        klusters.get("berlin").await.unwrap().phase() == KlusterPhase::Creating
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let secret = secrets.get(&cloud_secret("berlin")).await.expect("a Secret of the cloud");
    let text = String::from_utf8(secret.data.unwrap()["clouds.yaml"].0.clone()).unwrap();
    let user = Session::new(crate::harness::config(&text)).unwrap().user_id().await.unwrap();
    // Whoever has a domain of his own may make this one.
    let identity = admin.identity();
    let namesake = format!("kubernikus-berlin-{}", project.id);
    for name in ["kubernikus-berlin", namesake.as_str()] {
        let stranger = NewUser {
            name: name.to_owned(),
            domain: "default".into(),
            password: SecretText::new("secret"),
            description: String::new(),
            default_project: None,
        };
        let _ = identity.create_user(&stranger).await; // an earlier run may have made it
    }
    let roles = identity.list_roles().await.unwrap();
    let lost = roles.iter().find(|role| role.name == ROLE).expect("the role");
    identity.revoke_role(&project.id, &user, &lost.id).await.expect("take the role away");
    // With its version: one that differs is an upgrade.
    let running = json!({"status": {"phase": "Running", "version": "1.37.0"}});
    let params = kube::api::PatchParams::default();
    klusters.patch_status("berlin", &params, &kube::api::Patch::Merge(running)).await.expect("let it run");
    until("the role is back", async || {
        identity.list_user_roles(&project.id, &user).await.unwrap().iter().any(|role| role.id == lost.id)
    })
    .await;
    for stranger in identity.list_users(Some("kubernikus-berlin"), None).await.unwrap() {
        assert_eq!(identity.list_user_roles(&project.id, &stranger.id).await.unwrap(), [], "of {}", stranger.id);
    }
    until("an event", async || reasons(&client).await.contains(&"ServiceUserRoleAssigned".to_owned())).await;
    klusters.delete("berlin", &DeleteParams::default()).await.unwrap();
    until("a Kluster that is gone", async || klusters.get_opt("berlin").await.unwrap().is_none()).await;
    drop(manager);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_in_which_the_operators_login_is_not_good_is_refused() {
    let project = TestProject::create("not-mine").await;
    let (_, yaml) = administrator().await;
    let api = cluster().await;
    let client = api.client("test");
    let without_users = KlusterSettings { service_users: None, ..settings() };
    let manager = Manager::start_klusters(cloud_client(&api), &yaml, "demo", without_users, &[]);
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), "default");
    klusters.create(&PostParams::default(), &kluster(&project.id, json!({}))).await.expect("create a Kluster");
    until("it is refused", async || {
        let status = klusters.get("berlin").await.unwrap().status.unwrap_or_default();
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        ready.is_some_and(|ready| {
            ready.reason == "ConfigurationError" && ready.message.starts_with("spec.openstack.projectID: cloud demo: ")
        })
    })
    .await;
    assert_eq!(klusters.get("berlin").await.unwrap().phase(), KlusterPhase::Pending);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    assert!(secrets.get_opt(&pki_secret("berlin")).await.unwrap().is_none(), "nothing is half made");
    drop(manager);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_with_two_routers_keeps_a_kluster_pending_until_one_is_named() {
    let project = TestProject::create("routers").await;
    let second = project.session.network().create_router("second", None).await.expect("create a router").id;
    let (_, yaml) = administrator().await;
    let api = cluster().await;
    let client = api.client("test");
    let manager = Manager::start_klusters(cloud_client(&api), &yaml, "admin", settings(), &[]);
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), "default");
    klusters.create(&PostParams::default(), &kluster(&project.id, json!({}))).await.expect("create a Kluster");
    until("a configuration error", async || {
        let message = klusters.get("berlin").await.unwrap().status.unwrap_or_default().message;
        message.contains("spec.openstack.routerID") && message.contains(&second)
    })
    .await;
    until("its event", async || reasons(&client).await.contains(&"ConfigurationError".to_owned())).await;
    assert_eq!(klusters.get("berlin").await.unwrap().phase(), KlusterPhase::Pending);
    assert_eq!(entries(&client).await.len(), 0, "nothing is half made");
    let patch = json!({"spec": {"openstack": {"routerID": project.router}}});
    let params = kube::api::PatchParams::default();
    klusters.patch("berlin", &params, &kube::api::Patch::Merge(patch)).await.expect("name the router");
    until("a Kluster that is created", async || {
        klusters.get("berlin").await.unwrap().phase() == KlusterPhase::Creating
    })
    .await;
    klusters.delete("berlin", &DeleteParams::default()).await.unwrap();
    until("a Kluster that is gone", async || klusters.get_opt("berlin").await.unwrap().is_none()).await;
    drop(manager);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_refuses_the_login_is_named() {
    let (_, yaml) = administrator().await;
    let api = cluster().await;
    let client = api.client("test");
    let wrong = yaml.replace("password: ", "password: wrong");
    let manager = Manager::start_klusters(cloud_client(&api), &wrong, "admin", settings(), &[]);
    let klusters: Api<Kluster> = Api::namespaced(client.clone(), "default");
    klusters.create(&PostParams::default(), &kluster("p", json!({}))).await.expect("create a Kluster");
    until("a refused login", async || {
        klusters.get("berlin").await.unwrap().status.unwrap_or_default().message.contains("cloud admin")
    })
    .await;
    let other = kluster(
        "p",
        json!({"openstack": {"projectID": "p", "cloud": "nowhere"}, "clusterCIDR": "100.70.0.0/16", "name": "other"}),
    );
    let mut other = other;
    other.metadata.name = Some("other".to_owned());
    klusters.create(&PostParams::default(), &other).await.expect("create a Kluster");
    until("a cloud that is not there", async || {
        klusters.get("other").await.unwrap().status.unwrap_or_default().message.contains("spec.openstack.cloud")
    })
    .await;
    drop(manager);
}
