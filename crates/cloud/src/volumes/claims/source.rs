//! What the volume of a claim begins with: `dataSourceRef` or `dataSource` names a PersistentVolumeClaim whose volume is cloned, or a VolumeSnapshot.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use mainstay_controllers::runtime::ObjectKey;

use super::{
    CinderClaims, persistent_volume_view,
    plan::{CopySource, PersistentVolumeView, SourceView},
};
use crate::volumes::{
    DRIVER, size_in_gib,
    snapshots::{
        ALLOWS_MODE_CHANGE,
        kinds::{self, VolumeSnapshot, VolumeSnapshotContent},
    },
};

/// The object that a claim names as its source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SourceReference {
    field: &'static str,
    group: String,
    kind: String,
    namespace: Option<String>,
    name: String,
}

impl SourceReference {
    fn is_claim(&self) -> bool {
        self.group.is_empty() && self.kind == "PersistentVolumeClaim"
    }

    fn is_snapshot(&self) -> bool {
        self.group == kinds::GROUP && self.kind == "VolumeSnapshot"
    }
}

fn source_reference(spec: &PersistentVolumeClaimSpec) -> Option<SourceReference> {
    if let Some(named) = &spec.data_source_ref {
        return Some(SourceReference {
            field: "spec.dataSourceRef",
            group: named.api_group.clone().unwrap_or_default(),
            kind: named.kind.clone(),
            namespace: named.namespace.clone(),
            name: named.name.clone(),
        });
    }
    let named = spec.data_source.as_ref()?;
    Some(SourceReference {
        field: "spec.dataSource",
        group: named.api_group.clone().unwrap_or_default(),
        kind: named.kind.clone(),
        namespace: None,
        name: named.name.clone(),
    })
}

fn volume_mode(spec: &PersistentVolumeClaimSpec) -> &str {
    spec.volume_mode.as_deref().unwrap_or("Filesystem")
}

/// Judges the claim that was named, and its PersistentVolume if that is one of Cinder.
fn judge_source(
    reference: &SourceReference,
    target: &PersistentVolumeClaimSpec,
    source: Option<&PersistentVolumeClaim>,
    volume: Option<PersistentVolumeView>,
) -> SourceView {
    let SourceReference { field, kind, name, .. } = reference;
    let not_ready = |why: String| SourceView::NotReady { why: format!("{field}: {why}") };
    let Some(source) = source else { return not_ready(format!("there is no PersistentVolumeClaim {name}")) };
    if source.metadata.deletion_timestamp.is_some() {
        return not_ready(format!("{kind} {name} is being deleted"));
    }
    let phase = source.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return not_ready(format!("{kind} {name} is not bound"));
    }
    let spec = source.spec.clone().unwrap_or_default();
    if volume_mode(&spec) != volume_mode(target) {
        return not_ready(format!("{kind} {name} has another volumeMode: {}", volume_mode(&spec)));
    }
    match volume {
        Some(volume) => SourceView::Copy { of: CopySource::Volume(volume.handle), size_gib: volume.size_gib },
        None => not_ready(format!("the volume of {kind} {name} is not one of Cinder")),
    }
}

/// The VolumeSnapshot, of its own namespace, that a claim's volume is made of.
pub fn snapshot_name(claim: &PersistentVolumeClaim) -> Option<String> {
    let reference = source_reference(claim.spec.as_ref()?)?;
    reference.is_snapshot().then_some(reference.name)
}

/// Judges the VolumeSnapshot that was named, and the content that it is bound to.
fn judge_snapshot(
    reference: &SourceReference,
    target: &PersistentVolumeClaimSpec,
    snapshot: Option<&VolumeSnapshot>,
    content: Option<&VolumeSnapshotContent>,
) -> SourceView {
    let SourceReference { field, kind, name, .. } = reference;
    let not_ready = |why: String| SourceView::NotReady { why: format!("{field}: {why}") };
    let Some(snapshot) = snapshot else { return not_ready(format!("there is no VolumeSnapshot {name}")) };
    if snapshot.metadata.deletion_timestamp.is_some() {
        return not_ready(format!("{kind} {name} is being deleted"));
    }
    let is_ready = snapshot.status.ready_to_use == Some(true);
    let Some(content) = content.filter(|_| is_ready) else { return not_ready(format!("{kind} {name} is not ready")) };
    let reference = &content.spec.volume_snapshot_ref;
    let is_own = content.spec.driver == DRIVER && reference.uid == snapshot.metadata.uid;
    let Some(id) = content.status.snapshot_handle.clone().filter(|_| is_own) else {
        return not_ready(format!("{kind} {name} is not a snapshot of Cinder"));
    };
    let annotations = content.metadata.annotations.as_ref();
    let allows_other = annotations.is_some_and(|all| all.get(ALLOWS_MODE_CHANGE).is_some_and(|value| value == "true"));
    let mode = content.spec.source_volume_mode.as_deref();
    if let Some(mode) = mode.filter(|mode| *mode != volume_mode(target) && !allows_other) {
        return not_ready(format!("{kind} {name} is of another volumeMode: {mode}"));
    }
    let size = snapshot.status.restore_size.as_deref().and_then(size_in_gib);
    SourceView::Copy { of: CopySource::Snapshot(id), size_gib: size.unwrap_or_default() }
}

