//! Manifests in, complete manifests and errors out.

use serde_json::{Value, json};

use super::{
    config_map::ConfigMaps, endpoints::EndpointsRules, event::EventRules, limit_range::LimitRangeRules,
    namespace::NamespaceRules, node::NodeRules, persistent_volume::PersistentVolumeRules,
    persistent_volume_claim::PersistentVolumeClaimRules, pod_template::PodTemplateRules,
    replication_controller::ReplicationControllerRules, resource_quota::ResourceQuotaRules, secret::SecretRules,
    service_account::ServiceAccountRules,
};
use crate::{
    strategy::{Rules, Strategy},
    validation::testing::{assert_completes, assert_refused, assert_status, assert_update, completed, with},
};

mod storage;
mod workloads;

fn named(kind: &str, fields: Value) -> Value {
    with(&json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "n"}}), fields)
}

#[test]
fn config_maps_are_refused_for_their_keys() {
    let texts =
        |mut object: Value| -> Vec<String> { ConfigMaps.create(&mut object).iter().map(ToString::to_string).collect() };
    assert_eq!(texts(named("ConfigMap", json!({"data": {"a": "b"}, "binaryData": {"b": "YQ=="}}))), [""; 0]);
    assert_eq!(
        texts(named("ConfigMap", json!({"data": {"a b": "", "c": ""}, "binaryData": {"c": "YQ==", "d": "!"}}))),
        [
            r#"data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"#,
            r#"data[c]: Invalid value: "c": duplicate of key present in binaryData"#,
            r#"binaryData[d]: Invalid value: "!": illegal base64 data"#,
        ]
    );
}

#[test]
fn a_frozen_config_map_stays_as_it_is() {
    let old = named("ConfigMap", json!({"immutable": true, "data": {"a": "b"}}));
    let texts = |change: Value| -> Vec<String> {
        ConfigMaps.update(&mut with(&old, change), &old).iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts(json!({"metadata": {"labels": {"a": "b"}}, "binaryData": {}})), [""; 0]);
    assert_eq!(
        texts(json!({"immutable": null, "data": {"a": "c"}, "binaryData": {"x": ""}})),
        [
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
            "binaryData: Forbidden: field is immutable when `immutable` is set",
        ]
    );
}

#[test]
fn plain_text_of_a_secret_becomes_data() {
    assert_completes::<SecretRules>(
        named("Secret", json!({"data": {"a": "eA==", "b": "eA=="}, "stringData": {"b": "yes", "c": "no"}})),
        named("Secret", json!({"type": "Opaque", "data": {"a": "eA==", "b": "eWVz", "c": "bm8="}})),
    );
}

#[test]
fn secrets_keep_the_promise_of_their_type() {
    let cases: [(Value, &[&str]); 7] = [
        (json!({"type": "mine"}), &[]),
        (json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": ""}}), &["data[tls.key]: Required value"]),
        (
            json!({"type": "kubernetes.io/basic-auth"}),
            &["data[username]: Required value", "data[password]: Required value"],
        ),
        (
            json!({"type": "kubernetes.io/ssh-auth", "stringData": {"ssh-privatekey": ""}}),
            &["data[ssh-privatekey]: Required value"],
        ),
        (json!({"type": "kubernetes.io/dockerconfigjson"}), &["data[.dockerconfigjson]: Required value"]),
        (
            json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{"}}),
            &[
                r#"data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": EOF while parsing an object at line 1 column 1"#,
            ],
        ),
        (
            json!({"type": "kubernetes.io/service-account-token"}),
            &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        ),
    ];
    for (fields, expected) in cases {
        assert_refused::<SecretRules>(named("Secret", fields), expected);
    }
}

#[test]
fn a_secret_keeps_its_type() {
    assert_update::<SecretRules>(
        &named("Secret", json!({})),
        json!({"type": "mine"}),
        &[r#"type: Invalid value: "mine": field is immutable"#],
    );
    assert_update::<SecretRules>(
        &named("Secret", json!({"immutable": true})),
        json!({"stringData": {"a": "b"}, "immutable": false}),
        &[
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ],
    );
}

#[test]
fn a_namespace_is_born_active_and_labelled() {
    assert_completes::<NamespaceRules>(
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "prod"}}),
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "prod", "labels": {"kubernetes.io/metadata.name": "prod"}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }),
    );
    let base = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "prod"}});
    assert_refused::<NamespaceRules>(
        with(&base, json!({"spec": {"finalizers": ["mine"]}})),
        &[
            r#"spec.finalizers: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified"#,
        ],
    );
    assert_status::<NamespaceRules>(
        &base,
        json!({"status": {"phase": "Terminating"}}),
        &[r#"status.Phase: Invalid value: "Terminating": may only be 'Active' if `deletionTimestamp` is empty"#],
    );
}

