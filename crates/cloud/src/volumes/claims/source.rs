//! What the volume of a claim begins with: `dataSourceRef` or `dataSource` of kind PersistentVolumeClaim names a claim whose volume is cloned.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use mainstay_controllers::runtime::ObjectKey;

use super::{
    CinderClaims, persistent_volume_view,
    plan::{PersistentVolumeView, SourceView},
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
        Some(volume) => SourceView::Volume { id: volume.handle, size_gib: volume.size_gib },
        None => not_ready(format!("the volume of {kind} {name} is not one of Cinder")),
    }
}

impl CinderClaims {
    /// The source of a claim, as the caches show it.
    pub(super) fn source(&self, claim: &PersistentVolumeClaim) -> SourceView {
        let Some(target) = &claim.spec else { return SourceView::Empty };
        let Some(reference) = source_reference(target) else { return SourceView::Empty };
        let SourceReference { field, group, kind, namespace, name } = &reference;
        let own_namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        if !group.is_empty() || kind != "PersistentVolumeClaim" {
            let why = format!("{field}: volumes are cloned from a PersistentVolumeClaim alone, not from a {kind}");
            return SourceView::NotReady { why };
        }
        if namespace.as_deref().is_some_and(|other| !other.is_empty() && other != own_namespace) {
            return SourceView::NotReady { why: format!("{field}.namespace: has to be the claim's own") };
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
        assert_eq!(judge(Some(&bound), true), SourceView::Volume { id: "v".into(), size_gib: 2 });
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
    fn the_reference_comes_before_the_source() {
        let spec = json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b", "namespace": "other"},
                          "dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}});
        let reference = source_reference(&serde_json::from_value(spec).unwrap()).unwrap();
        assert_eq!((reference.field, reference.name.as_str()), ("spec.dataSourceRef", "b"));
        assert_eq!(reference.namespace.as_deref(), Some("other"));
    }
}