impl CinderClaims {
    /// The source of a claim, as the caches show it.
    pub(super) fn source(&self, claim: &PersistentVolumeClaim) -> SourceView {
        let Some(target) = &claim.spec else { return SourceView::Empty };
        let Some(reference) = source_reference(target) else { return SourceView::Empty };
        let SourceReference { field, kind, namespace, name, .. } = &reference;
        let own_namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        if !reference.is_claim() && !reference.is_snapshot() {
            let why =
                format!("{field}: volumes are made of a PersistentVolumeClaim or a VolumeSnapshot, not of a {kind}");
            return SourceView::NotReady { why };
        }
        if namespace.as_deref().is_some_and(|other| !other.is_empty() && other != own_namespace) {
            return SourceView::NotReady { why: format!("{field}.namespace: has to be the claim's own") };
        }
        if reference.is_snapshot() {
            let caches = &self.context.snapshots;
            let snapshot = caches.snapshots.get(&ObjectKey::new(own_namespace, name));
            let bound = snapshot.as_ref().and_then(|own| own.status.bound_volume_snapshot_content_name.clone());
            let content = bound.and_then(|bound| caches.contents.get(&ObjectKey::new("", bound)));
            return judge_snapshot(&reference, target, snapshot.as_deref(), content.as_deref());
        }
        let source = self.context.caches.claims.get(&ObjectKey::new(own_namespace, name));
        let volume = source.as_deref().and_then(|source| source.spec.as_ref()?.volume_name.clone());
        let volume = volume.and_then(|volume| self.context.caches.volumes.get(&ObjectKey::new("", volume)));
        judge_source(&reference, target, source.as_deref(), volume.as_deref().and_then(persistent_volume_view))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec, "status": {"phase": phase}})).unwrap()
    }

    fn judge(source: Option<&PersistentVolumeClaim>, has_volume: bool) -> SourceView {
        let target = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}});
        let target: PersistentVolumeClaimSpec = serde_json::from_value(target).unwrap();
        let volume = PersistentVolumeView { handle: "v".into(), size_gib: 2, ..PersistentVolumeView::default() };
        judge_source(&source_reference(&target).unwrap(), &target, source, has_volume.then_some(volume))
    }

    #[test]
    fn a_bound_claim_with_a_cinder_volume_is_cloned_and_no_other() {
        let bound = claim(json!({}), "Bound");
        assert_eq!(judge(Some(&bound), true), SourceView::Copy { of: CopySource::Volume("v".into()), size_gib: 2 });
        let block = claim(json!({"volumeMode": "Block"}), "Bound");
        let pending = claim(json!({}), "Pending");
        let mut deleting = bound.clone();
        deleting.metadata = serde_json::from_value(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})).unwrap();
        for (source, has_volume, words) in [
            (None, false, "spec.dataSource: there is no PersistentVolumeClaim a"),
            (Some(&pending), false, "is not bound"),
            (Some(&deleting), true, "is being deleted"),
            (Some(&block), true, "another volumeMode: Block"),
            (Some(&bound), false, "not one of Cinder"),
        ] {
            let SourceView::NotReady { why } = judge(source, has_volume) else { panic!("cloned, not {words}") };
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn a_ready_snapshot_of_cinder_is_restored_and_no_other() {
        let target = json!({"dataSource": {"apiGroup": kinds::GROUP, "kind": "VolumeSnapshot", "name": "a"}});
        let target: PersistentVolumeClaimSpec = serde_json::from_value(target).unwrap();
        let snapshot = |is_ready: bool| -> VolumeSnapshot {
            let status = json!({"readyToUse": is_ready, "restoreSize": "2Gi"});
            serde_json::from_value(json!({"metadata": {"uid": "u"}, "status": status})).unwrap()
        };
        let content = |changes: Value| -> VolumeSnapshotContent {
            let mut spec = json!({"driver": DRIVER, "volumeSnapshotRef": {"uid": "u"}});
            spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            serde_json::from_value(json!({"spec": spec, "status": {"snapshotHandle": "s"}})).unwrap()
        };
        let judge = |snapshot: Option<&VolumeSnapshot>, content: &VolumeSnapshotContent| {
            judge_snapshot(&source_reference(&target).unwrap(), &target, snapshot, Some(content))
        };
        let (ready, usable) = (snapshot(true), content(json!({})));
        let copy = SourceView::Copy { of: CopySource::Snapshot("s".into()), size_gib: 2 };
        assert_eq!(judge(Some(&ready), &usable), copy);
        let block = content(json!({"sourceVolumeMode": "Block"}));
        for (snapshot, content, words) in [
            (None, &usable, "there is no VolumeSnapshot a"),
            (Some(&snapshot(false)), &usable, "is not ready"),
            (Some(&ready), &content(json!({"driver": "other"})), "not a snapshot of Cinder"),
            (Some(&ready), &content(json!({"volumeSnapshotRef": {"uid": "v"}})), "not a snapshot of Cinder"),
            (Some(&ready), &block, "another volumeMode: Block"),
        ] {
            let SourceView::NotReady { why } = judge(snapshot, content) else { panic!("restored, not {words}") };
            assert!(why.starts_with("spec.dataSource: ") && why.contains(words), "{why}");
        }
        let mut allowed = block;
        allowed.metadata.annotations = Some([(ALLOWS_MODE_CHANGE.to_owned(), "true".to_owned())].into());
        assert_eq!(judge(Some(&ready), &allowed), copy);
    }

    #[test]
    fn the_reference_comes_before_the_source() {
        let spec = json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b", "namespace": "other"},
                          "dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}});
        let reference = source_reference(&serde_json::from_value(spec).unwrap()).unwrap();
        assert_eq!((reference.field, reference.name.as_str()), ("spec.dataSourceRef", "b"));
        assert_eq!(reference.namespace.as_deref(), Some("other"));
    }
}
