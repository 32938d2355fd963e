use serde_json::{Value, json};

use super::*;
use crate::{
    strategy::{Strategy, Typed},
    validation::testing::{assert_completes, assert_refused, assert_status, assert_update, completed, with},
};

fn web() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}

fn spec(change: Value) -> Value {
    with(&web(), json!({"spec": change}))
}

/// As the server stores it: with an address.
fn running(change: Value) -> Value {
    with(&spec(json!({"clusterIP": "10.96.0.7"})), json!({"spec": change}))
}

fn updated(old: &Value, change: Value) -> Value {
    let mut new = with(old, change);
    let errors = Typed::<ServiceRules>::new().update(&mut new, old);
    assert_eq!(errors, Errors::new());
    new["spec"].take()
}

#[test]
fn a_minimal_service_is_completed() {
    assert_completes::<ServiceRules>(
        web(),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {
                "type": "ClusterIP", "selector": {"app": "web"}, "sessionAffinity": "None",
                "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            },
            "status": {"loadBalancer": {}},
        }),
    );
}

#[test]
fn defaults_depend_on_the_type() {
    let of = |change| completed::<ServiceRules>(spec(change))["spec"].take();
    let balanced = of(json!({"type": "LoadBalancer"}));
    assert_eq!(balanced["allocateLoadBalancerNodePorts"], true);
    assert_eq!(balanced["externalTrafficPolicy"], "Cluster");
    assert_eq!(of(json!({"type": "NodePort"}))["externalTrafficPolicy"], "Cluster");
    assert_eq!(of(json!({"externalIPs": ["1.2.3.4"]}))["externalTrafficPolicy"], "Cluster");
    assert_eq!(
        of(json!({"type": "ExternalName", "externalName": "example.com", "selector": null, "ports": null})),
        json!({"type": "ExternalName", "externalName": "example.com", "sessionAffinity": "None"})
    );
    assert_eq!(
        of(json!({"sessionAffinity": "ClientIP"}))["sessionAffinityConfig"],
        json!({"clientIP": {"timeoutSeconds": 10800}})
    );
    assert_eq!(of(json!({"ports": [{"port": 80, "targetPort": "http"}]}))["ports"][0]["targetPort"], "http");
    assert_eq!(of(json!({"clusterIP": "fd00::1"}))["ipFamilies"], json!(["IPv6"]));
}

#[test]
fn a_headless_service_mirrors_none() {
    let headless = completed::<ServiceRules>(spec(json!({"clusterIP": "None"})))["spec"].take();
    assert_eq!(headless["clusterIPs"], json!(["None"]));
    assert_eq!(headless["ipFamilies"], json!(["IPv4"]));
    let unmanaged = completed::<ServiceRules>(spec(json!({"clusterIP": "None", "selector": null})))["spec"].take();
    assert_eq!(unmanaged["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(unmanaged["ipFamilyPolicy"], "RequireDualStack");
    let portless = completed::<ServiceRules>(spec(json!({"clusterIP": "None", "ports": null})));
    assert_eq!(portless["spec"].get("ports"), None);
}

#[test]
fn bad_services_are_refused_with_upstreams_messages() {
    let cases: &[(Value, &[&str])] = &[
        (json!({"ports": null}), &["spec.ports: Required value"]),
        (
            json!({"type": "Cluster"}),
            &[
                r#"spec.type: Unsupported value: "Cluster": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort""#,
            ],
        ),
        (
            json!({"ports": [{"port": 80}, {"port": 80, "name": "b"}, {"port": 81, "name": "b"}]}),
            &[
                "spec.ports[0].name: Required value",
                r#"spec.ports[2].name: Duplicate value: "b""#,
                r#"spec.ports[1]: Duplicate value: {"port":80,"protocol":"TCP"}"#,
            ],
        ),
        (
            json!({"ports": [{"port": 0, "protocol": "HTTP", "targetPort": "-x"}]}),
            &[
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                r#"spec.ports[0].protocol: Unsupported value: "HTTP": supported values: "SCTP", "TCP", "UDP""#,
                r#"spec.ports[0].targetPort: Invalid value: "-x": must not begin or end with a hyphen"#,
            ],
        ),
        (
            json!({"ports": [{"port": 80, "nodePort": 30000}]}),
            &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
        ),
        (
            json!({"type": "NodePort", "ports": [
                {"name": "a", "port": 80, "nodePort": 30000}, {"name": "b", "port": 81, "nodePort": 30000},
            ]}),
            &["spec.ports[1].nodePort: Duplicate value: 30000"],
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None"}),
            &[r#"spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services"#],
        ),
        (
            json!({"clusterIP": "10.96"}),
            &[
                r#"spec.clusterIPs[0]: Invalid value: "10.96": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
            ],
        ),
        (
            json!({"clusterIPs": ["10.96.0.1"]}),
            &[r#"spec.clusterIPs: Invalid value: ["10.96.0.1"]: must be empty when `clusterIP` is not specified"#],
        ),
        (
            json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "10.96.0.2"]}),
            &[
                r#"spec.clusterIPs: Invalid value: ["10.96.0.1","10.96.0.2"]: may specify no more than one IP for each IP family"#,
            ],
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv6"]}),
            &[
                r#"spec.clusterIPs[0]: Invalid value: "10.96.0.1": expected an IPv6 value as indicated by `ipFamilies[0]`"#,
            ],
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv4", "IPX"]}),
            &[
                r#"spec.ipFamilies[2]: Unsupported value: "IPX": supported values: "IPv4", "IPv6""#,
                r#"spec.ipFamilies[1]: Duplicate value: "IPv4""#,
            ],
        ),
        (
            json!({"type": "ExternalName", "clusterIP": "None"}),
            &[
                "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
                "spec.externalName: Required value",
            ],
        ),
        (
            json!({"sessionAffinity": "Cookie"}),
            &[r#"spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None""#],
        ),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90000}}}),
            &[
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 90000: must be greater than 0 and less than 86400",
            ],
        ),
        (
            json!({"externalIPs": ["127.0.0.1"]}),
            &[
                r#"spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
            ],
        ),
        (
            json!({"externalTrafficPolicy": "Local"}),
            &[
                r#"spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services"#,
            ],
        ),
        (
            json!({"healthCheckNodePort": 30001}),
            &[
                "spec.healthCheckNodePort: Invalid value: 30001: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
            ],
        ),
        (
            json!({"loadBalancerSourceRanges": ["10.0.0.0/8"], "loadBalancerClass": "a/b"}),
            &[
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
                "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ],
        ),
        (
            json!({"trafficDistribution": "Near"}),
            &[
                r#"spec.trafficDistribution: Unsupported value: "Near": supported values: "PreferClose", "PreferSameNode", "PreferSameZone""#,
            ],
        ),
    ];
    for (change, expected) in cases {
        assert_refused::<ServiceRules>(spec(change.clone()), expected);
    }
}

