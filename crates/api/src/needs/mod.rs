//! What a pod needs before it starts, as its annotation `mainstay.dev/needs` says.
//!
//! The value is a list: `mysql >= 1 ready, zookeeper >= 3 addressable keep, configmap/zones, within 600s`.
//!
//! | item | met when |
//! |---|---|
//! | `mysql` | the Service of this name in the pod's namespace has a ready endpoint |
//! | `mysql.db` or `mysql.db.svc` | the same of the Service in namespace `db` |
//! | `mysql.service.consul` | the Services of this name in all namespaces, as Consul's name answers for them, together have a ready endpoint |
//! | `… >= 3` | at least so many endpoints; one if left out |
//! | `… ready` | the endpoints answer their readiness probes: a dependency at run time. Stock |
//! | `… addressable` | the endpoints have an address, ready or not: a dependency on data. Two that need each other's addresses both start |
//! | `… keep` | also after the start: the pod is not ready while the need is not met, and is not restarted for it |
//! | `deployment/api`, `statefulset/db`, `daemonset/log` | all replicas that the workload wants are ready |
//! | `job/migrate` | the Job is complete |
//! | `configmap/zones` (or `config/zones`), `secret/key`, `service/web`, `persistentvolumeclaim/data` | the object exists |
//! | `within 600s` | how long the pod waits for all of its needs; for ever if left out |
//!
//! Workloads and objects are those of the pod's own namespace: whether one of another namespace exists is not for everybody to know,
//! while the names of Services are.

pub mod cycle;
mod parse;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

pub use parse::NeedsError;

pub const ANNOTATION: &str = "mainstay.dev/needs";
/// The pod's condition that all its needs are met.
pub const CONDITION: &str = "DependenciesMet";
/// Set by the controllers on pods with needs that nodes cannot judge by themselves, those of workloads and objects.
pub const OBJECTS_CONDITION: &str = "mainstay.dev/ObjectNeedsMet";
/// Set by the controllers on pods that wait for each other to be ready.
pub const CYCLE_CONDITION: &str = "mainstay.dev/DependencyCycle";
/// Reasons of these conditions.
pub const WAITING: &str = "Waiting";
pub const TIMEOUT: &str = "DependencyTimeout";
pub const CYCLE: &str = "DependencyCycle";

/// More of them are a mistake, and every one is looked at whenever something changes.
pub const MOST_NEEDS: usize = 32;
pub const MOST_ENDPOINTS: u32 = 10_000;
pub const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub needs: Vec<Need>,
    /// How long all of them may take together.
    pub within: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub target: NeedTarget,
    /// It is looked at after the start as well.
    pub keep: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeedTarget {
    Service {
        service: ServiceName,
        at_least: u32,
        state: EndpointState,
    },
    Workload {
        kind: WorkloadKind,
        name: String,
    },
    /// It has to exist.
    Object {
        kind: ObjectKind,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceName {
    InOwnNamespace(String),
    InNamespace {
        name: String,
        namespace: String,
    },
    /// Consul knows no namespaces: all Services of one name are one.
    InAnyNamespace(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    Ready,
    Addressable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
    Service,
    PersistentVolumeClaim,
}

impl Needs {
    /// As the annotations of a pod or of a template say; nothing if they say nothing, or nothing that can be read.
    /// What cannot be read was written before it was checked.
    pub fn from_annotations<M: AnnotationMap + ?Sized>(annotations: &M) -> Self {
        annotations.annotation(ANNOTATION).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }

    /// Whether only the controllers can judge some of them.
    pub fn include_objects(&self) -> bool {
        self.needs.iter().any(|need| need.target.is_object())
    }
}

/// Annotations and labels as the various types for objects hold them.
pub trait AnnotationMap {
    fn annotation(&self, key: &str) -> Option<&str>;
}

impl AnnotationMap for std::collections::BTreeMap<String, String> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl AnnotationMap for serde_json::Value {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl<M: AnnotationMap> AnnotationMap for Option<M> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.as_ref()?.annotation(key)
    }
}

impl NeedTarget {
    /// Not of the endpoints of a Service.
    pub fn is_object(&self) -> bool {
        match self {
            Self::Service { .. } => false,
            Self::Workload { .. } | Self::Object { .. } => true,
        }
    }
}

impl ServiceName {
    pub fn name(&self) -> &str {
        match self {
            Self::InOwnNamespace(name) | Self::InNamespace { name, .. } | Self::InAnyNamespace(name) => name,
        }
    }

    /// The namespace, for a pod of this one; nothing if it is all of them.
    pub fn namespace<'a>(&'a self, own: &'a str) -> Option<&'a str> {
        match self {
            Self::InOwnNamespace(_) => Some(own),
            Self::InNamespace { namespace, .. } => Some(namespace),
            Self::InAnyNamespace(_) => None,
        }
    }
}

impl WorkloadKind {
    pub const ALL: [Self; 4] = [Self::Deployment, Self::StatefulSet, Self::DaemonSet, Self::Job];

    pub fn kind(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
        }
    }
}

impl ObjectKind {
    pub const ALL: [Self; 4] = [Self::ConfigMap, Self::Secret, Self::Service, Self::PersistentVolumeClaim];

    pub fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
        }
    }
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Addressable => "addressable",
        })
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOwnNamespace(name) => f.write_str(name),
            Self::InNamespace { name, namespace } => write!(f, "{name}.{namespace}"),
            Self::InAnyNamespace(name) => write!(f, "{name}.service"),
        }
    }
}

impl fmt::Display for NeedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { service, at_least, state } => write!(f, "{service} >= {at_least} {state}"),
            Self::Workload { kind, name } => write!(f, "{}/{name}", kind.kind().to_lowercase()),
            Self::Object { kind, name } => write!(f, "{}/{name}", kind.kind().to_lowercase()),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.target, if self.keep { " keep" } else { "" })
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = self.within.map(|time| format!("within {}", crate::duration::format_duration(time)));
        let items: Vec<String> = self.needs.iter().map(ToString::to_string).chain(within).collect();
        f.write_str(&items.join(", "))
    }
}
