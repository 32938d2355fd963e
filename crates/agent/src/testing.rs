//! An API within the test's process: no sockets, no files.

use std::{future::Future, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use mainstay_api::registry::Registry;
use mainstay_server::{api, client, handler::Handler, settings};
use mainstay_store::Memory;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(30);

/// A client of a new API that has these namespaces.
pub async fn api(namespaces: &[&str]) -> Client {
    let api = api::Api::new(Registry::builtin(), Arc::new(Memory::new()), settings::Settings::default());
    let handler = Arc::new(Handler::new(api, CancellationToken::new()));
    let client = client::internal(handler, "test");
    for name in namespaces {
        let metadata = ObjectMeta { name: Some((*name).to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("create a namespace");
    }
    client
}

/// Waits for a condition, a bounded time.
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "waited in vain until {what}");
}
