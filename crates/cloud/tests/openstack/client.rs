//! The client against the real services: logins, pages, and what refusals look like.

use mainstay_cloud::openstack::{
    Session,
    block_storage::NewVolume,
    compute::{NewServer, ServerFilter, ServerNetwork},
    network::{AddressPair, NewPort, PortFilter, RouterRoute},
};
use mainstay_testing::until;
use serde_json::json;

use crate::harness::{TestProject, config, openstack};

#[tokio::test]
async fn a_wrong_password_and_a_missing_cloud_are_told_apart() {
    let project = TestProject::create("login").await;
    let wrong = Session::new(config(&project.yaml.replace("secret", "wrong"))).unwrap();
    let error = wrong.project_id().await.unwrap_err();
    assert_eq!(error.status(), Some(401), "{error}");
    assert!(error.is_forbidden() && !error.is_transient());
    assert!(error.to_string().starts_with("identity: log in (POST /auth/tokens): 401 "), "{error}");
    let nowhere = Session::new(config(&project.yaml.replace(project.session.auth_url(), "http://127.0.0.1:9/v3")));
    let error = nowhere.unwrap().project_id().await.unwrap_err();
    assert!(error.is_transient() && !error.is_outcome_unknown(), "{error}");
    assert_eq!(project.session.project_id().await.unwrap(), project.id);
}

#[tokio::test]
async fn a_server_is_found_by_its_tag_until_it_is_gone() {
    let project = TestProject::create("servers").await;
    let compute = project.session.compute();
    let flavor = compute.list_flavors().await.unwrap().into_iter().find(|flavor| flavor.name == "m1.tiny").unwrap();
    let image = project.session.image().list_images(Some("tiny")).await.unwrap().remove(0);
    let server = NewServer {
        name: "one".into(),
        flavor: flavor.id,
        image: Some(image.id),
        networks: vec![ServerNetwork { network: Some(project.network.clone()), ..ServerNetwork::default() }],
        tags: vec!["mainstay:test:1".into()],
        metadata: [("a".to_owned(), "b".to_owned())].into(),
        ..NewServer::default()
    };
    let id = compute.create_server(&server).await.unwrap();
    let filter = ServerFilter { tag: Some("mainstay:test:1".into()), ..ServerFilter::default() };
    let active = until("an active server", async || {
        let found = compute.list_servers(&filter).await.unwrap();
        found.into_iter().find(|server| server.status == "ACTIVE")
    });
    let active = active.await;
    assert_eq!((active.id.as_str(), active.metadata["a"].as_str()), (id.as_str(), "b"));
    assert_eq!(active.all_addresses().count(), 1);
    let none = ServerFilter { tag: Some("mainstay:test:2".into()), ..ServerFilter::default() };
    assert_eq!(compute.list_servers(&none).await.unwrap(), []);
    let quota = compute.show_quota(&project.id).await.unwrap();
    assert_eq!((quota.instances.in_use, quota.cores.in_use), (1, 1));

    let volume = NewVolume { name: "v".into(), size: 1, ..NewVolume::default() };
    let volume = project.session.block_storage().create_volume(&volume).await.unwrap();
    let storage = project.session.block_storage();
    until("an available volume", async || {
        storage.show_volume(&volume.id).await.unwrap().is_some_and(|volume| volume.status == "available")
    })
    .await;
    compute.attach_volume(&id, &volume.id).await.unwrap();
    until("an attached volume", async || {
        let shown = storage.show_volume(&volume.id).await.unwrap().unwrap();
        shown.attachments.iter().any(|attachment| attachment.server_id == id)
    })
    .await;
    assert_eq!(compute.list_volume_attachments(&id).await.unwrap()[0].volume_id, volume.id);
    assert!(compute.detach_volume(&id, &volume.id).await.unwrap());
    assert!(compute.delete_server(&id).await.unwrap());
    until("a server that is gone", async || compute.show_server(&id).await.unwrap().is_none()).await;
    assert!(!compute.delete_server(&id).await.unwrap(), "what is gone counts as deleted");
}

