//! Compares the file of descriptions with the types, and writes it: `MAINSTAY_WRITE_DESCRIPTIONS=1 cargo test -p mainstay-api describe`.

use std::{collections::BTreeMap, fmt::Write as _};

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission, apps::v1 as apps, authentication::v1 as authentication,
        authorization::v1 as authorization, autoscaling::v1 as autoscaling, autoscaling::v2 as autoscaling2,
        batch::v1 as batch, certificates::v1 as certificates, coordination::v1 as coordination, core::v1 as core,
        discovery::v1 as discovery, events::v1 as events, flowcontrol::v1 as flowcontrol, networking::v1 as networking,
        node::v1 as node, policy::v1 as policy, rbac::v1 as rbac, resource::v1 as resource,
        scheduling::v1 as scheduling, storage::v1 as storage, storagemigration::v1 as storagemigration,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
    apimachinery::pkg::apis::meta::v1 as meta,
    schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings},
};

use super::*;
use crate::{
    cloud::{
        cloud_resource::CloudResource, kluster::Kluster, kubernikus::KubernikusKluster, node_pool::NodePool,
        teardown_receipt::TeardownReceipt,
    },
    config_template::ConfigTemplate,
    machine::Machine,
    machine_file::MachineFile,
    offer::Offer,
    release::Release,
    service_table::ServiceTable,
};

type Root = fn(&mut SchemaGenerator);

fn root<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// The file as the types would have it.
fn expected() -> String {
    let mut definitions: BTreeMap<String, Value> = BTreeMap::new();
    for root in ROOTS.iter().flat_map(|(_, roots)| *roots) {
        let mut generator = SchemaSettings::openapi3().into_generator();
        root(&mut generator);
        definitions.extend(generator.take_definitions(false));
    }
    let mut out = String::new();
    let description = |schema: &Value| escape(schema["description"].as_str().unwrap_or_default());
    for (name, schema) in &definitions {
        writeln!(out, "{name}\t{}", description(schema)).unwrap();
        let fields: BTreeMap<&String, &Value> = schema["properties"].as_object().into_iter().flatten().collect();
        for (field, schema) in fields {
            if schema["description"].is_string() {
                writeln!(out, " {field}\t{}", description(schema)).unwrap();
            }
        }
    }
    out
}

#[test]
fn the_file_has_what_the_types_say() {
    let expected = expected();
    if std::env::var_os("MAINSTAY_WRITE_DESCRIPTIONS").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi/descriptions.txt");
        return std::fs::write(file, expected).unwrap();
    }
    let differs = expected.lines().zip(DESCRIPTIONS.lines()).find(|(expected, found)| expected != found);
    assert_eq!(differs, None, "write the file anew: see the top of this file");
    assert_eq!(expected.len(), DESCRIPTIONS.len());
}

#[test]
fn texts_of_several_lines_come_back_as_they_were() {
    let text = "one\ntwo \\n three\\";
    assert_eq!(unescape(&escape(text)), text);
    let mut pod = Value::Null;
    visit(|name, schema| {
        if name == "io.k8s.api.core.v1.Pod" {
            pod = schema.clone();
        }
    });
    assert!(pod["description"].as_str().unwrap().starts_with("Pod is a collection of containers"), "{pod}");
    assert!(pod["properties"]["spec"]["description"].as_str().unwrap().contains("desired behavior"), "{pod}");
}

const ROOTS: &[(&str, &[Root])] = &[
    ("meta", &[root::<meta::DeleteOptions>, root::<meta::Status>, root::<autoscaling::Scale>]),
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
            root::<admission::MutatingAdmissionPolicy>,
            root::<admission::MutatingAdmissionPolicyBinding>,
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
    (
        "certificates.k8s.io",
        &[
            root::<certificates::CertificateSigningRequest>,
            root::<certificates::ClusterTrustBundle>,
            root::<certificates::PodCertificateRequest>,
        ],
    ),
    ("coordination.k8s.io", &[root::<coordination::Lease>]),
    ("discovery.k8s.io", &[root::<discovery::EndpointSlice>]),
    ("events.k8s.io", &[root::<events::Event>]),
    (
        "flowcontrol.apiserver.k8s.io",
        &[root::<flowcontrol::FlowSchema>, root::<flowcontrol::PriorityLevelConfiguration>],
    ),
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
    ("kubernikus.sap.cc", &[root::<KubernikusKluster>]),
    (
        "mainstay.dev",
        &[
            root::<ConfigTemplate>,
            root::<Offer>,
            root::<ServiceTable>,
            root::<Machine>,
            root::<MachineFile>,
            root::<Release>,
            root::<Kluster>,
            root::<NodePool>,
            root::<CloudResource>,
            root::<TeardownReceipt>,
        ],
    ),
    ("node.k8s.io", &[root::<node::RuntimeClass>]),
    ("policy", &[root::<policy::PodDisruptionBudget>, root::<policy::Eviction>]),
    (
        "rbac.authorization.k8s.io",
        &[root::<rbac::Role>, root::<rbac::RoleBinding>, root::<rbac::ClusterRole>, root::<rbac::ClusterRoleBinding>],
    ),
    (
        "resource.k8s.io",
        &[
            root::<resource::DeviceClass>,
            root::<resource::DeviceTaintRule>,
            root::<resource::ResourceClaim>,
            root::<resource::ResourceClaimTemplate>,
            root::<resource::ResourceSlice>,
        ],
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
            root::<storage::VolumeAttributesClass>,
        ],
    ),
    ("storagemigration.k8s.io", &[root::<storagemigration::StorageVersionMigration>]),
];
