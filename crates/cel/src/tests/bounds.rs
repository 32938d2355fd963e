//! Whatever the expression: compiling and evaluating end, within the budget and the stack.

use proptest::prelude::*;
use serde_json::json;

use super::{evaluate_within, sample};
use crate::{Budget, Environment, EvalError, Program, Type, Variables, limits::MAX_EXPRESSION_LENGTH};

fn compile(expression: &str) -> Result<Program, String> {
    let environment = Environment::new().variable("object", Type::Dyn);
    Program::compile(&environment, expression).map_err(|error| error.to_string())
}

/// On a thread with the stack of a server's worker, in an unoptimized build.
fn on_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(1 << 20).spawn(work).expect("a thread").join().expect("no overflow")
}

#[test]
fn nesting_is_bounded() {
    for (open, inner, close) in
        [("(", "1", ")"), ("[", "1", "]"), ("{1:", "1", "}"), ("[1].all(x,", "true", ")"), ("true ? 1 : (", "1", ")")]
    {
        for depth in [200, 2_000] {
            let expression = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
            let error = compile(&expression).expect_err("too deep");
            assert!(error.contains("recursion limit exceeded"), "{open} {depth}: {error}");
        }
    }
    for link in ["+1", ".a", "[0]", ".a()", "-1", "*1", "==1"] {
        let expression = format!("object{}", link.repeat(5_000));
        let error = compile(&expression).expect_err("too long a chain");
        assert!(error.contains("recursion limit exceeded"), "{link}: {}", error.lines().next().unwrap_or(""));
    }
}

