use serde_json::{Value, json};

use super::*;
use crate::{
    strategy::{Strategy as _, Typed},
    validation::testing::{assert_completes, assert_refused, assert_update, completed, with},
};

fn kluster(spec: Value) -> Value {
    let base = json!({"apiVersion": "mainstay.dev/v1", "kind": "Kluster", "metadata": {"name": "k"}, "spec": {}});
    with(&base, json!({"spec": spec}))
}

fn stock() -> Value {
    json!({
        "name": "k", "clusterCIDR": "100.100.0.0/16", "serviceCIDR": "198.18.128.0/17", "advertiseAddress": "1.1.1.1",
        "advertisePort": 6443, "dnsAddress": "198.18.128.2", "dnsDomain": "cluster.local", "openstack": {},
    })
}

#[test]
fn stock_values_are_those_of_kubernikus() {
    let expected = with(&kluster(stock()), json!({"status": {"phase": "Pending"}}));
    assert_completes::<KlusterRules>(kluster(json!({})), expected);
    let other = completed::<KlusterRules>(kluster(json!({"serviceCIDR": "10.180.0.0/24"})));
    assert_eq!(other["spec"]["dnsAddress"], "10.180.0.2");
    let spec: KlusterSpec = serde_json::from_value(other["spec"].clone()).expect("a spec");
    assert_eq!(spec.api_service_address().map(|address| address.to_string()).as_deref(), Some("10.180.0.1"));
}

