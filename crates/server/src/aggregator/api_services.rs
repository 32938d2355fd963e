//! APIServices as requests and discovery look at them: who serves a group and version, and which goes first.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use mainstay_store::Revision;
use mainstay_tls::ServerVerifier;
use rustls::ClientConfig;
use serde_json::Value;

use super::{Aggregator, FrontProxy, PLURAL};
use crate::{api::Api, objects::store_cache::CachedObject, relay::metrics};

/// The name of the condition that says whether requests are passed on.
pub const AVAILABLE: &str = "Available";

/// A Service that serves a group and version.
pub struct RemoteService {
    /// Of the APIService.
    pub name: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub service: String,
    pub port: u16,
    pub is_available: bool,
    /// How it is recognised, or why it cannot be.
    pub tls: Result<Arc<ClientConfig>, String>,
}

impl RemoteService {
    /// The name in its certificate, and of the `Host` header.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// `None` if this server serves it itself.
    fn parse(object: &Value, identity: Option<&FrontProxy>) -> Option<Self> {
        let spec = &object["spec"];
        let service = spec.get("service").filter(|service| service.is_object())?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Self {
            name: text(&object["metadata"]["name"]),
            group: text(&spec["group"]),
            version: text(&spec["version"]),
            namespace: text(&service["namespace"]),
            service: text(&service["name"]),
            port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            is_available: condition(object).is_some_and(|condition| condition["status"] == "True"),
            tls: client_config(spec, identity),
        })
    }
}

/// The condition `Available` of an APIService.
pub fn condition(object: &Value) -> Option<&Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == AVAILABLE)
}

fn client_config(spec: &Value, identity: Option<&FrontProxy>) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(mainstay_tls::provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = if spec["insecureSkipTLSVerify"] == true {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(ServerVerifier::any_certificate()))
    } else {
        let bad = |why: &dyn std::fmt::Display| format!("unable to load root certificates: {why}");
        let bundle = spec["caBundle"].as_str().unwrap_or_default();
        let pem = match bundle {
            "" => std::fs::read_to_string(crate::webhook::client::SYSTEM_AUTHORITIES).map_err(|e| bad(&e))?,
            bundle => {
                let pem = BASE64_STANDARD.decode(bundle).map_err(|e| bad(&e))?;
                String::from_utf8(pem).map_err(|e| bad(&e))?
            }
        };
        let verifier = ServerVerifier::bundle(&pem).map_err(|e| bad(&e))?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity.certificate.clone()),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// One version of a group, as discovery shows it.
pub struct VersionView {
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    /// Absent for what this server serves itself.
    pub remote: Option<RemoteVersion>,
}

pub struct RemoteVersion {
    /// Whether what is known of its resources is current.
    pub is_current: bool,
    pub resources: Option<Arc<Value>>,
}

impl Aggregator {
    /// Whose is a group and version, if it is another server's.
    pub fn remote(&self, api: &Api, group: &str, version: &str) -> Option<Arc<RemoteService>> {
        if group.is_empty() || api.registry.has_group_version(group, version) {
            return None;
        }
        let name = format!("{version}.{group}");
        let object = self.objects.get(PLURAL, &name)?;
        self.parsed(&name, &object)
    }

    fn parsed(&self, name: &str, object: &CachedObject) -> Option<Arc<RemoteService>> {
        if !object.value["spec"]["service"].is_object() {
            return None;
        }
        if let Some((_, remote)) = self.remotes.read().get(name).filter(|(revision, _)| *revision == object.modified) {
            return Some(remote.clone());
        }
        let remote = Arc::new(RemoteService::parse(&object.value, self.front_proxy())?);
        self.remotes.write().insert(name.to_owned(), (object.modified, remote.clone()));
        Some(remote)
    }

    /// Every APIService whose group and version another server serves.
    pub fn remotes(&self, api: &Api) -> Vec<(Revision, Arc<RemoteService>)> {
        let objects = self.objects.list(PLURAL, None);
        let remotes = objects.iter().filter_map(|object| {
            let name = object.value["metadata"]["name"].as_str()?;
            let spec = &object.value["spec"];
            let (group, version) = (spec["group"].as_str()?, spec["version"].as_str()?);
            let is_built_in = api.registry.has_group_version(group, version);
            Some((object.modified, self.parsed(name, object).filter(|_| !is_built_in)?))
        });
        remotes.collect()
    }

    /// All versions that APIServices name, with their priorities.
    pub fn versions(&self, api: &Api) -> Vec<VersionView> {
        let discovered = self.discovered.read();
        let objects = self.objects.list(PLURAL, None);
        let view = |object: &CachedObject| {
            let (spec, name) = (&object.value["spec"], object.value["metadata"]["name"].as_str()?);
            let (group, version) = (spec["group"].as_str().unwrap_or_default(), spec["version"].as_str()?);
            let is_remote = spec["service"].is_object() && !api.registry.has_group_version(group, version);
            let is_available = condition(&object.value).is_some_and(|condition| condition["status"] == "True");
            let resources = discovered.get(name).and_then(|discovered| discovered.resources.clone());
            Some(VersionView {
                group: group.to_owned(),
                version: version.to_owned(),
                group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
                version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
                remote: is_remote.then(|| RemoteVersion { is_current: is_available && resources.is_some(), resources }),
            })
        };
        objects.iter().filter_map(view).collect()
    }
}

/// The priorities that upstream gives a group and version which the server itself serves.
pub fn local_priorities(group: &str, version: &str, is_custom: bool) -> (i64, i64) {
    if is_custom {
        return (1000, 100);
    }
    let group = match group {
        "" => return (18_000, 1),
        "apiregistration.k8s.io" => 18_000,
        "apps" => 17_800,
        "events.k8s.io" => 17_750,
        "authentication.k8s.io" => 17_700,
        "authorization.k8s.io" => 17_600,
        "autoscaling" => 17_500,
        "batch" => 17_400,
        "certificates.k8s.io" => 17_300,
        "networking.k8s.io" => 17_200,
        "policy" => 17_100,
        "rbac.authorization.k8s.io" => 17_000,
        "storage.k8s.io" | "storagemigration.k8s.io" => 16_800,
        "apiextensions.k8s.io" | "admissionregistration.k8s.io" => 16_700,
        "scheduling.k8s.io" => 16_600,
        "coordination.k8s.io" => 16_500,
        "node.k8s.io" => 16_300,
        "discovery.k8s.io" | "resource.k8s.io" => 16_200,
        "flowcontrol.apiserver.k8s.io" => 16_100,
        // Behind mainstay.dev, whose Klusters these are.
        "kubernikus.sap.cc" => 15_900,
        metrics::GROUP => 100,
        _ => 16_000,
    };
    let stage = if version.contains("alpha") {
        1
    } else if version.contains("beta") {
        9
    } else if version == "v1" {
        15
    } else {
        30
    };
    (group, stage)
}