#[test]
fn an_address_is_for_life() {
    let cases: &[(Value, &[&str])] = &[
        (
            json!({"clusterIP": "10.96.0.8"}),
            &[r#"spec.clusterIPs[0]: Invalid value: ["10.96.0.8"]: may not change once set"#],
        ),
        (json!({"clusterIP": "None"}), &[r#"spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set"#]),
        (
            json!({"ipFamilies": ["IPv6"]}),
            &[
                r#"spec.clusterIPs[0]: Invalid value: "10.96.0.7": expected an IPv6 value as indicated by `ipFamilies[0]`"#,
                r#"spec.ipFamilies[0]: Invalid value: ["IPv6"]: may not change once set"#,
            ],
        ),
        (json!({"selector": {"app": "api"}, "ports": [{"port": 8080}]}), &[]),
    ];
    for (change, expected) in cases {
        assert_update::<ServiceRules>(&running(json!({})), json!({"spec": change}), expected);
    }
}

#[test]
fn what_a_replacement_leaves_out_is_kept() {
    let old = completed::<ServiceRules>(running(json!({
        "type": "NodePort",
        "ports": [{"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 81, "nodePort": 30081}],
    })));
    let retained = updated(
        &old,
        json!({"spec": {"clusterIP": null, "clusterIPs": null, "ipFamilies": null, "ports": [
            {"name": "b", "port": 82}, {"name": "c", "port": 83}, {"name": "a", "port": 80, "nodePort": 30090},
        ]}}),
    );
    assert_eq!(retained["clusterIP"], "10.96.0.7");
    assert_eq!(retained["clusterIPs"], json!(["10.96.0.7"]));
    assert_eq!(retained["ipFamilies"], json!(["IPv4"]));
    assert_eq!(retained["ports"][0]["nodePort"], 30081);
    assert_eq!(retained["ports"][1].get("nodePort"), None);
    assert_eq!(retained["ports"][2]["nodePort"], 30090);
}

#[test]
fn a_change_of_type_drops_what_no_longer_applies() {
    let old = completed::<ServiceRules>(running(json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
        "loadBalancerClass": "example.com/lb", "ports": [{"port": 80, "nodePort": 30080}],
    })));
    let inner = updated(&old, json!({"spec": {"type": "ClusterIP"}}));
    for gone in ["externalTrafficPolicy", "healthCheckNodePort", "loadBalancerClass", "allocateLoadBalancerNodePorts"] {
        assert_eq!(inner.get(gone), None, "{gone}");
    }
    assert_eq!(inner["ports"][0].get("nodePort"), None);
    assert_eq!(inner["clusterIP"], "10.96.0.7");
    let alias = updated(&old, json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}));
    for gone in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(alias.get(gone), None, "{gone}");
    }
}

#[test]
fn a_load_balancer_keeps_its_class() {
    assert_update::<ServiceRules>(
        &running(json!({"type": "LoadBalancer"})),
        json!({"spec": {"loadBalancerClass": "example.com/lb"}}),
        &[r#"spec.loadBalancerClass: Invalid value: "example.com/lb": may not change once set"#],
    );
}

#[test]
fn only_load_balancers_have_outer_addresses() {
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
    assert_status::<ServiceRules>(
        &web(),
        status.clone(),
        &[r#"status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is "LoadBalancer""#],
    );
    assert_status::<ServiceRules>(&spec(json!({"type": "LoadBalancer"})), status, &[]);
}

#[test]
fn ignored_fields_of_a_headless_service_are_warned_about() {
    let headless = completed::<ServiceRules>(spec(json!({"clusterIP": "None", "externalIPs": ["1.2.3.4"]})));
    assert_eq!(
        Typed::<ServiceRules>::new().warnings(&headless),
        [r#"spec.externalIPs is ignored when spec.clusterIP is "None""#]
    );
}
