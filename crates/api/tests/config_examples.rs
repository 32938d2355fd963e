//! The ConfigTemplates in `examples/config`: they are valid, and render what they promise.

use std::{collections::BTreeMap, fs, path::Path};

use mainstay_api::{
    config_template::ConfigTemplate,
    groups::mainstay::rules::config_template::ConfigTemplateRules,
    strategy::{Strategy, Typed},
};
use mainstay_templates::render;
use serde_json::{Value, json};

fn example(name: &str) -> ConfigTemplate {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/config").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut object: Value = serde_saphyr::from_str(&text).expect("YAML");
    let errors = Typed::<ConfigTemplateRules>::new().create(&mut object);
    assert!(errors.is_empty(), "{name}: {:?}", errors.iter().map(ToString::to_string).collect::<Vec<_>>());
    serde_json::from_value(object).expect("a ConfigTemplate")
}

fn service(name: &str, labels: Value, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({ "address": address, "ready": true })).collect();
    json!({ "name": name, "labels": labels, "addressable": addresses, "ready": addresses, "endpoints": endpoints })
}

#[test]
fn hieras_services_are_lines_of_addresses_by_role_and_interface() {
    let services = json!([
        service("controllers", json!({ "role": "oc", "interface": "private" }), &["10.0.0.9", "10.0.0.10"]),
        service("load-balancer", json!({ "role": "lb" }), &[]),
    ]);
    let published = json!([{ "name": "mysql", "interfaces": { "eth0": ["10.0.0.4"] } }]);
    let inputs = BTreeMap::from([("labelled".to_owned(), services), ("published".to_owned(), published)]);
    let rendered = render(&example("hiera-services.yaml").spec.template, &inputs).expect("renders");
    let expected = "---\nservices::mysql::eth0: [\"10.0.0.4\"]\nservices::lb::default: []\n\
        services::oc::private: [\"10.0.0.9\", \"10.0.0.10\"]\n";
    assert_eq!(rendered, expected);
    let on_machines = example("hiera-machines.yaml").spec;
    assert_eq!(render(&on_machines.template, &inputs).expect("renders"), expected);
    let machines = on_machines.consumers[0].machines.as_ref().expect("machines");
    assert_eq!(machines.file.path, "/etc/puppet/hiera/data/services.yaml");
}

#[test]
fn the_catalogue_is_json() {
    let services = json!([service("db", json!({}), &["10.0.0.1"])]);
    let nodes = json!([{ "name": "a" }, { "name": "b" }]);
    let inputs = BTreeMap::from([("services".to_owned(), services.clone()), ("nodes".to_owned(), nodes)]);
    let rendered = render(&example("catalogue.yaml").spec.template, &inputs).expect("renders");
    let parsed: Value = serde_json::from_str(&rendered).expect("JSON");
    assert_eq!(parsed, json!({ "services": services, "nodes": ["a", "b"] }));
}

#[test]
fn a_load_balancer_has_a_line_for_each_endpoint_that_is_ready() {
    let template = example("web.yaml").spec.template;
    let render = |addresses: &[&str]| {
        let inputs = BTreeMap::from([("api".to_owned(), service("api", json!({}), addresses))]);
        render(&template, &inputs).expect("renders")
    };
    assert!(
        render(&["10.0.0.1", "10.0.0.2"])
            .starts_with("upstream api {\n  server 10.0.0.1:8080;\n  server 10.0.0.2:8080;\n}\n")
    );
    assert!(render(&[]).starts_with("upstream api {\n  server 127.0.0.1:9 down;\n}\n"));
}
