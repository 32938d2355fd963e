//! PersistentVolumeClaims: the volume that a claim is bound to, as a path or mount of this machine.

use std::path::Path;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use mainstay_api::cinder;

use super::{PlanFailure, VolumePlan, cinder::CinderDisks, local_path, nfs::Export};
use crate::{objects::Objects, spec::pod_ref};

/// The claim behind a volume. One that is part of the pod is named after both.
pub fn name(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod_ref(pod).name, volume.name))
}

/// What of this machine claims need.
pub(super) struct ClaimSources<'a> {
    pub objects: &'a Objects,
    /// Where this machine keeps volumes that are made for claims.
    pub local_path: &'a Path,
    pub disks: &'a CinderDisks,
    /// The volume is in the pod's directory already.
    pub is_in_place: bool,
}

/// Where the claim's files are.
pub(super) async fn resolve(
    sources: ClaimSources<'_>,
    pod: &Pod,
    volume: &Volume,
    name: &str,
) -> Result<VolumePlan, PlanFailure> {
    let ClaimSources { objects, local_path: within, disks, is_in_place } = sources;
    let whose = pod_ref(pod);
    let claim = objects.claim(&whose.uid, &whose.namespace, name).await;
    let claim =
        claim.map_err(|lack| PlanFailure::from_object_error(lack, || format!("persistentvolumeclaim {name:?}")))?;
    let refused = |why: String| PlanFailure::Refused(format!("error processing PVC {}/{name}: {why}", whose.namespace));
    let Some(bound) = bound_volume(&claim, pod, volume).map_err(refused)? else {
        return Err(PlanFailure::Pending(format!("error processing PVC {}/{name}: PVC is not bound", whose.namespace)));
    };
    let found = objects.volume(&whose.uid, &bound).await;
    let found = found.map_err(|lack| PlanFailure::from_object_error(lack, || format!("persistentvolume {bound:?}")))?;
    check_binding(&found, &claim).map_err(refused)?;
    if cinder::volume_handle(&found).is_some() {
        let disk = disks.reserve(objects, &whose.uid, &found, &claim, is_in_place).await?;
        return Ok(VolumePlan::Disk(disk));
    }
    let what = volume_plan(&found).map_err(refused)?;
    if let VolumePlan::Claimed { path, .. } = &what
        && local_path::is_ours(&found)
        && !(local_path::is_on_disk(&found) && path.is_dir())
    {
        local_path::make(within, path).map_err(|error| refused(error.to_string()))?;
        local_path::mark_on_disk(objects.client(), &found).await.map_err(refused)?;
    }
    Ok(what)
}

/// The name of the volume that the claim is bound to, if it is bound.
fn bound_volume(claim: &PersistentVolumeClaim, pod: &Pod, volume: &Volume) -> Result<Option<String>, String> {
    let meta = &claim.metadata;
    if volume.ephemeral.is_some() {
        let ours = meta.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
        if !ours {
            return Err("PVC was not created for pod, it exists for another purpose".to_owned());
        }
    }
    let spec = claim.spec.as_ref();
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    match spec.and_then(|spec| spec.volume_name.as_deref()) {
        Some(name) if !name.is_empty() && phase == Some("Bound") => Ok(Some(name.to_owned())),
        _ => Ok(None),
    }
}

fn check_binding(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let bound_to = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
    if bound_to != claim.metadata.uid.as_deref() {
        return Err(format!("persistentvolume {name:?} is bound to another claim"));
    }
    Ok(())
}

fn volume_plan(volume: &PersistentVolume) -> Result<VolumePlan, String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &volume.spec else { return Err(format!("persistentvolume {name:?} has no spec")) };
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!("persistentvolume {name:?} is a block volume, which only those of Cinder can be here"));
    }
    if let Some(local) = &spec.local {
        Ok(VolumePlan::Claimed { path: local.path.clone().into(), own: true })
    } else if let Some(host) = &spec.host_path {
        Ok(VolumePlan::Host { path: host.path.clone().into(), kind: host.type_.clone().unwrap_or_default() })
    } else if let Some(nfs) = &spec.nfs {
        let (server, path) = (nfs.server.clone(), nfs.path.clone());
        Ok(VolumePlan::Nfs(Export { server, path, read_only: nfs.read_only.unwrap_or_default() }))
    } else {
        Err(format!(
            "persistentvolume {name:?} is of a type that is not supported; supported are local, hostPath, nfs and \
             csi of the driver {:?}",
            cinder::DRIVER
        ))
    }
}
