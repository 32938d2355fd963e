//! configMap, secret, downwardAPI and projected volumes: the files that they contain.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::certificates::v1::ClusterTrustBundle,
    api::core::v1::{
        ClusterTrustBundleProjection, ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, PodCertificateProjection,
        ProjectedVolumeSource, Secret, ServiceAccountTokenProjection, Volume,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use mainstay_api::{
    config_versions::{ConfigKind, ConfigVersions},
    validation::labels,
};

use super::{
    PlanFailure,
    atomic::{File, Payload},
};
use crate::{
    objects::{CertificateError, ObjectError, Objects, PodCertificate},
    spec::{container, env, machine::NodeFacts, pod_ref},
};

const DEFAULT_MODE: i32 = 0o644;
const TOKEN_LIFE: i64 = 3600;

pub fn is_content(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// Whether a volume shows a version of a ConfigMap or Secret.
pub(super) fn shows_version(volume: &Volume, versions: &ConfigVersions) -> bool {
    let has_copy = |kind, name: &str| versions.resolve(kind, name) != name;
    let has_secret = |name: Option<&str>| name.is_some_and(|name| has_copy(ConfigKind::Secret, name));
    let has_map = |name: Option<&str>| name.is_some_and(|name| has_copy(ConfigKind::ConfigMap, name));
    let projections = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    has_map(volume.config_map.as_ref().map(|source| source.name.as_str()))
        || has_secret(volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()))
        || projections.into_iter().any(|projection| {
            has_map(projection.config_map.as_ref().map(|source| source.name.as_str()))
                || has_secret(projection.secret.as_ref().map(|source| source.name.as_str()))
        })
}

pub(super) async fn files(
    objects: &Objects,
    pod: &Pod,
    versions: &ConfigVersions,
    volume: &Volume,
    machine: &NodeFacts,
) -> Result<Payload, PlanFailure> {
    let reader = Reader { objects, pod, versions, volume: &volume.name, machine };
    let mut payload = Payload::default();
    let mode = |mode: Option<i32>| mode.unwrap_or(DEFAULT_MODE);
    if let Some(source) = &volume.config_map {
        let keys = Keys { items: source.items.as_deref(), mode: mode(source.default_mode), optional: source.optional };
        reader.config_map(&source.name, keys, &mut payload).await?;
    } else if let Some(source) = &volume.secret {
        let keys = Keys { items: source.items.as_deref(), mode: mode(source.default_mode), optional: source.optional };
        reader.secret(source.secret_name.as_deref().unwrap_or_default(), keys, &mut payload).await?;
    } else if let Some(source) = &volume.downward_api {
        reader.downward(source.items.as_deref().unwrap_or_default(), mode(source.default_mode), &mut payload)?;
    } else if let Some(source) = &volume.projected {
        reader.projected(source, mode(source.default_mode), &mut payload).await?;
    }
    Ok(payload)
}

/// Which keys of an object become which files.
#[derive(Clone, Copy)]
struct Keys<'a> {
    items: Option<&'a [KeyToPath]>,
    mode: i32,
    optional: Option<bool>,
}

impl Keys<'_> {
    fn optional(&self) -> bool {
        self.optional.unwrap_or_default()
    }

    /// `kind` as in `references non-existent config key: x`.
    fn pick(&self, all: Vec<(&str, &[u8])>, kind: &str, payload: &mut Payload) -> Result<(), PlanFailure> {
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            for (key, data) in all {
                payload.add_file(key, data, bits(self.mode));
            }
            return Ok(());
        };
        for item in items {
            match all.iter().find(|(key, _)| *key == item.key) {
                Some((_, data)) => payload.add_file(&item.path, *data, bits(item.mode.unwrap_or(self.mode))),
                None if self.optional() => {}
                None => return Err(PlanFailure::Refused(format!("references non-existent {kind} key: {}", item.key))),
            }
        }
        Ok(())
    }
}

