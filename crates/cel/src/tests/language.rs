use super::{assert_all_true, assert_errors};

#[test]
fn arithmetic_and_comparison() {
    assert_all_true(&[
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "7 / 2 == 3 && 7 % 2 == 1 && -7 / 2 == -3 && -7 % 2 == -1",
        "1u + 2u == 3u",
        "1.5 + 1.5 == 3.0",
        "-(-3) == 3",
        "'a' + 'b' == 'ab'",
        "b'a' + b'b' == b'ab'",
        "[1] + [2, 3] == [1, 2, 3]",
        "1 < 2 && 2u > 1u && 1.0 <= 1.0 && 'a' < 'b' && b'b' >= b'a' && true > false",
        "1 < 1.5 && 2u > 1 && 1.5 > 1u",
        "dyn(1) == dyn(1.0) && dyn(1u) == dyn(1)",
        "dyn(1) != dyn('1')",
        "dyn(9007199254740993) != dyn(9007199254740992.0)",
        "0x10 == 16",
        "1e3 == 1000.0",
        "!(double('NaN') == double('NaN')) && !(double('NaN') < 1.0)",
        "1.0 / 0.0 > 1e300",
    ]);
    assert_errors(&[
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "modulus by zero"),
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        ("-9223372036854775808 - 1 > 0", "integer overflow"),
        ("-(-9223372036854775808) > 0", "integer overflow"),
        ("-9223372036854775808 / -1 > 0", "integer overflow"),
        ("0u - 1u > 0u", "unsigned integer overflow"),
        ("9223372036854775807 * 2 > 0", "integer overflow"),
        ("dyn(1) + dyn('a') == 1", "no such overload"),
        ("dyn([1]) < dyn([2])", "no such overload"),
    ]);
}

#[test]
fn logic_absorbs_errors() {
    assert_all_true(&[
        "true || 1 / 0 == 1",
        "1 / 0 == 1 || true",
        "!(false && 1 / 0 == 1)",
        "!(1 / 0 == 1 && false)",
        "true ? true : 1 / 0 == 1",
        "[1, 0, 2].exists(x, 4 / x == 2)",
        "![0, 4].all(x, 8 / x == 1)",
    ]);
    assert_errors(&[
        ("false || 1 / 0 == 1", "division by zero"),
        ("1 / 0 == 1 && true", "division by zero"),
        ("[0, 1].all(x, 1 / x == 1)", "division by zero"),
        ("1 / 0 == 1 ? true : false", "division by zero"),
    ]);
}

#[test]
fn selection_and_presence() {
    assert_all_true(&[
        "object.metadata.name == 'web'",
        "object['metadata']['labels']['a.b/c'] == 'x'",
        "has(object.spec.replicas) && !has(object.spec.missing)",
        "has(object.metadata.labels) && has(object.metadata.labels.app)",
        "object.spec.nothing == null",
        "object.spec.ports[1].port == 443",
        "'app' in object.metadata.labels && !('b' in object.metadata.labels)",
        "{'a': 1}.a == 1 && {1: 'x'}[1] == 'x' && {1: 'x'}[1u] == 'x' && {true: 1}[true] == 1",
        "[1, 2, 3][1] == 2",
        "object.spec.replicas == 3 && object.spec.ratio == 0.5",
        "type(object.spec.replicas) == int && type(object.spec.ratio) == double && type(null) == null_type",
        "type([]) == list && type({}) == map && type(type(1)) == type && type('a') == string",
    ]);
    assert_errors(&[
        ("object.spec.missing == 1", "no such key: missing"),
        ("object.missing.deeper == 1", "no such key: missing"),
        ("object.spec.ports[2].port == 1", "index out of bounds: 2"),
        ("[1][-1] == 1", "index out of bounds: -1"),
        ("{'a': 1}['b'] == 1", "no such key: b"),
        ("object.metadata.name.first == 'w'", "no such overload"),
        ("{'a': 1, 'a': 2}.size() == 1", "Failed with repeated key: a"),
    ]);
}

#[test]
fn macros() {
    assert_all_true(&[
        "[1, 2, 3].all(x, x > 0) && ![1, 2, 3].all(x, x > 1)",
        "[1, 2, 3].exists(x, x == 2) && ![].exists(x, x == 2) && [].all(x, x == 2)",
        "[1, 2, 3].exists_one(x, x > 2) && ![1, 2, 3].exists_one(x, x > 1)",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "[1, 2, 3].filter(x, x != 2) == [1, 3]",
        "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b']",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])",
        "object.spec.ports.map(p, p.name).join(',') == 'http,https'",
        "[[1, 2], [3]].map(x, x.map(y, y + 1)) == [[2, 3], [4]]",
        "[1, 2].map(x, [3, 4].map(y, x * y)) == [[3, 4], [6, 8]]",
        "cel.bind(x, 2, x * x) == 4",
        "cel.bind(x, object.spec.replicas, cel.bind(y, x + 1, [x, y])) == [3, 4]",
        "[1].exists(x, [2].exists(x, x == 2) && x == 1)",
    ]);
}