#[tokio::test]
async fn ports_and_routes_are_fenced_by_revisions() {
    let project = TestProject::create("ports").await;
    let network = project.session.network();
    let new = NewPort { network_id: project.network.clone(), description: "mainstay:t:1".into(), ..NewPort::default() };
    let port = network.create_port(&new).await.unwrap();
    let filter = PortFilter { description: Some("mainstay:t:1".into()), ..PortFilter::default() };
    assert_eq!(network.list_ports(&filter).await.unwrap().len(), 1);
    let pairs = [AddressPair { ip_address: "100.100.1.0/24".into(), mac_address: None }];
    let written = network.set_address_pairs(&port.id, port.revision_number, &pairs).await.unwrap();
    assert_eq!(written.allowed_address_pairs[0].ip_address, "100.100.1.0/24");
    let stale = network.set_address_pairs(&port.id, port.revision_number, &[]).await.unwrap_err();
    assert_eq!(stale.status(), Some(412), "{stale}");
    assert!(stale.is_conflict());

    let route = RouterRoute { destination: "100.100.1.0/24".into(), nexthop: port.fixed_ips[0].ip_address.clone() };
    assert_eq!(
        network.add_routes(&project.router, std::slice::from_ref(&route)).await.unwrap().routes,
        std::slice::from_ref(&route)
    );
    network.add_routes(&project.router, std::slice::from_ref(&route)).await.expect("a repeat is harmless");
    assert_eq!(network.remove_routes(&project.router, std::slice::from_ref(&route)).await.unwrap().routes, []);
    network.remove_routes(&project.router, &[route]).await.expect("a repeat is harmless");
    let many: Vec<_> = (0..31)
        .map(|number| RouterRoute {
            destination: format!("100.101.{number}.0/24"),
            nexthop: port.fixed_ips[0].ip_address.clone(),
        })
        .collect();
    let error = network.add_routes(&project.router, &many).await.unwrap_err();
    assert_eq!((error.status(), error.kind()), (Some(400), Some("RoutesExhausted")), "{error}");
}

#[tokio::test]
async fn an_exceeded_quota_is_recognised_and_names_itself() {
    let project = TestProject::create("quota").await;
    let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
    admin.block_storage().set_quota(&project.id, &json!({"gigabytes": 1})).await.unwrap();
    admin.network().set_quota(&project.id, &json!({"floatingip": 0, "port": 1})).await.unwrap();
    let volume = NewVolume { name: "v".into(), size: 5, ..NewVolume::default() };
    let error = project.session.block_storage().create_volume(&volume).await.unwrap_err();
    assert!(error.is_quota_exceeded() && !error.is_outcome_unknown(), "{error}");
    let quota = project.session.block_storage().show_quota(&project.id).await.unwrap();
    assert_eq!(quota.gigabytes.missing_for(5), Some(4));
    let port = NewPort { network_id: project.network.clone(), ..NewPort::default() };
    let error = project.session.network().create_port(&port).await.unwrap_err();
    assert!(error.is_quota_exceeded() && !error.is_conflict(), "{error}");
}

#[tokio::test]
async fn lists_come_in_pages_and_are_whole() {
    let project = TestProject::create("pages").await;
    let storage = project.session.block_storage();
    for number in 0..3 {
        let volume = NewVolume { name: format!("v{number}"), size: 1, ..NewVolume::default() };
        storage.create_volume(&volume).await.unwrap();
    }
    let before = project.calls.count("list volumes in pages");
    let volumes = storage.list_volumes_in_pages(1).await.unwrap();
    assert_eq!(volumes.len(), 3);
    assert!(project.calls.count("list volumes in pages") - before >= 3);
    let mut names: Vec<_> = volumes.into_iter().map(|volume| volume.name).collect();
    names.sort();
    assert_eq!(names, ["v0", "v1", "v2"]);
}
