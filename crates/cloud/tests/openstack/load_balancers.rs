//! Services of type LoadBalancer with the real Octavia.

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::cloud_resource::ResourceType;
use mainstay_testing::until;
use serde_json::json;

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{Manager, TestProject, cloud_client, cluster, entries, resources},
};

pub fn service() -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"},
                 "ports": [{"name": "http", "port": 80, "nodePort": 30080}]},
    }))
    .unwrap()
}

/// The address that its status shows.
pub fn ingress(service: &Service) -> Option<String> {
    service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first()?.ip.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_has_a_balancer_and_an_address_until_it_goes() {
    let (project, api) = (TestProject::create("lb").await, cluster().await);
    let client = api.client("test");
    let manager = Manager::start(cloud_client(&api), &project.yaml);
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    services.create(&PostParams::default(), &service()).await.unwrap();
    let address = until("an address of the Service", async || ingress(&services.get("web").await.unwrap())).await;
    assert!(address.starts_with("203.0.113."), "a floating IP: {address}");

    let octavia = project.session.load_balancer();
    let balancer = octavia.list_load_balancers().await.unwrap().remove(0);
    assert_eq!(balancer.vip_subnet_id.as_ref(), Some(&project.subnet), "the subnet of the nodes");
    let listeners = octavia.list_listeners(&balancer.id).await.unwrap();
    assert_eq!((listeners[0].protocol.as_str(), listeners[0].protocol_port), ("TCP", 80));
    let pool = listeners[0].default_pool_id.clone().unwrap();
    let members = octavia.list_members(&pool).await.unwrap();
    assert_eq!((members[0].address.as_str(), members[0].protocol_port), ("10.180.0.10", 30080));
    let mut kinds: Vec<_> = entries(&client).await.into_iter().map(|entry| entry.spec.resource).collect();
    kinds.sort();
    assert_eq!(kinds, [ResourceType::LoadBalancer, ResourceType::FloatingIP]);

    // Another port instead.
    let ports = json!({"spec": {"ports": [{"name": "http", "port": 8080, "nodePort": 30080}]}});
    services.patch("web", &PatchParams::default(), &Patch::Merge(ports)).await.unwrap();
    until("a listener on the new port alone", async || {
        let ports: Vec<_> = octavia.list_listeners(&balancer.id).await.unwrap();
        ports.iter().map(|listener| listener.protocol_port).collect::<Vec<_>>() == [8080]
    })
    .await;

    services.delete("web", &DeleteParams::default()).await.unwrap();
    until("a Service that is gone", async || services.get_opt("web").await.unwrap().is_none()).await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0]);
    assert_eq!(entries(&client).await.len(), 0);
    drop(manager);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_that_somebody_deleted_is_made_again() {
    let (project, api) = (TestProject::create("lost").await, cluster().await);
    let manager = Manager::start(cloud_client(&api), &project.yaml);
    let services: Api<Service> = Api::namespaced(api.client("test"), "default");
    services.create(&PostParams::default(), &service()).await.unwrap();
    until("an address of the Service", async || ingress(&services.get("web").await.unwrap())).await;
    let octavia = project.session.load_balancer();
    let first = octavia.list_load_balancers().await.unwrap().remove(0).id;
    until("a balancer that can be deleted", async || octavia.delete_load_balancer(&first).await.is_ok()).await;
    until("another balancer", async || {
        let all = octavia.list_load_balancers().await.unwrap();
        all.iter().any(|balancer| balancer.id != first && balancer.provisioning_status == "ACTIVE")
    })
    .await;
    drop(manager);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_from_stale_data_costs_neither_balancer_nor_address() {
    let (project, api, proxy) = (TestProject::create("stale").await, cluster().await, FaultProxy::start().await);
    let manager =
        Manager::start(cloud_client(&api), &project.yaml_through(&proxy.keystone(project.session.auth_url())));
    let services: Api<Service> = Api::namespaced(api.client("test"), "default");
    services.create(&PostParams::default(), &service()).await.unwrap();
    until("an address of the Service", async || ingress(&services.get("web").await.unwrap())).await;
    let ids = async || {
        let balancers = project.session.load_balancer().list_load_balancers().await.unwrap();
        let addresses = project.session.network().list_floating_ips(None).await.unwrap();
        (
            balancers.into_iter().map(|own| own.id).collect::<Vec<_>>(),
            addresses.into_iter().map(|own| own.id).collect::<Vec<_>>(),
        )
    };
    let before = ids().await;
    for line in ["GET /v2/lbaas/loadbalancers/", "GET /v2.0/floatingips/"] {
        proxy.inject(Fault::new(line, 1, Effect::Status { code: 404, retry_after: None }));
        until("a look that found nothing", async || proxy.pending_faults() == 0).await;
        let looks = || proxy.calls().iter().filter(|call| call.starts_with(line)).count();
        let seen = looks();
        until("two looks more", async || looks() >= seen + 2).await;
        assert_eq!(ids().await, before, "{line}");
    }
    assert_eq!(entries(&api.client("test")).await.len(), 2);
    services.delete("web", &DeleteParams::default()).await.unwrap();
    until("a Service that is gone", async || services.get_opt("web").await.unwrap().is_none()).await;
    assert_eq!(resources(&project.session).await, [] as [&str; 0]);
    drop(manager);
}
