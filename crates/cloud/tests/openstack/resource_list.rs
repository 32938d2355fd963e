//! Resource lists, with real servers and floating IPs.

use std::time::Duration;

use mainstay_cloud::resource_list::{
    apply::{ApplySettings, apply_list, delete_by_tag, list_servers},
    list::{Mappings, ResourceList},
};

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{TestProject, config},
};

const LIST: &str = "
resources:
  cp:
    number: 2
    flavor: small
    image: trusty
    networks: [nodes]
    assign_floating_ip: true
  ct:
    flavor: small
    image: trusty
    networks: [nodes]
";

fn settings(tag: &str) -> ApplySettings {
    ApplySettings { tag: Some(tag.to_owned()), poll: Some(Duration::from_millis(200)), ..ApplySettings::default() }
}

#[tokio::test]
async fn a_list_is_applied_once_and_deleted_by_its_tag() {
    let project = TestProject::create("list").await;
    let mappings = Mappings::parse("m", "flavor: {small: m1.tiny}\nimage: {trusty: tiny}\n").unwrap();
    let list = ResourceList::parse("r", LIST).unwrap();
    let session = &project.session;
    let report = apply_list(session, &list, &mappings, &settings("ci")).await.unwrap();
    assert_eq!(report.created, ["cp1_ci", "cp2_ci", "ct1_ci"]);
    assert_eq!(report.assigned.len(), 2);
    let again = apply_list(session, &list, &mappings, &settings("ci")).await.unwrap();
    assert!(again.is_unchanged(), "{again:?}");
    let mut larger = list.clone();
    larger.override_numbers("ct=2").unwrap();
    let report = apply_list(session, &larger, &mappings, &settings("ci")).await.unwrap();
    assert_eq!((report.created, report.assigned.len()), (vec!["ct2_ci".to_owned()], 0));
    // Another tag is another world.
    let mut single = list.clone();
    single.override_numbers("cp=0").unwrap();
    apply_list(session, &single, &mappings, &settings("xci")).await.unwrap();
    let deleted = delete_by_tag(session, "ci", Duration::from_millis(200)).await.unwrap();
    assert_eq!(deleted.servers, ["cp1_ci", "cp2_ci", "ct1_ci", "ct2_ci"]);
    assert_eq!(deleted.floating_ips.len(), 2);
    let left: Vec<String> = list_servers(session).await.unwrap().into_iter().map(|server| server.name).collect();
    assert_eq!(left, ["ct1_xci"]);
    assert!(session.network().list_floating_ips(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_mistake_in_any_role_leaves_nothing_behind() {
    let project = TestProject::create("mistake").await;
    let list = ResourceList::parse("r", LIST).unwrap();
    let mappings = Mappings::parse("m", "flavor: {small: m1.tiny}\n").unwrap();
    let error = apply_list(&project.session, &list, &mappings, &settings("ci")).await.unwrap_err().to_string();
    assert_eq!(error, "resources.cp.image: the cloud has 0 of name or id \"trusty\", and needs exactly one");
    assert!(list_servers(&project.session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_makes_no_second_server() {
    let proxy = FaultProxy::start().await;
    let project = TestProject::create("lost").await;
    let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
    let session = mainstay_cloud::openstack::Session::new(config(&yaml)).unwrap();
    let mappings = Mappings::parse("m", "flavor: {small: m1.tiny}\nimage: {trusty: tiny}\n").unwrap();
    let mut list = ResourceList::parse("r", LIST).unwrap();
    list.override_numbers("cp=1:ct=0").unwrap();
    proxy.inject(Fault::new("POST /v2.1/servers", 1, Effect::CloseAfterWork));
    proxy.inject(Fault::new("POST /v2.0/floatingips", 1, Effect::CloseAfterWork));
    // The floating IP's answer is lost as well; the next run finds what was made.
    let first = apply_list(&session, &list, &mappings, &settings("ci")).await;
    assert!(first.is_err());
    apply_list(&session, &list, &mappings, &settings("ci")).await.unwrap();
    assert_eq!(list_servers(&project.session).await.unwrap().len(), 1);
    assert_eq!(project.session.network().list_floating_ips(None).await.unwrap().len(), 1);
}