#[test]
fn the_name_is_that_of_the_object_without_its_project() {
    for (name, project, expected) in
        [("berlin-abc", "abc", "berlin"), ("berlin", "abc", "berlin"), ("a-b", "", "a-b"), ("abc", "abc", "abc")]
    {
        let mut object = kluster(json!({"openstack": {"projectID": project}}));
        object["metadata"]["name"] = name.into();
        assert_eq!(completed::<KlusterRules>(object)["spec"]["name"], expected, "{name}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_field() {
    let name = "must be at most 20 lower-case letters, digits and dashes, begin with a letter and not end with a dash";
    let range = "must be an IPv4 range that begins with its first address, such as 10.9.8.0/24";
    let cases = [
        (json!({"name": "1a"}), format!("spec.name: Invalid value: \"1a\": {name}")),
        (json!({"name": "a-"}), format!("spec.name: Invalid value: \"a-\": {name}")),
        (
            json!({"name": "abcdefghijklmnopqrstu"}),
            format!("spec.name: Invalid value: \"abcdefghijklmnopqrstu\": {name}"),
        ),
        (json!({"clusterCIDR": ""}), "spec.clusterCIDR: Required value: may be empty with noCloud alone".to_owned()),
        (json!({"clusterCIDR": "x"}), format!("spec.clusterCIDR: Invalid value: \"x\": {range}")),
        (json!({"clusterCIDR": "10.0.0.1/16"}), format!("spec.clusterCIDR: Invalid value: \"10.0.0.1/16\": {range}")),
        (
            json!({"clusterCIDR": "10.0.0.0/25"}),
            "spec.clusterCIDR: Invalid value: \"10.0.0.0/25\": must have a prefix of 8 to 24 bits".to_owned(),
        ),
        (
            json!({"clusterCIDR": "198.18.0.0/15"}),
            "spec.clusterCIDR: Invalid value: \"198.18.0.0/15\": must not overlap with serviceCIDR 198.18.128.0/17"
                .to_owned(),
        ),
        (
            json!({"dnsAddress": "198.18.128.1"}),
            "spec.dnsAddress: Invalid value: \"198.18.128.1\": must be an address of serviceCIDR 198.18.128.0/17 that \
             the API does not have"
                .to_owned(),
        ),
        (
            json!({"advertisePort": 0}),
            "spec.advertisePort: Invalid value: 0: must be between 1 and 65535, inclusive".to_owned(),
        ),
        (
            json!({"backup": "maybe"}),
            "spec.backup: Unsupported value: \"maybe\": supported values: \"on\", \"off\", \"externalAWS\"".to_owned(),
        ),
        (
            json!({"version": "v1.36"}),
            "spec.version: Invalid value: \"v1.36\": must be a version such as 1.36.0".to_owned(),
        ),
        (
            json!({"sshPublicKey": "ssh-rsa A\n- evil"}),
            "spec.sshPublicKey: Invalid value: \"ssh-rsa A\\n- evil\": must be one line, without control characters"
                .to_owned(),
        ),
        (
            json!({"oidc": {"clientID": "a", "issuerURL": "http://a"}}),
            "spec.oidc.issuerURL: Invalid value: \"http://a\": must be a URL with the scheme https".to_owned(),
        ),
        (
            json!({"openstack": {"routerID": "../x"}}),
            "spec.openstack.routerID: Invalid value: \"../x\": must be at most 255 bytes without slashes and control \
             characters"
                .to_owned(),
        ),
        (
            json!({"nodePools": [{"name": "a", "flavor": "f"}, {"name": "a", "flavor": "f"}]}),
            "spec.nodePools[1].name: Duplicate value: \"a\"".to_owned(),
        ),
        (
            json!({"nodePools": [{"name": "a", "flavor": "f", "size": 200}]}),
            "spec.nodePools[0].size: Invalid value: 200: must be between 0 and 127, inclusive".to_owned(),
        ),
    ];
    for (spec, error) in cases {
        assert_refused::<KlusterRules>(kluster(spec), &[&error]);
    }
    let mut long = kluster(json!({"name": "a"}));
    long["metadata"]["name"] = "a".repeat(54).into();
    assert_refused::<KlusterRules>(long, &["metadata.name: Too long: may not be more than 53 bytes"]);
    completed::<KlusterRules>(kluster(json!({"noCloud": true, "clusterCIDR": ""})));
}

/// An object as it is while it runs.
fn running(spec: Value, pools: Value) -> Value {
    let mut old = completed::<KlusterRules>(kluster(spec));
    old["status"] = json!({"phase": "Running", "nodePools": pools});
    old
}

fn update_errors(old: &Value, change: Value) -> Vec<String> {
    let mut new = with(old, change);
    let errors = Typed::<KlusterRules>::new().update(&mut new, old);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn ranges_and_names_cannot_be_changed() {
    let fields = [
        ("clusterCIDR", json!("10.0.0.0/16")),
        ("serviceCIDR", json!("198.18.128.0/18")),
        ("name", json!("b")),
        ("advertisePort", json!(443)),
        ("dnsDomain", json!("x")),
    ];
    for (field, value) in fields {
        let error = format!("spec.{field}: Invalid value: {value}: field is immutable");
        assert_update::<KlusterRules>(&kluster(json!({})), json!({"spec": {field: value}}), &[&error]);
    }
    assert_update::<KlusterRules>(&kluster(json!({})), json!({"spec": {"sshPublicKey": "ssh-rsa A"}}), &[]);
}

#[test]
fn what_was_discovered_is_kept_and_cannot_be_changed() {
    let old = completed::<KlusterRules>(kluster(json!({})));
    let discovered = json!({"spec": {"openstack": {"routerID": "r", "networkID": "n"}, "version": "1.36.0"}});
    assert_eq!(update_errors(&old, discovered.clone()), [""; 0]);
    let mut replaced = old.clone();
    Typed::<KlusterRules>::new().update(&mut replaced, &with(&old, discovered.clone()));
    assert_eq!(replaced["spec"]["openstack"], json!({"routerID": "r", "networkID": "n"}));
    assert_eq!(replaced["spec"]["version"], "1.36.0");
    assert_eq!(
        update_errors(&with(&old, discovered), json!({"spec": {"openstack": {"routerID": "x"}}})),
        ["spec.openstack.routerID: Invalid value: \"x\": field is immutable"]
    );
}

#[test]
fn the_version_changes_while_running_and_by_one_minor_version_at_most() {
    let old = running(json!({"version": "1.10.1"}), json!([]));
    let to = |version: &str| json!({"spec": {"version": version}});
    assert_eq!(update_errors(&old, to("1.11.2")), [""; 0]);
    assert_eq!(
        update_errors(&old, to("1.12.2")),
        ["spec.version: Invalid value: \"1.12.2\": must be of the minor version of 1.10.1 or of the next one"]
    );
    for phase in ["Pending", "Creating", "Upgrading", "Terminating"] {
        let old = with(&old, json!({"status": {"phase": phase}}));
        let error = format!("spec.version: Forbidden: can be changed while the Kluster is Running; it is {phase}");
        assert_eq!(update_errors(&old, to("1.11.2")), [error]);
    }
}

#[test]
fn a_pool_is_removed_at_size_zero_alone() {
    let pool = |size: i32| json!([{"name": "a", "flavor": "f", "size": size, "availabilityZone": "z"}]);
    let none = || json!({"spec": {"nodePools": []}});
    let error = |size: i32, running: i32| {
        format!(
            "spec.nodePools: Forbidden: pool a can be removed once its size is 0 and its machines are gone; its size is \
             {size} and {running} machines run"
        )
    };
    let status = |running: i32| json!([{"name": "a", "size": 0, "running": running}]);
    let errors = |size: i32, runs: i32| update_errors(&running(json!({"nodePools": pool(size)}), status(runs)), none());
    assert_eq!(errors(1, 0), [error(1, 0)]);
    assert_eq!(errors(0, 1), [error(0, 1)]);
    assert_eq!(errors(0, 0), [""; 0]);
    let old = running(json!({"nodePools": pool(1)}), status(1));
    let flavor = json!({"spec": {"nodePools": [{"name": "a", "flavor": "g", "size": 2}]}});
    assert_eq!(
        update_errors(&old, flavor),
        ["spec.nodePools[0].flavor: Invalid value: \"g\": field is immutable"],
        "the zone is kept where it is left out"
    );
}

#[test]
fn the_finalizers_of_klusters_have_no_domain() {
    let mut object = kluster(json!({}));
    object["metadata"]["finalizers"] = json!(["deorbiter", "launchctl", "groundctl"]);
    completed::<KlusterRules>(object.clone());
    object["metadata"]["finalizers"] = json!(["mine"]);
    let error = "metadata.finalizers[0]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully \
                 qualified";
    assert_refused::<KlusterRules>(object, &[error]);
}
