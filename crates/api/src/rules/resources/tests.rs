use serde_json::json;

use super::*;

#[test]
fn quantities_are_written_one_way() {
    let cases = [
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1", "1"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        ("100Mi", "100Mi"),
        ("1000Mi", "1000Mi"),
        ("1500M", "1500M"),
        ("1000k", "1M"),
        ("0", "0"),
        ("0Mi", "0"),
        ("1e3", "1e3"),
        ("9E", "9E"),
        ("100n", "1m"),
        ("-250m", "-250m"),
        ("+1", "1"),
        (".5", "500m"),
        ("64", "64"),
    ];
    for (text, expected) in cases {
        assert_eq!(Amount::canonical(text).as_deref(), Some(expected), "{text}");
    }
    for bad in ["", "-", ".", "1.2.3", "1KiB", "a", "1 ", "Ki", "1e", "1ee3", "--1"] {
        assert_eq!(Amount::parse(bad), None, "{bad}");
    }
}

#[test]
fn quantities_compare_across_units() {
    let amount = |text: &str| Amount::parse(text).expect("a quantity");
    assert!(amount("1Gi") > amount("1G"));
    assert_eq!(amount("1"), amount("1000m"));
    assert!(amount("-1") < amount("0"));
    assert!(amount("9999999999999999999999E") >= amount("7Ei"), "saturates instead of wrapping");
    assert_eq!(amount("1.5").as_milli(), 1500);
}

fn judged(requirements: serde_json::Value) -> Vec<String> {
    let requirements: ResourceRequirements = serde_json::from_value(requirements).expect("requirements");
    let mut errors = Errors::new();
    validate_container(&requirements, &BTreeSet::from(["gpu"]), &Path::new("resources"), &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}

#[test]
fn requirements_are_refused_in_upstreams_words() {
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
