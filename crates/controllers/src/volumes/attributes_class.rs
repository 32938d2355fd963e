//! Protection of VolumeAttributesClasses: one that is deleted stays while a claim or a volume names it.
//!
//! What a class asks for is the business of the driver that it names. Claims and volumes are listed from the API before the
//! finalizer is removed, because that is for good; the caches say only when to look.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::CLASS_PROTECTION;
use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error};

pub struct AttributesClassController {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<AttributesClassController>();
    let classes = &context.attributes_classes;
    classes.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.name.clone())
    });
    let add_deleted = {
        let (queue, classes) = (queue.clone(), classes.clone());
        move || {
            let deleted = classes.select(|class| class.metadata.deletion_timestamp.is_some());
            deleted.iter().filter_map(|class| class.metadata.name.clone()).for_each(|name| queue.add(name));
        }
    };
    context.caches.claims.on_change({
        let add_deleted = add_deleted.clone();
        move |_| add_deleted()
    });
    context.caches.volumes.on_change(move |_| add_deleted());
    let synced = {
        let classes = classes.clone();
        async move { classes.synced().await }
    };
    let controller = Arc::new(AttributesClassController { context: context.clone() });
    context.runnable(controller, queue, Limits::default()).after(synced)
}

pub struct World {
    class: Arc<VolumeAttributesClass>,
    /// Whether a claim or a volume names it; looked up only if it is deleted.
    is_used: bool,
}

#[derive(Debug, PartialEq)]
pub struct SetFinalizers {
    version: String,
    finalizers: Vec<String>,
}

fn plan(world: &World) -> Option<SetFinalizers> {
    let meta = &world.class.metadata;
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let is_protected = finalizers.iter().any(|own| own == CLASS_PROTECTION);
    match (meta.deletion_timestamp.is_some(), is_protected) {
        (false, false) => finalizers.push(CLASS_PROTECTION.to_owned()),
        (true, true) if !world.is_used => finalizers.retain(|own| own != CLASS_PROTECTION),
        _ => return None,
    }
    Some(SetFinalizers { version: meta.resource_version.clone().unwrap_or_default(), finalizers })
}

/// Whether a claim has the class, asked for it, or is being changed to it.
fn claim_names(claim: &PersistentVolumeClaim, class: &str) -> bool {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .and_then(|modify| modify.target_volume_attributes_class_name.as_deref());
    [wanted, current, target].contains(&Some(class))
}

fn volume_names(volume: &PersistentVolume, class: &str) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref()) == Some(class)
}

impl AttributesClassController {
    async fn is_used(&self, class: &str) -> Result<bool, kube::Error> {
        let (client, every) = (&self.context.client, ListParams::default());
        let volumes = Api::<PersistentVolume>::all(client.clone()).list(&every).await?;
        if volumes.iter().any(|volume| volume_names(volume, class)) {
            return Ok(true);
        }
        let claims = Api::<PersistentVolumeClaim>::all(client.clone()).list(&every).await?;
        Ok(claims.iter().any(|claim| claim_names(claim, class)))
    }
}

impl Controller for AttributesClassController {
    const NAME: &'static str = "volumeattributesclass_protection";
    type Key = String;
    type World = World;
    type Action = SetFinalizers;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(class) = self.context.attributes_classes.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let doing = || format!("look for users of volume attributes class {name}");
        let is_used = match class.metadata.deletion_timestamp {
            Some(_) => self.is_used(name).await.map_err(ApiError::when(doing()))?,
            None => false,
        };
        Ok(Some(World { class, is_used }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<SetFinalizers, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, name: &String, action: SetFinalizers) -> Result<(), ApiError> {
        let SetFinalizers { version, finalizers } = action;
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        let classes: Api<VolumeAttributesClass> = Api::all(self.context.client.clone());
        match classes.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            // Somebody else was faster: the change itself brings the class back to the queue.
            Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => Ok(()),
            Err(error) => Err(ApiError::new(format!("protect volume attributes class {name}"), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(finalizers: &[&str], is_deleted: bool, is_used: bool) -> World {
        let deleted = is_deleted.then_some("2026-01-01T00:00:00Z");
        let metadata =
            json!({"name": "gold", "resourceVersion": "7", "finalizers": finalizers, "deletionTimestamp": deleted});
        let class = serde_json::from_value(json!({"metadata": metadata, "driverName": "disks.example"})).unwrap();
        World { class: Arc::new(class), is_used }
    }

    #[test]
    fn a_class_is_protected_until_it_is_deleted_and_nobody_names_it() {
        let set = |finalizers: &[&str]| {
            let finalizers = finalizers.iter().map(|&own| own.to_owned()).collect();
            Some(SetFinalizers { version: "7".to_owned(), finalizers })
        };
        assert_eq!(plan(&class(&["other"], false, false)), set(&["other", CLASS_PROTECTION]));
        assert_eq!(plan(&class(&[CLASS_PROTECTION], false, false)), None);
        assert_eq!(plan(&class(&[CLASS_PROTECTION], true, true)), None);
        assert_eq!(plan(&class(&[CLASS_PROTECTION, "other"], true, false)), set(&["other"]));
        assert_eq!(plan(&class(&["other"], true, false)), None);
    }

    #[test]
    fn a_class_is_named_by_what_is_wanted_what_there_is_and_what_is_under_way() {
        let claim = |object| serde_json::from_value::<PersistentVolumeClaim>(object).unwrap();
        for named in [
            json!({"metadata": {}, "spec": {"volumeAttributesClassName": "gold"}}),
            json!({"metadata": {}, "status": {"currentVolumeAttributesClassName": "gold"}}),
            json!({"metadata": {}, "status": {"modifyVolumeStatus":
                {"status": "InProgress", "targetVolumeAttributesClassName": "gold"}}}),
        ] {
            assert!(claim_names(&claim(named.clone()), "gold"), "{named}");
            assert!(!claim_names(&claim(named.clone()), "silver"), "{named}");
        }
        assert!(!claim_names(&claim(json!({"metadata": {}})), "gold"));
        let volume = json!({"metadata": {}, "spec": {"volumeAttributesClassName": "gold"}});
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        assert!(volume_names(&volume, "gold") && !volume_names(&volume, "silver"));
    }
}
