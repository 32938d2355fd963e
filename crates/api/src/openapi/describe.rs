//! The descriptions of the built-in types, from k8s-openapi, and of our own.
//!
//! A type can only be asked for its schema together with all it refers to. To keep the peak low
//! the roots are asked one after the other, and each answer is dropped before the next.

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission, apps::v1 as apps, authentication::v1 as authentication,
        authorization::v1 as authorization, autoscaling::v1 as autoscaling, autoscaling::v2 as autoscaling2,
        batch::v1 as batch, certificates::v1 as certificates, coordination::v1 as coordination, core::v1 as core,
        discovery::v1 as discovery, events::v1 as events, networking::v1 as networking, node::v1 as node,
        policy::v1 as policy, rbac::v1 as rbac, scheduling::v1 as scheduling, storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
    apimachinery::pkg::apis::meta::v1 as meta,
    schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings},
};
use serde_json::{Map, Value};

use crate::{offer::Offer, service_table::ServiceTable};

type Root = fn(&mut SchemaGenerator);

fn root<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

/// Every definition that has a description, as its JSON schema. `wanted` chooses roots by the
/// group their kinds belong to; definitions that roots share are visited more than once.
pub fn visit(wanted: impl Fn(&str) -> bool, mut visitor: impl FnMut(&str, &Value)) {
    for (group, roots) in ROOTS {
        if !wanted(group) {
            continue;
        }
        for root in *roots {
            for (name, schema) in &definitions(*root) {
                visitor(name, schema);
            }
        }
    }
}

fn definitions(root: Root) -> Map<String, Value> {
    let mut generator = SchemaSettings::openapi3().into_generator();
    root(&mut generator);
    generator.take_definitions(false)
}

/// Goes with every group.
pub const META: &str = "meta";

const ROOTS: &[(&str, &[Root])] = &[
    (META, &[root::<meta::DeleteOptions>, root::<meta::Status>, root::<autoscaling::Scale>]),
    (
        "",
        &[
            root::<core::Pod>,
            root::<core::PodTemplate>,
            root::<core::ReplicationController>,
            root::<core::Service>,
            root::<core::Endpoints>,
            root::<core::Node>,
            root::<core::Namespace>,
            root::<core::ConfigMap>,
            root::<core::Secret>,
            root::<core::ServiceAccount>,
            root::<core::PersistentVolume>,
            root::<core::PersistentVolumeClaim>,
            root::<core::LimitRange>,
            root::<core::ResourceQuota>,
            root::<core::Event>,
            root::<core::Binding>,
            root::<core::ComponentStatus>,
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            root::<admission::MutatingWebhookConfiguration>,
            root::<admission::ValidatingWebhookConfiguration>,
            root::<admission::ValidatingAdmissionPolicy>,
            root::<admission::ValidatingAdmissionPolicyBinding>,
        ],
    ),
    ("apiextensions.k8s.io", &[root::<extensions::CustomResourceDefinition>]),
    (
        "apps",
        &[
            root::<apps::Deployment>,
            root::<apps::ReplicaSet>,
            root::<apps::StatefulSet>,
            root::<apps::DaemonSet>,
            root::<apps::ControllerRevision>,
        ],
    ),
    (
        "authentication.k8s.io",
        &[
            root::<authentication::TokenReview>,
            root::<authentication::TokenRequest>,
            root::<authentication::SelfSubjectReview>,
        ],
    ),
    (
        "authorization.k8s.io",
        &[
            root::<authorization::SubjectAccessReview>,
            root::<authorization::LocalSubjectAccessReview>,
            root::<authorization::SelfSubjectAccessReview>,
            root::<authorization::SelfSubjectRulesReview>,
        ],
    ),
    ("autoscaling", &[root::<autoscaling::HorizontalPodAutoscaler>, root::<autoscaling2::HorizontalPodAutoscaler>]),
    ("batch", &[root::<batch::Job>, root::<batch::CronJob>]),
    ("certificates.k8s.io", &[root::<certificates::CertificateSigningRequest>]),
    ("coordination.k8s.io", &[root::<coordination::Lease>]),
    ("discovery.k8s.io", &[root::<discovery::EndpointSlice>]),
    ("events.k8s.io", &[root::<events::Event>]),
    (
        "networking.k8s.io",
        &[
            root::<networking::Ingress>,
            root::<networking::IngressClass>,
            root::<networking::NetworkPolicy>,
            root::<networking::IPAddress>,
            root::<networking::ServiceCIDR>,
        ],
    ),
    ("mainstay.dev", &[root::<Offer>, root::<ServiceTable>]),
    ("node.k8s.io", &[root::<node::RuntimeClass>]),
    ("policy", &[root::<policy::PodDisruptionBudget>, root::<policy::Eviction>]),
    (
        "rbac.authorization.k8s.io",
        &[root::<rbac::Role>, root::<rbac::RoleBinding>, root::<rbac::ClusterRole>, root::<rbac::ClusterRoleBinding>],
    ),
    ("scheduling.k8s.io", &[root::<scheduling::PriorityClass>]),
    (
        "storage.k8s.io",
        &[
            root::<storage::StorageClass>,
            root::<storage::VolumeAttachment>,
            root::<storage::CSIDriver>,
            root::<storage::CSINode>,
            root::<storage::CSIStorageCapacity>,
        ],
    ),
];