/// Whether a projection takes a bundle: no selector takes none, an empty one takes all.
fn selects(selector: Option<&LabelSelector>, bundle: &ClusterTrustBundle) -> bool {
    let own = bundle.metadata.labels.clone().unwrap_or_default();
    selector.is_some_and(|selector| labels::matches(selector, &own))
}

/// All anchors of some bundles, each once, in an order that does not depend on the bundles'.
fn anchors(bundles: &[Arc<ClusterTrustBundle>]) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    let texts = bundles.iter().map(|bundle| bundle.spec.trust_bundle.as_str());
    let blocks: BTreeSet<&str> = texts
        .flat_map(|text| text.split_inclusive(END))
        .filter_map(|block| block.find("-----BEGIN CERTIFICATE-----").map(|at| block[at..].trim()))
        .filter(|block| block.ends_with(END))
        .collect();
    blocks.into_iter().map(|block| format!("{block}\n")).collect()
}

struct Reader<'a> {
    objects: &'a Objects,
    pod: &'a Pod,
    versions: &'a ConfigVersions,
    volume: &'a str,
    machine: &'a NodeFacts,
}

impl Reader<'_> {
    async fn config_map(&self, name: &str, keys: Keys<'_>, payload: &mut Payload) -> Result<(), PlanFailure> {
        let whose = pod_ref(self.pod);
        let copy = self.versions.resolve(ConfigKind::ConfigMap, name);
        let found = self.objects.config_map(&whose.uid, &whose.namespace, copy).await;
        let failure = |lack| version_failure(lack, copy != name, || format!("configmap {copy:?}"));
        let map = match found.map_err(failure) {
            Ok(map) => map,
            // A version is not missing because it is optional: it is about to be there.
            Err(PlanFailure::Refused(_)) if keys.optional() && copy == name => return Ok(()),
            Err(trouble) => return Err(trouble),
        };
        keys.pick(config_map_keys(&map), "config", payload)
    }

    async fn secret(&self, name: &str, keys: Keys<'_>, payload: &mut Payload) -> Result<(), PlanFailure> {
        let whose = pod_ref(self.pod);
        let copy = self.versions.resolve(ConfigKind::Secret, name);
        let found = self.objects.secret(&whose.uid, &whose.namespace, copy).await;
        let failure = |lack| version_failure(lack, copy != name, || format!("secret {copy:?}"));
        let secret = match found.map_err(failure) {
            Ok(secret) => secret,
            // A version is not missing because it is optional: it is about to be there.
            Err(PlanFailure::Refused(_)) if keys.optional() && copy == name => return Ok(()),
            Err(trouble) => return Err(trouble),
        };
        keys.pick(secret_keys(&secret), "secret", payload)
    }

    fn downward(&self, files: &[DownwardAPIVolumeFile], mode: i32, payload: &mut Payload) -> Result<(), PlanFailure> {
        for file in files {
            let value = if let Some(field) = &file.field_ref {
                let addresses: Vec<_> = self.addresses();
                let about = env::About { pod: self.pod, addresses: &addresses, machine: self.machine };
                env::field::value(&about, &field.field_path)
                    .ok_or_else(|| format!("unsupported fieldPath: {}", field.field_path))
            } else if let Some(resource) = &file.resource_field_ref {
                let name = resource.container_name.as_deref().unwrap_or_default();
                match container::find(self.pod, name) {
                    Some(asked) => env::resource::value(resource, &asked.container, &self.machine.allocatable),
                    None => Err(format!("container {name:?} not found")),
                }
            } else {
                continue;
            };
            let value = value.map_err(PlanFailure::Refused)?;
            payload.add_file(&file.path, value, bits(file.mode.unwrap_or(mode)));
        }
        Ok(())
    }

    /// All errors are reported, not only the first.
    async fn projected(
        &self,
        source: &ProjectedVolumeSource,
        mode: i32,
        payload: &mut Payload,
    ) -> Result<(), PlanFailure> {
        let (mut refused, mut pending) = (Vec::new(), None);
        for (index, source) in source.sources.iter().flatten().enumerate() {
            let result = if let Some(map) = &source.config_map {
                let keys = Keys { items: map.items.as_deref(), mode, optional: map.optional };
                self.config_map(&map.name, keys, payload).await
            } else if let Some(secret) = &source.secret {
                let keys = Keys { items: secret.items.as_deref(), mode, optional: secret.optional };
                self.secret(&secret.name, keys, payload).await
            } else if let Some(downward) = &source.downward_api {
                self.downward(downward.items.as_deref().unwrap_or_default(), mode, payload)
            } else if let Some(token) = &source.service_account_token {
                self.token(token, mode, payload).await
            } else if let Some(bundle) = &source.cluster_trust_bundle {
                self.trust_bundle(bundle, mode, payload).await
            } else if let Some(certificate) = &source.pod_certificate {
                self.certificate(certificate, index, mode, payload)
            } else {
                Err(PlanFailure::Refused(format!("source {index} of the projected volume has no type")))
            };
            match result {
                Ok(()) => {}
                Err(PlanFailure::Refused(why)) => refused.push(why),
                Err(PlanFailure::Pending(why)) => _ = pending.get_or_insert(why),
                Err(trouble @ PlanFailure::Unreachable(_)) => return Err(trouble),
            }
        }
        match &mut refused[..] {
            [] => pending.map_or(Ok(()), |why| Err(PlanFailure::Pending(why))),
            [why] => Err(PlanFailure::Refused(std::mem::take(why))),
            several => Err(PlanFailure::Refused(format!("[{}]", several.join(", ")))),
        }
    }

    async fn trust_bundle(
        &self,
        wanted: &ClusterTrustBundleProjection,
        mode: i32,
        payload: &mut Payload,
    ) -> Result<(), PlanFailure> {
        let whose = pod_ref(self.pod);
        let found = match (&wanted.name, &wanted.signer_name) {
            (Some(name), _) => self.objects.trust_bundle(&whose.uid, name).await.map(|bundle| vec![bundle]),
            (None, signer) => self.objects.trust_bundles(&whose.uid).await.map(|all| {
                let is_wanted = |bundle: &Arc<ClusterTrustBundle>| {
                    bundle.spec.signer_name == *signer && selects(wanted.label_selector.as_ref(), bundle)
                };
                all.into_values().filter(is_wanted).collect()
            }),
        };
        let what = || match (&wanted.name, &wanted.signer_name) {
            (Some(name), _) => format!("clustertrustbundle {name:?}"),
            (None, signer) => format!("clustertrustbundles of signer {:?}", signer.as_deref().unwrap_or_default()),
        };
        let found = match found {
            Ok(bundles) if bundles.is_empty() => Err(ObjectError::Missing),
            other => other,
        };
        let found = found.map_err(|lack| PlanFailure::from_object_error(lack, what));
        let is_optional = wanted.optional.unwrap_or_default();
        let bundles = match found {
            Ok(bundles) => bundles,
            // The file is there, and nobody is trusted.
            Err(PlanFailure::Refused(_)) if is_optional => Vec::new(),
            Err(trouble) => return Err(trouble),
        };
        payload.add_file(&wanted.path, anchors(&bundles), bits(mode));
        Ok(())
    }

    async fn token(
        &self,
        token: &ServiceAccountTokenProjection,
        mode: i32,
        payload: &mut Payload,
    ) -> Result<(), PlanFailure> {
        let audience = token.audience.as_deref().unwrap_or_default();
        let seconds = token.expiration_seconds.unwrap_or(TOKEN_LIFE);
        let account = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref())
            .unwrap_or(mainstay_api::wellknown::DEFAULT_SERVICE_ACCOUNT);
        let text = self.objects.token(self.pod, audience, seconds).await;
        let text = text.map_err(|lack| {
            PlanFailure::from_object_error(lack, || format!("failed to fetch token: serviceaccounts {account:?}"))
        })?;
        self.add_credential(&token.path, &text, mode, payload);
        Ok(())
    }

    fn certificate(
        &self,
        wanted: &PodCertificateProjection,
        source: usize,
        mode: i32,
        payload: &mut Payload,
    ) -> Result<(), PlanFailure> {
        let found = self.objects.certificate(self.pod, self.volume, source, wanted).map_err(|error| match error {
            CertificateError::Pending(why) => PlanFailure::Pending(why),
            CertificateError::Refused(why) => PlanFailure::Refused(why),
        })?;
        let PodCertificate { key, chain } = &*found;
        for (path, text) in [
            (&wanted.credential_bundle_path, format!("{key}{chain}")),
            (&wanted.key_path, key.clone()),
            (&wanted.certificate_chain_path, chain.clone()),
        ] {
            if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
                self.add_credential(path, &text, mode, payload);
            }
        }
        Ok(())
    }

    /// Whoever it is meant for can read it by being its owner or in its group.
    fn add_credential(&self, path: &str, text: &str, mode: i32, payload: &mut Payload) {
        let owner = only_user(self.pod);
        let group = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group);
        let mode = if owner.is_some() || group.is_some() { 0o600 } else { bits(mode) };
        payload.files.insert(path.to_owned(), File { data: text.as_bytes().to_vec(), mode, owner });
    }

    fn addresses(&self) -> Vec<std::net::IpAddr> {
        let status = self.pod.status.as_ref();
        let all = status.iter().flat_map(|status| status.pod_ips.iter().flatten());
        all.filter_map(|address| address.ip.parse().ok()).collect()
    }
}