#[test]
fn what_compiles_evaluates_on_a_small_stack() {
    let deep = [
        format!("object{}", ".a".repeat(200)),
        format!("1{}", "+1".repeat(200)),
        format!("{}1{}", "[".repeat(95), "]".repeat(95)),
        format!("{}true{}", "[1].all(x,".repeat(60), ")".repeat(60)),
        format!("{}1{}", "[1].map(x,".repeat(60), ")".repeat(60)),
        format!("{}1{}", "cel.bind(x,1,".repeat(90), ")".repeat(90)),
        format!("{}1{}", "true ? (".repeat(90), ") : 1".repeat(90)),
        format!("{}object{}", "string(".repeat(90), ")".repeat(90)),
    ];
    for expression in deep {
        let program = compile(&expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        on_small_stack(move || {
            let object = json!({});
            let _ = program.evaluate(&Variables::new().json("object", &object), &mut Budget::default());
        });
    }
}

#[test]
fn long_expressions_are_refused() {
    let error = compile(&" ".repeat(MAX_EXPRESSION_LENGTH + 1)).expect_err("too long");
    assert!(error.contains("expression code point size exceeds limit"), "{error}");
}

#[test]
fn errors_are_short_however_many_faults_an_expression_has() {
    let faulty = [
        format!("[{}]", vec!["x"; 10_000].join(",")),
        format!("'{}' + 1", "a".repeat(30_000)),
        format!("x.{}", "a".repeat(30_000)),
        "\\".repeat(30_000),
        "\n\\".repeat(10_000),
        "a".repeat(3 << 20),
    ];
    for expression in faulty {
        let error = compile(&expression).expect_err("faulty");
        assert!(error.len() < 64 << 10, "{} bytes for {}…", error.len(), &expression[..20]);
    }
}

#[test]
fn an_error_about_a_large_value_costs_what_it_is_short_of() {
    let object = json!({"large": "k".repeat(2 << 20), "list": (0..100_000).collect::<Vec<i32>>()});
    for failing in
        ["{'a': 1}[object.large] == 1", "object[object.large] == 1", "{object.large: 1}[?object.large].hasValue()"]
    {
        let looped = format!("object.list.exists(x, {failing} && false)");
        let started = std::time::Instant::now();
        assert!(matches!(evaluate_within(&looped, &object, 1_000_000), Err(EvalError::CallCostExceeded)), "{failing}");
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{failing}: {:?}", started.elapsed());
    }
    for failing in [
        "object.list[object.large]",
        "object[object.large]",
        "ip(object.large)",
        "cidr(object.large)",
        "url(object.large)",
    ] {
        let error = evaluate_within(failing, &object, 1_000_000).expect_err(failing).to_string();
        assert!(error.len() <= 2 << 10, "{failing}: {} bytes", error.len());
    }
}

#[test]
fn nested_loops_end_by_the_budget() {
    let object = json!({"list": (0..1000).collect::<Vec<i32>>()});
    let loops = (0..6).fold("true".to_owned(), |inner, depth| format!("object.list.all(v{depth}, {inner})"));
    assert_eq!(evaluate_within(&loops, &object, 1_000_000), Err(EvalError::CallCostExceeded));
    assert_eq!(evaluate_within("object.list.all(x, true)", &object, 1_000_000), Ok(()));
}

#[test]
fn growth_ends_by_the_budget() {
    let object = sample();
    let strings = (0..60).fold("'aaaaaaaaaa'".to_owned(), |inner, _| format!("cel.bind(x, {inner}, x + x)"));
    assert_eq!(evaluate_within(&format!("{strings} == ''"), &object, 1_000_000), Err(EvalError::CallCostExceeded));
    let lists = (0..60).fold("[1, 2]".to_owned(), |inner, _| format!("cel.bind(x, {inner}, x + x)"));
    assert_eq!(evaluate_within(&format!("{lists} == []"), &object, 1_000_000), Err(EvalError::CallCostExceeded));
    // Shared parts are cheap to build and expensive to compare or to write.
    let shared = (0..60).fold("[1, 2]".to_owned(), |inner, _| format!("cel.bind(x, {inner}, [x, x])"));
    assert_eq!(
        evaluate_within(&format!("cel.bind(y, {shared}, y == y)"), &object, 1_000_000),
        Err(EvalError::CallCostExceeded)
    );
    assert_eq!(
        evaluate_within(&format!("'%s'.format([{shared}]) == ''"), &object, 1_000_000).map_err(|e| e.is_fatal()),
        Err(false)
    );
    let replaced = (0..40).fold("'aa'".to_owned(), |inner, _| format!("{inner}.replace('a', 'aa')"));
    assert_eq!(evaluate_within(&format!("{replaced} == ''"), &object, 1_000_000), Err(EvalError::CallCostExceeded));
}

#[test]
fn regular_expressions_are_bounded() {
    let refused = compile("'a'.matches('a{1000}{1000}{1000}')").expect_err("too large");
    assert!(refused.contains("error parsing regexp"), "{refused}");
    let object = json!({"list": (0..1000).map(|i| format!("a{{{i}}}")).collect::<Vec<_>>()});
    assert_eq!(
        evaluate_within("object.list.all(x, ''.matches(x) || true)", &object, 1_000_000),
        Err(EvalError::CallCostExceeded)
    );
    // Linear in the text, where backtracking would take years.
    let object = json!({"text": "a".repeat(5_000)});
    assert_eq!(evaluate_within("!object.text.matches('^(a+)+$$b')", &object, 1_000_000), Ok(()));
}

#[test]
fn a_fatal_error_is_not_absorbed() {
    let object = json!({"list": (0..1000).collect::<Vec<i32>>()});
    for expression in [
        "object.list.all(x, object.list.all(y, object.list.all(z, true))) || true",
        "!(object.list.all(x, object.list.all(y, object.list.all(z, true))) && false)",
        "[1].exists(x, object.list.all(x, object.list.all(y, object.list.all(z, true))))",
    ] {
        assert_eq!(evaluate_within(expression, &object, 100_000), Err(EvalError::CallCostExceeded), "{expression}");
    }
}

/// Pieces of expressions, most of which do not fit together.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("object".to_owned()),
        Just("object.spec.ports".to_owned()),
        Just("object.metadata.labels".to_owned()),
        Just("'größe'".to_owned()),
        Just("b'\\xff'".to_owned()),
        Just("null".to_owned()),
        Just("[]".to_owned()),
        Just("x".to_owned()),
        Just("timestamp('2024-01-01T00:00:00Z')".to_owned()),
        Just("duration('1h')".to_owned()),
        Just("quantity('1Gi')".to_owned()),
        Just("ip('::1')".to_owned()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<u64>().prop_map(|value| format!("{value}u")),
        any::<f32>().prop_filter("a literal", |value| value.is_finite()).prop_map(|value| format!("{value:?}")),
        "[a-z%.*(+\\\\]{0,8}".prop_map(|text| format!("r'{text}'")),
    ];
    leaf.prop_recursive(5, 60, 4, |inner| {
        let names = prop::sample::select(vec![
            "size",
            "charAt",
            "indexOf",
            "lastIndexOf",
            "substring",
            "split",
            "replace",
            "join",
            "matches",
            "find",
            "findAll",
            "format",
            "sum",
            "min",
            "max",
            "isSorted",
            "getHours",
            "orValue",
            "value",
            "add",
            "sub",
            "compareTo",
            "contains",
            "containsIP",
            "trim",
            "validate",
            "getHost",
        ]);
        let globals = prop::sample::select(vec![
            "int",
            "uint",
            "double",
            "string",
            "bytes",
            "bool",
            "type",
            "dyn",
            "size",
            "timestamp",
            "duration",
            "url",
            "ip",
            "cidr",
            "quantity",
            "semver",
            "optional.of",
            "strings.quote",
            "isSemver",
        ]);
        let operators =
            prop::sample::select(vec!["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||"]);
        let macros = prop::sample::select(vec!["all", "exists", "exists_one", "map", "filter"]);
        let list = prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            (inner.clone(), operators, inner.clone()).prop_map(|(a, o, b)| format!("(dyn({a}) {o} dyn({b}))")),
            (inner.clone(), names, list.clone()).prop_map(|(a, name, args)| format!(
                "dyn({a}).{name}({})",
                args.iter().map(|a| format!("dyn({a})")).collect::<Vec<_>>().join(", ")
            )),
            (globals, inner.clone()).prop_map(|(name, a)| format!("{name}(dyn({a}))")),
            (inner.clone(), macros, inner.clone()).prop_map(|(a, name, b)| format!("dyn({a}).{name}(x, dyn({b}))")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a})[dyn({b})]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a})[?dyn({b})]")),
            inner.clone().prop_map(|a| format!("-({a})")),
            inner.clone().prop_map(|a| format!("({a}).name")),
            list.prop_map(|values| format!(
                "[{}]",
                values.iter().map(|a| format!("dyn({a})")).collect::<Vec<_>>().join(", ")
            )),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("(dyn({a}) ? dyn({b}) : dyn({c}))")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("cel.bind(x, {a}, {b})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_panics(text in "\\PC{0,60}") {
        let _ = compile(&text);
    }

    #[test]
    fn no_sequence_of_tokens_panics(tokens in prop::collection::vec(
        prop::sample::select(vec!["(", ")", "[", "]", "{", "}", ".", "?", ":", ",", "&&", "||", "!", "-", "+", "in", "==",
            "a", "object", "1", "1u", "0x", "1e9", "'", "\"", "'a'", "b'", "r\"\"\"", "`", "has", "all", "x", "null", "\n"]), 0..40)) {
        let _ = compile(&tokens.join(" "));
    }

    #[test]
    fn evaluation_never_panics_and_keeps_to_its_budget(expression in expression(), limit in 0u64..20_000) {
        let object = sample();
        if let Ok(program) = compile(&expression) {
            let mut budget = Budget::new(limit, limit);
            let result = program.evaluate(&Variables::new().json("object", &object), &mut budget);
            if matches!(result, Err(EvalError::CallCostExceeded)) {
                prop_assert_eq!(budget.remaining(), 0);
            }
        }
    }
}