#[test]
fn the_label_and_finalizer_of_a_namespace_stay() {
    let old = completed::<NamespaceRules>(json!({"metadata": {"name": "prod"}}));
    let mut new = with(&old, json!({"metadata": {"labels": null}, "spec": null}));
    let errors = crate::strategy::Typed::<NamespaceRules>::new().update(&mut new, &old);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(new, old);
}

#[test]
fn service_accounts_name_their_secrets() {
    assert_completes::<ServiceAccountRules>(
        named("ServiceAccount", json!({"secrets": [{"name": "s", "namespace": "other", "kind": "Secret"}]})),
        named("ServiceAccount", json!({"secrets": [{"name": "s"}]})),
    );
}

#[test]
fn a_nodes_addresses_go_by_two_names() {
    assert_completes::<NodeRules>(
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "4000m"}}}),
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "a"},
            "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
            "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}},
        }),
    );
}

#[test]
fn nodes_are_refused_with_upstreams_messages() {
    assert_refused::<NodeRules>(
        json!({"metadata": {"name": "a"}, "spec": {
            "podCIDRs": ["10.0.0.0/24", "10.0.1.0/24", "x"],
            "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": ""}],
        }, "status": {"capacity": {"pods": "500m"}}}),
        &[
            r#"metadata.taints[1]: Duplicate value: {"effect":"NoSchedule","key":"a"}: taints must be unique by key and effect pair"#,
            "metadata.taints[2].effect: Required value",
            r#"spec.podCIDRs[2]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
            r#"spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24","x"]: may specify no more than one CIDR for each IP family"#,
            r#"status.capacity.pods: Invalid value: "500m": must be an integer"#,
            r#"status.allocatable.pods: Invalid value: "500m": must be an integer"#,
        ],
    );
    let base = json!({"metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24", "providerID": "p://1"}});
    assert_update::<NodeRules>(&base, json!({"spec": {"unschedulable": true}}), &[]);
    assert_update::<NodeRules>(
        &base,
        json!({"spec": {"podCIDR": null, "podCIDRs": ["10.0.1.0/24"], "providerID": "p://2"}}),
        &[
            "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
            "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
        ],
    );
}

#[test]
fn endpoints_can_be_reached() {
    assert_completes::<EndpointsRules>(
        named("Endpoints", json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]})),
        named(
            "Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80, "protocol": "TCP"}]}]}),
        ),
    );
    assert_refused::<EndpointsRules>(
        named(
            "Endpoints",
            json!({"subsets": [
                {"ports": [{"port": 0}, {"name": "b", "port": 1}]},
                {"notReadyAddresses": [{"ip": "127.0.0.1"}, {"ip": "0.0.0.0"}, {"ip": "fe80::1"}]},
            ]}),
        ),
        &[
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
            "subsets[0].ports[0].name: Required value",
            "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            r#"subsets[1].notReadyAddresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
            r#"subsets[1].notReadyAddresses[1].ip: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)"#,
            r#"subsets[1].notReadyAddresses[2].ip: Invalid value: "fe80::1": may not be in the link-local range (169.254.0.0/16, fe80::/10)"#,
        ],
    );
}

#[test]
fn events_lie_where_their_object_is() {
    let event =
        |about: &str, fields: Value| named("Event", with(&json!({"involvedObject": {"namespace": about}}), fields));
    assert_refused::<EventRules>(event("n", json!({})), &[]);
    assert_refused::<EventRules>(
        event("other", json!({})),
        &[r#"involvedObject.namespace: Invalid value: "other": does not match event.namespace"#],
    );
    assert_refused::<EventRules>(
        event("", json!({})),
        &[r#"involvedObject.namespace: Invalid value: "": does not match event.namespace"#],
    );
    assert_refused::<EventRules>(
        event("n", json!({"eventTime": "2024-01-01T00:00:00.000000Z", "reason": "r"})),
        &["reportingComponent: Required value", "reportingInstance: Required value", "action: Required value"],
    );
}

#[test]
fn unqualified_finalizers_are_refused() {
    assert_refused::<SecretRules>(
        named("Secret", json!({"metadata": {"finalizers": ["mine"]}})),
        &[
            r#"metadata.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified"#,
        ],
    );
}
