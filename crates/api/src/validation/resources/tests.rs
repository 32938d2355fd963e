use serde_json::json;

use super::*;

#[test]
fn resource_lists_are_written_one_way() {
    let mut list: Option<ResourceList> =
        serde_json::from_value(json!({"cpu": 0.5, "memory": "1024Ki", "x.io/a": "100n", "x.io/b": "what"})).ok();
    canonicalize(&mut list);
    assert_eq!(json!(list), json!({"cpu": "500m", "memory": "1Mi", "x.io/a": "1m", "x.io/b": "what"}));
}

fn judged(requirements: serde_json::Value) -> Vec<String> {
    let requirements: ResourceRequirements = serde_json::from_value(requirements).expect("requirements");
    let mut errors = Errors::new();
    validate_container(&requirements, &BTreeSet::from(["gpu"]), &Path::new("resources"), &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}

#[test]
fn requirements_are_refused_with_upstreams_messages() {
    let cases = [
        (
            json!({"limits": {"cpu": 1, "memory": "1Gi", "x.io/gpu": 1}, "requests": {"cpu": "500m", "x.io/gpu": "1"}}),
            vec![],
        ),
        (json!({"claims": [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}]}), vec![]),
        (
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}}),
            vec![r#"resources.requests: Invalid value: "1500m": must be less than or equal to cpu limit of 1"#],
        ),
        (
            json!({"limits": {"memory": "-1"}}),
            vec![r#"resources.limits[memory]: Invalid value: "-1": must be greater than or equal to 0"#],
        ),
        (
            json!({"requests": {"x.io/gpu": "1"}}),
            vec!["resources.limits: Required value: Limit must be set for non overcommitable resources"],
        ),
        (
            json!({"limits": {"x.io/gpu": "500m"}}),
            vec![r#"resources.limits[x.io/gpu]: Invalid value: "500m": must be an integer"#],
        ),
        (
            json!({"limits": {"disk": "1"}}),
            vec![
                r#"resources.limits[disk]: Invalid value: "disk": must be a standard resource type or fully qualified"#,
                r#"resources.limits[disk]: Invalid value: "disk": must be a standard resource for containers"#,
            ],
        ),
        (
            json!({"limits": {"hugepages-2Mi": "3Mi"}}),
            vec![
                r#"resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#,
                "resources: Forbidden: HugePages require cpu or memory",
            ],
        ),
        (
            json!({"claims": [{"name": "gpu"}, {"name": "gpu"}, {"name": "nic"}]}),
            vec![
                r#"resources.claims[1]: Duplicate value: "gpu""#,
                r#"resources.claims[2]: Not found: "nic": must be one of the names in pod.spec.resourceClaims: gpu"#,
            ],
        ),
        (
            json!({"limits": {"cpu": "lots"}}),
            vec![
                r#"resources.limits[cpu]: Invalid value: "lots": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"#,
            ],
        ),
    ];
    for (requirements, expected) in cases {
        assert_eq!(judged(requirements.clone()), expected, "{requirements}");
    }
}
