//! The receipt's object: its name, and how it is read and written.
//!
//! A receipt has no owner reference: it is there when the cluster is gone. Its name has a part of the cluster's uid, so that a cluster of the same name has a
//! receipt of its own.

use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use mainstay_api::cloud::{
    cloud_resource::{ResourceOwner, ResourceType},
    kluster::Kluster,
    teardown_receipt::{DELETED, ReceiptItem, ReceiptSpec, ReceiptStatus, TeardownReceipt},
};
use mainstay_controllers::runtime::ApiError;

/// The name of a Kluster's receipt.
pub fn receipt_name(kluster: &Kluster) -> String {
    let uid = kluster.metadata.uid.as_deref().unwrap_or_default();
    format!("{}-{}", kluster.name(), uid.chars().take(8).collect::<String>())
}

/// A Kluster as the owner of something.
pub fn kluster_owner(kluster: &Kluster) -> ResourceOwner {
    ResourceOwner {
        api_version: kluster.api_version.clone(),
        kind: kluster.kind.clone(),
        namespace: kluster.metadata.namespace.clone().unwrap_or_default(),
        name: kluster.name().to_owned(),
        uid: kluster.metadata.uid.clone().unwrap_or_default(),
    }
}

fn receipts(client: &Client, kluster: &Kluster) -> Api<TeardownReceipt> {
    Api::namespaced(client.clone(), kluster.metadata.namespace.as_deref().unwrap_or_default())
}

/// The receipt of a Kluster; made if there is none.
pub async fn ensure(client: &Client, kluster: &Kluster) -> Result<TeardownReceipt, ApiError> {
    let (api, name) = (receipts(client, kluster), receipt_name(kluster));
    let doing = |verb: &str| format!("{verb} teardownreceipt {name}");
    if let Some(found) = api.get_opt(&name).await.map_err(ApiError::when(doing("read")))? {
        return Ok(found);
    }
    let spec = ReceiptSpec {
        cluster: kluster_owner(kluster),
        cloud: kluster.spec.openstack.cloud.clone(),
        project: kluster.spec.openstack.project_id.clone(),
    };
    let metadata = ObjectMeta {
        namespace: kluster.metadata.namespace.clone(),
        ..TeardownReceipt::new(&name, ReceiptSpec::default()).metadata
    };
    let receipt = TeardownReceipt { metadata, ..TeardownReceipt::new(&name, spec) };
    api.create(&PostParams::default(), &receipt).await.map_err(ApiError::when(doing("create")))
}

/// Writes the status of a receipt, unless it changed since it was read. Nothing is written if it says the same.
pub async fn write(
    client: &Client,
    kluster: &Kluster,
    receipt: &TeardownReceipt,
    status: ReceiptStatus,
) -> Result<(), ApiError> {
    if receipt.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let name = receipt.name().to_owned();
    let written = TeardownReceipt { status: Some(status), ..receipt.clone() };
    let result = receipts(client, kluster).replace_status(&name, &PostParams::default(), &written).await;
    result.map(drop).map_err(ApiError::when(format!("write the status of teardownreceipt {name}")))
}

/// Adds a machine or what belongs to it to a receipt, if it is not there yet.
pub fn add_machine_item<'a>(
    status: &'a mut ReceiptStatus,
    resource: ResourceType,
    id: &str,
    name: &str,
) -> &'a mut ReceiptItem {
    let at = status.items.iter().position(|item| item.resource == resource && item.id == id);
    let at = at.unwrap_or_else(|| {
        status.items.push(ReceiptItem {
            resource,
            id: id.to_owned(),
            name: name.to_owned(),
            action: DELETED.to_owned(),
            ..ReceiptItem::default()
        });
        status.items.len() - 1
    });
    &mut status.items[at]
}