#[test]
fn macros_with_two_variables() {
    assert_all_true(&[
        "[5, 6].all(i, v, v == i + 5)",
        "{'a': 1}.exists(k, v, k == 'a' && v == 1)",
        "{'a': 1, 'b': 2}.existsOne(k, v, v == 2)",
        "['a', 'b'].transformList(i, v, string(i) + v) == ['0a', '1b']",
        "[1, 2, 3].transformList(i, v, i > 0, v) == [2, 3]",
        "{'a': 1, 'b': 2}.transformMap(k, v, v * 2) == {'a': 2, 'b': 4}",
        "{'a': 1, 'b': 2}.transformMap(k, v, k == 'a', v) == {'a': 1}",
        "{'a': 'x', 'b': 'y'}.transformMapEntry(k, v, {v: k}) == {'x': 'a', 'y': 'b'}",
    ]);
    assert_errors(&[("{'a': 'x', 'b': 'x'}.transformMapEntry(k, v, {v: k}) == {}", "Failed with repeated key: x")]);
}

#[test]
fn optional_values() {
    assert_all_true(&[
        "object.?metadata.?name.orValue('none') == 'web'",
        "object.?spec.?missing.orValue(1) == 1",
        "!object.?nothing.?below.hasValue()",
        "object.spec[?'replicas'].value() == 3",
        "[1, 2][?5].orValue(9) == 9 && [1, 2][?1].orValue(9) == 2",
        "optional.of(1).value() == 1 && optional.none().orValue(2) == 2",
        "optional.none().or(optional.of(3)).value() == 3",
        "!optional.ofNonZeroValue('').hasValue() && optional.ofNonZeroValue('a').hasValue()",
        "optional.of(2).optMap(x, x + 1).value() == 3",
        "!optional.none().optMap(x, x + 1).hasValue()",
        "optional.of({'a': 1}).optFlatMap(m, m[?'b']).orValue(7) == 7",
        "[?optional.of(1), ?optional.none(), 2] == [1, 2]",
        "{?'a': optional.of(1), ?'b': optional.none()} == {'a': 1}",
        "optional.of(1) == optional.of(1) && optional.of(1) != optional.none()",
        "has(object.?spec.replicas)",
    ]);
    assert_errors(&[("optional.none().value() == 1", "optional.none() dereference")]);
}

#[test]
fn conversions() {
    assert_all_true(&[
        "int('42') == 42 && int(3.9) == 3 && int(7u) == 7 && int(timestamp('1970-01-01T00:01:00Z')) == 60",
        "uint('42') == 42u && uint(3) == 3u",
        "double('1.5') == 1.5 && double(2) == 2.0",
        "string(42) == '42' && string(1.5) == '1.5' && string(true) == 'true' && string(b'abc') == 'abc'",
        "string(duration('90m')) == '5400s' && string(timestamp('2024-01-02T03:04:05Z')) == '2024-01-02T03:04:05Z'",
        "bytes('abc') == b'abc' && bool('true') && !bool('f')",
        "size('größe') == 5 && 'größe'.size() == 5 && size([1, 2]) == 2 && {'a': 1}.size() == 1 && size(b'ab') == 2",
    ]);
    assert_errors(&[
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
        ("int(1e300) == 1", "integer overflow"),
        ("uint(-1) == 1u", "unsigned integer overflow"),
        ("double('x') == 1.0", "type conversion error from 'string' to 'double'"),
        ("bool('x')", "type conversion error from 'string' to 'bool'"),
        ("string(b'\\xff') == ''", "invalid UTF-8 in bytes, cannot convert to string"),
        ("timestamp(dyn('yesterday')) == timestamp(0)", "type conversion error from 'string' to 'timestamp'"),
        ("duration(dyn('1 day')) == duration('1s')", "type conversion error from 'string' to 'duration'"),
    ]);
}

#[test]
fn times() {
    assert_all_true(&[
        "timestamp('2024-02-29T12:30:45.678Z').getFullYear() == 2024",
        "timestamp('2024-02-29T12:30:45Z').getMonth() == 1 && timestamp('2024-02-29T12:30:45Z').getDate() == 29",
        "timestamp('2024-02-29T12:30:45Z').getDayOfMonth() == 28 && timestamp('2024-02-29T12:30:45Z').getDayOfYear() == 59",
        "timestamp('2024-02-29T12:30:45Z').getDayOfWeek() == 4",
        "timestamp('2024-02-29T12:30:45.678Z').getHours() == 12 && timestamp('2024-02-29T12:30:45.678Z').getMilliseconds() == 678",
        "timestamp('2024-02-29T23:30:00Z').getHours('-08:00') == 15 && timestamp('2024-02-29T23:30:00Z').getDate('+02:00') == 1",
        "timestamp('2024-07-01T12:00:00Z').getHours('America/New_York') == 8",
        "timestamp('2024-01-01T00:00:00Z') + duration('1h') == timestamp('2024-01-01T01:00:00Z')",
        "timestamp('2024-01-01T01:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('3600s')",
        "timestamp('2024-01-01T01:00:00Z') - duration('1h') < timestamp('2024-01-01T00:00:01Z')",
        "duration('1h30m').getMinutes() == 90 && duration('1.5s').getMilliseconds() == 500 && duration('90s').getSeconds() == 90",
        "duration('1h') - duration('30m') == duration('30m') && -duration('1s') < duration('0s')",
    ]);
    assert_errors(&[
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h') == timestamp(0)", "timestamp overflow"),
        ("timestamp('0001-01-01T00:00:00Z') - duration('1h') == timestamp(0)", "timestamp overflow"),
        ("timestamp('2024-01-01T00:00:00Z').getHours('Moon/Crater') == 1", "unknown time zone Moon/Crater"),
    ]);
}
