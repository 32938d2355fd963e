use proptest::{collection::btree_map, prelude::*};
use serde_json::json;

use super::*;

fn inputs(value: Value) -> BTreeMap<String, Value> {
    value.as_object().expect("inputs by name").clone().into_iter().collect()
}

fn error(source: &str) -> String {
    render(source, &inputs(json!({ "db": { "ready": [] } }))).expect_err(source).to_string()
}

#[test]
fn blocks_leave_no_blank_lines_and_nothing_is_escaped() {
    let source = "zones:\n{% for zone in zones %}\n  - <{{ zone }}>\n{% endfor %}\n";
    let rendered = render(source, &inputs(json!({ "zones": ["a", "b"] })));
    assert_eq!(rendered.unwrap(), "zones:\n  - <a>\n  - <b>\n");
}

#[test]
fn json_is_written_with_sorted_keys() {
    let rendered = render("{{ all|tojson }}", &inputs(json!({ "all": { "b": 1, "a": [true, null] } })));
    assert_eq!(rendered.unwrap(), r#"{"a": [true, null], "b": 1}"#);
}

#[test]
fn what_a_template_names_has_to_exist() {
    assert_eq!(error("a\n{{ mysql }}"), r#"line 2: undefined value in "{{ mysql }}""#);
    assert_eq!(error("{{ db.password }}"), r#"line 1: undefined value in "{{ db.password }}""#);
    assert_eq!(error("{{ db.ready[0] }}"), r#"line 1: undefined value in "{{ db.ready[0] }}""#);
    assert_eq!(error("{{ db|reverse_dns }}"), "line 1: unknown filter: filter reverse_dns is unknown");
    assert_eq!(
        error("\n\n{% include 'other' %}"),
        "line 3: template not found: tried to include non-existing template 'other'"
    );
}

#[test]
fn syntax_errors_name_their_line() {
    assert_eq!(check_syntax("{{ ok }}"), Ok(()));
    let error = check_syntax("a\nb\n{% for x in %}\n{% endfor %}").expect_err("no expression");
    assert_eq!(error.line, Some(3), "{error}");
    let error = check_syntax("{% for x in y %}").expect_err("no end");
    assert_eq!(error.line, Some(1), "{error}");
}

#[test]
fn constant_expressions_are_not_evaluated_where_templates_are_only_checked() {
    // 100 MB each: together more than a machine has.
    let huge = vec!["'x' * 100000000"; 60].join(" ~ ");
    assert_eq!(check_syntax(&format!("{{{{ {huge} }}}}")), Ok(()));
    assert_eq!(check_syntax("{{ [1] * 100000000 == [1] * 100000000 }}"), Ok(()));
}

#[test]
fn inputs_that_are_converted_once_render_like_those_that_are_not() {
    let value = json!({ "b": [1, 2.5, -3, 18446744073709551615_u64, true, null], "a": { "z": "x", "y": [] } });
    let source = "{{ all|tojson }} {{ all.b[1] }} {{ all.b[3] + 1 }} {% for key in all.a %}{{ key }}{% endfor %}";
    let expected = render(source, &inputs(json!({ "all": value }))).unwrap();
    let input = Input::from_json(value.to_string().as_bytes()).unwrap();
    for _ in 0..2 {
        assert_eq!(render_inputs(source, [("all", input.clone())].into_iter()).unwrap(), expected);
    }
    let list = Input::list(vec![input.clone(), Input::from(&json!(7))]);
    let rendered = render_inputs("{{ l|length }} {{ l[1] }} {{ l[0].a.z }}", [("l", list)].into_iter());
    assert_eq!(rendered.unwrap(), "2 7 x");
    assert!(Input::from_json(b"{").is_err());
}

#[test]
fn endless_templates_are_stopped() {
    let endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% set c = b %}{% endfor %}{% endfor %}";
    assert!(error(endless).contains("takes more than 5000000 steps"), "{}", error(endless));
    let recursive = "{% macro f(x) %}{{ f(x) }}{% endmacro %}\n{{ f(1) }}";
    assert!(error(recursive).contains("recursion limit exceeded"), "{}", error(recursive));
    let long = "{% for a in range(90000) %}0123456789012345678901234567890{% endfor %}";
    assert_eq!(error(long), "renders more than 1024000 bytes");
    assert_eq!(error(&"x".repeat(10 << 20)), "is longer than 262144 bytes");
    assert_eq!(check_syntax(&"x".repeat(10 << 20)).unwrap_err().to_string(), "is longer than 262144 bytes");
}

#[test]
fn an_error_can_be_shown_without_values() {
    let error = render("{{ secret + 1 }}", &inputs(json!({ "secret": "s3cret" }))).expect_err("a text and a number");
    assert!(!error.without_detail().to_string().contains("s3cret"));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<i32>().prop_map(Value::from), "[a-z]{0,8}".prop_map(Value::from), Just(Value::Null)];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_same_inputs_give_the_same_bytes(values in btree_map("[a-z]{1,6}", any_value(), 0..6)) {
        let source = "{% for name in names|sort %}{{ name }}\n{% endfor %}{{ all|tojson }}\n{{ all|items|list }}";
        let names: Vec<&String> = values.keys().rev().collect();
        let forward = BTreeMap::from([("names".to_owned(), json!(names)), ("all".to_owned(), json!(values))]);
        let names: Vec<&String> = values.keys().collect();
        let backward = BTreeMap::from([("all".to_owned(), json!(values)), ("names".to_owned(), json!(names))]);
        let rendered = render(source, &forward).expect("renders");
        prop_assert_eq!(&rendered, &render(source, &backward).expect("renders"));
        prop_assert_eq!(&rendered, &render(source, &forward).expect("renders"));
    }

    #[test]
    fn no_text_makes_the_parser_panic(source in "[{}%# a-z0-9'\"|.()\\n-]{0,80}") {
        let _ = check_syntax(&source);
    }
}

/// In a thread with as little stack as those of a server have; an overflow would end the process.
#[test]
fn no_template_overflows_the_stack() {
    let deep = |open: &str, inner: &str, close: &str, count: usize| {
        format!("{{{{ {}{inner}{} }}}}", open.repeat(count), close.repeat(count))
    };
    let most = 120_000;
    let attacks = [
        deep("-", "1", "", 2 * most),
        deep("not ", "1", "", most / 3),
        deep("1+", "1", "", most),
        deep("1**", "1", "", most / 2),
        deep("", "x", ".a", most),
        deep("", "x", "|e", most),
        deep("", "x", "[1]", most / 2),
        deep("", "x", "()", most),
        deep("(", "1", ")", most),
        deep("[", "", "]", most),
        deep("{1:", "1", "}", most / 2),
        deep("1 if 1 else ", "1", "", most / 12),
        deep("[1,", "", "]", most / 2),
        deep("1 and ", "1", "", most / 6),
        format!("{{% raw %}}{{{{ ' {{% endraw %}}{} ' }}}}", deep("-", "1", "", most)),
        format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(most / 12)),
        format!("{}{}", "{% if 1 %}".repeat(most / 12), "{% endif %}".repeat(most / 12)),
        format!("{}{}", "{% for x in [1] %}".repeat(4000), "{% endfor %}".repeat(4000)),
    ];
    let check = move || attacks.iter().for_each(|attack| assert!(check_syntax(attack).is_err(), "{}", &attack[..40]));
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(check).unwrap();
    thread.join().unwrap();
}

#[test]
fn as_deep_as_allowed_is_parsed() {
    let chain = |operator: &str, count: usize| format!("{{{{ 1{} }}}}", operator.repeat(count));
    assert_eq!(check_syntax(&chain("+1", 249)), Ok(()));
    let error = check_syntax(&chain("+1", 250)).unwrap_err().to_string();
    assert_eq!(error, "line 1: an expression nests or chains more than 500 tokens deep");
    assert_eq!(check_syntax(&format!("{{{{ {}1{} }}}}", "(".repeat(70), ")".repeat(70))), Ok(()));
    assert_eq!(check_syntax(&format!("{{{{ {}1 }}}}", "-".repeat(499))), Ok(()));
    assert_eq!(check_syntax(&format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(149))), Ok(()));
    // Many are not deep.
    assert_eq!(check_syntax(&format!("{{{{ [{}] }}}}", "f(1 + 1, x.y|e), ".repeat(2000))), Ok(()));
    assert_eq!(check_syntax(&"{% if 1 %}{{ 1 }}, {% elif 2 %}b{% endif %}\n".repeat(2000)), Ok(()));
}
