//! Fields of pods that belong to alpha features: as upstream with its stock feature gates, they are dropped when written.

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, Volume};

/// Moving on to the next Kubernetes version is going through this list: what became beta stays, and gets its rules.
pub(super) fn drop_disabled(spec: &mut PodSpec) {
    spec.eviction_responders = None; // EvictionRequestAPI
    spec.scheduling_group = None; // GenericWorkload
    spec.volumes.iter_mut().flatten().for_each(drop_in_volume);
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        drop_in_container(container);
    }
}

fn drop_in_container(container: &mut Container) {
    for mount in container.volume_mounts.iter_mut().flatten() {
        mount.bind_mount_options = None;
    }
    let probes = [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    for probe in probes.into_iter().flatten() {
        drop_in_probe(probe);
    }
}

fn drop_in_probe(probe: &mut Probe) {
    if let Some(grpc) = &mut probe.grpc {
        grpc.mode = None;
    }
    if let Some(http) = &mut probe.http_get {
        http.protocol = None;
    }
}

/// Owners of files in volumes, and the mode of an emptyDir.
fn drop_in_volume(volume: &mut Volume) {
    if let Some(source) = &mut volume.empty_dir {
        source.mode = None;
    }
    if let Some(source) = &mut volume.config_map {
        source.default_user = None;
        source.items.iter_mut().flatten().for_each(|item| item.user = None);
    }
    if let Some(source) = &mut volume.secret {
        source.default_user = None;
        source.items.iter_mut().flatten().for_each(|item| item.user = None);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_user = None;
        source.items.iter_mut().flatten().for_each(|item| item.user = None);
    }
    let Some(projected) = &mut volume.projected else { return };
    projected.default_user = None;
    for source in projected.sources.iter_mut().flatten() {
        let config_map = source.config_map.iter_mut().flat_map(|own| own.items.iter_mut().flatten());
        let secret = source.secret.iter_mut().flat_map(|own| own.items.iter_mut().flatten());
        config_map.chain(secret).for_each(|item| item.user = None);
        let files = source.downward_api.iter_mut().flat_map(|own| own.items.iter_mut().flatten());
        files.for_each(|file| file.user = None);
        source.service_account_token.iter_mut().for_each(|own| own.user = None);
        source.cluster_trust_bundle.iter_mut().for_each(|own| own.user = None);
        source.pod_certificate.iter_mut().for_each(|own| own.user = None);
    }
}