/// A version that the node may not read is no copy of what the pod refers to: that is said, and what was there before stays.
fn version_failure(lack: ObjectError, is_version: bool, what: impl FnOnce() -> String) -> PlanFailure {
    match lack {
        ObjectError::Forbidden(why) if is_version => {
            PlanFailure::Refused(format!("{} does not exist or is no copy of what the pod refers to: {why}", what()))
        }
        lack => PlanFailure::from_object_error(lack, what),
    }
}

/// The user that all containers of the pod run as, if there is one.
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut users =
        all.map(|container| container.security_context.as_ref().and_then(|context| context.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first).and_then(|user| u32::try_from(user).ok())
}

fn config_map_keys(map: &ConfigMap) -> Vec<(&str, &[u8])> {
    let texts = map.data.iter().flatten().map(|(key, text)| (key.as_str(), text.as_bytes()));
    texts.chain(map.binary_data.iter().flatten().map(bytes)).collect()
}

fn secret_keys(secret: &Secret) -> Vec<(&str, &[u8])> {
    secret.data.iter().flatten().map(bytes).collect()
}

fn bytes<'a>((key, data): (&'a String, &'a ByteString)) -> (&'a str, &'a [u8]) {
    (key, &data.0)
}

fn bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or_default() & 0o777
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bundle(labels: serde_json::Value, text: &str) -> Arc<ClusterTrustBundle> {
        let bundle = json!({"metadata": {"name": "b", "labels": labels}, "spec": {"trustBundle": text}});
        Arc::new(serde_json::from_value(bundle).unwrap())
    }

    #[test]
    fn every_anchor_is_written_once_whatever_the_order_of_bundles() {
        let anchor = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----");
        let (a, b) = (anchor("AAAA"), anchor("BBBB"));
        let first = bundle(json!({}), &format!("# a comment\n{b}\n{a}\n"));
        let second = bundle(json!({}), &format!("{a}\n"));
        let expected = format!("{a}\n{b}\n");
        assert_eq!(anchors(&[first.clone(), second.clone()]), expected);
        assert_eq!(anchors(&[second, first]), expected);
        assert_eq!(anchors(&[]), "");
    }

    #[test]
    fn a_projection_without_a_selector_takes_no_bundle_and_an_empty_one_all() {
        let live = bundle(json!({"env": "live"}), "");
        let selector = |selector| serde_json::from_value::<LabelSelector>(selector).unwrap();
        assert!(!selects(None, &live));
        assert!(selects(Some(&selector(json!({}))), &live));
        assert!(selects(Some(&selector(json!({"matchLabels": {"env": "live"}}))), &live));
        assert!(!selects(Some(&selector(json!({"matchLabels": {"env": "test"}}))), &live));
    }
}
