//! What the API fills in for the author of a pod.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle,
    LifecycleHandler, ObjectFieldSelector, Pod, PodSpec, Probe, ResourceFieldSelector, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{disabled_fields::drop_disabled, image};
use crate::{
    groups::core::rules::persistent_volume_claim,
    pod::DEFAULT_TERMINATION_GRACE_SECONDS,
    ports::TCP,
    validation::{
        check::{fill, fill_number, text},
        resources,
    },
};

/// `0644`.
const FILE_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Defaults that hold in pods and templates alike.
pub fn default_pod_spec(spec: &mut PodSpec) {
    drop_disabled(spec);
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(DEFAULT_TERMINATION_GRACE_SECONDS);
    mirror_service_account(spec);
    resources::canonicalize(&mut spec.overhead);
    spec.resources.iter_mut().for_each(resources::canonicalize_requirements);

    spec.volumes.iter_mut().flatten().for_each(default_volume);
    spec.init_containers.iter_mut().flatten().for_each(default_container);
    spec.containers.iter_mut().for_each(default_container);
    spec.ephemeral_containers.iter_mut().flatten().for_each(default_ephemeral_container);
}

/// Defaults that only a pod itself gets: a template leaves them to the pods made from it.
pub fn default_pod(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.resources.iter_mut().for_each(resources::request_limits);
        if spec.host_network == Some(true) {
            container.ports.iter_mut().flatten().for_each(default_host_port);
        }
    }
    spec.enable_service_links.get_or_insert(true);
}

/// The account goes by two names; the older one follows.
fn mirror_service_account(spec: &mut PodSpec) {
    if text(&spec.service_account_name).is_empty() {
        spec.service_account_name = spec.service_account.take();
    }
    spec.service_account.clone_from(&spec.service_account_name);
}

fn default_container(container: &mut Container) {
    let policy = image::pull_policy(text(&container.image));
    fill(&mut container.image_pull_policy, policy);
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    resources::canonicalize_requirements(container.resources.get_or_insert_default());
    container.ports.iter_mut().flatten().for_each(default_port);
    container.env.iter_mut().flatten().for_each(default_env);
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
        probe.iter_mut().for_each(default_probe);
    }
    container.lifecycle.iter_mut().for_each(default_lifecycle);
}

fn default_ephemeral_container(container: &mut EphemeralContainer) {
    let policy = image::pull_policy(text(&container.image));
    fill(&mut container.image_pull_policy, policy);
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    container.resources.get_or_insert_default();
    container.ports.iter_mut().flatten().for_each(default_port);
    container.env.iter_mut().flatten().for_each(default_env);
}

fn default_port(port: &mut ContainerPort) {
    fill(&mut port.protocol, TCP);
}

fn default_host_port(port: &mut ContainerPort) {
    let same = port.container_port;
    fill_number(&mut port.host_port, same);
}

fn default_env(variable: &mut EnvVar) {
    let Some(source) = &mut variable.value_from else { return };
    source.field_ref.iter_mut().for_each(default_field_ref);
    source.resource_field_ref.iter_mut().for_each(default_resource_ref);
    source.file_key_ref.iter_mut().for_each(|reference| {
        reference.optional.get_or_insert(false);
    });
}

fn default_resource_ref(reference: &mut ResourceFieldSelector) {
    resources::canonicalize_one(reference.divisor.get_or_insert_with(|| Quantity("0".to_owned())));
}

fn default_downward_file(file: &mut DownwardAPIVolumeFile) {
    file.field_ref.iter_mut().for_each(default_field_ref);
    file.resource_field_ref.iter_mut().for_each(default_resource_ref);
}

fn default_field_ref(reference: &mut ObjectFieldSelector) {
    fill(&mut reference.api_version, "v1");
}

fn default_probe(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, 1);
    fill_number(&mut probe.period_seconds, 10);
    fill_number(&mut probe.success_threshold, 1);
    fill_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(default_http);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_lifecycle(lifecycle: &mut Lifecycle) {
    let http = |handler: &mut LifecycleHandler| handler.http_get.iter_mut().for_each(default_http);
    lifecycle.post_start.iter_mut().for_each(http);
    lifecycle.pre_stop.iter_mut().for_each(http);
}

fn default_http(action: &mut HTTPGetAction) {
    fill(&mut action.path, "/");
    fill(&mut action.scheme, "HTTP");
}

fn default_volume(volume: &mut Volume) {
    if *volume == (Volume { name: volume.name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(empty_dir) = &mut volume.empty_dir {
        empty_dir.size_limit.iter_mut().for_each(resources::canonicalize_one);
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        source.items.iter_mut().flatten().for_each(default_downward_file);
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(FILE_MODE);
        for projection in source.sources.iter_mut().flatten() {
            if let Some(source) = &mut projection.downward_api {
                source.items.iter_mut().flatten().for_each(default_downward_file);
            }
            if let Some(token) = &mut projection.service_account_token {
                token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
            }
        }
    }
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.image {
        let policy = image::pull_policy(text(&source.reference));
        fill(&mut source.pull_policy, policy);
    }
    if let Some(template) = volume.ephemeral.as_mut().and_then(|source| source.volume_claim_template.as_mut()) {
        persistent_volume_claim::default_spec(&mut template.spec);
    }
    default_rarely_used(volume);
}

/// The drivers of another age, each with a default or two.
fn default_rarely_used(volume: &mut Volume) {
    if let Some(source) = &mut volume.iscsi {
        fill(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        fill(&mut source.pool, "rbd");
        fill(&mut source.user, "admin");
        fill(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.azure_disk {
        fill(&mut source.caching_mode, "ReadWrite");
        fill(&mut source.kind, "Shared");
        fill(&mut source.fs_type, "ext4");
        source.read_only.get_or_insert(false);
    }
    if let Some(source) = &mut volume.scale_io {
        fill(&mut source.storage_mode, "ThinProvisioned");
        fill(&mut source.fs_type, "xfs");
    }
}
