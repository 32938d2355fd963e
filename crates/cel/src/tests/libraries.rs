use super::{assert_all_true, assert_errors};

#[test]
fn strings() {
    assert_all_true(&[
        "'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')",
        "'hello'.charAt(1) == 'e' && 'hello'.charAt(5) == '' && 'größe'.charAt(2) == 'ö'",
        "'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3 && 'hello'.indexOf('z') == -1 && 'a'.indexOf('') == 0",
        "'hello'.lastIndexOf('l') == 3 && 'hello'.lastIndexOf('l', 2) == 2 && 'hello'.lastIndexOf('h', 0) == 0",
        "'größe'.indexOf('e') == 4 && 'ööö'.lastIndexOf('ö', 1) == 1",
        "['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b' && [].join(',') == ''",
        "'HeLLo'.lowerAscii() == 'hello' && 'hi'.upperAscii() == 'HI' && '  x '.trim() == 'x'",
        "'aXbX'.replace('X', '-') == 'a-b-' && 'aXbX'.replace('X', '-', 1) == 'a-bX' && 'ab'.replace('', '.') == '.a.b.'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
        "'a,b'.split(',', 0) == [] && 'a,b'.split(',', 1) == ['a,b'] && 'a,b'.split(',', -1) == ['a', 'b']",
        "'hello'.substring(2) == 'llo' && 'hello'.substring(1, 3) == 'el' && 'größe'.substring(2, 3) == 'ö'",
        "strings.quote('a\"b\\n') == '\"a\\\\\"b\\\\n\"'",
    ]);
    assert_errors(&[
        ("'abc'.charAt(4) == ''", "index out of range: 4"),
        ("'abc'.substring(-1) == ''", "index out of range: -1"),
        ("'abc'.substring(2, 1) == ''", "invalid substring range. start: 2, end: 1"),
        ("'abc'.substring(0, 9) == ''", "index out of range: 9"),
    ]);
}

#[test]
fn formatted_strings() {
    assert_all_true(&[
        "'%s has %d'.format(['web', 3]) == 'web has 3'",
        "'%.2f %f'.format([1.2345, 2.0]) == '1.23 2.000000'",
        "'%b %o %x %X'.format([5, 8, 255, 255]) == '101 10 ff FF'",
        "'%x'.format(['hi']) == '6869' && '%b'.format([true]) == '1' && '%x'.format([-255]) == '-ff'",
        "'%e'.format([1234.5]) == '1.234500e+03'",
        "'100%%'.format([]) == '100%'",
        "'%s'.format([[1, 'a', null]]) == '[1, a, null]' && '%s'.format([{'a': 1}]) == '{a: 1}'",
        "'%s'.format([duration('90s')]) == '90s' && '%s'.format([true]) == 'true'",
    ]);
    assert_errors(&[
        ("'%d'.format(['a']) == ''", "error during formatting: '%d' cannot be used with a value of type string"),
        ("'%s %s'.format(['a']) == ''", "index 1 out of range"),
        ("'%q'.format(['a']) == ''", "could not parse formatting clause: unrecognized formatting clause \"q\""),
        ("'%.999999f'.format([1.0]) == ''", "error parsing precision: not a number between 0 and 100"),
        ("'%'.format([]) == ''", "could not parse formatting clause: unexpected end of string"),
    ]);
}

#[test]
fn lists_and_sets() {
    assert_all_true(&[
        "[1, 2, 2].isSorted() && ![2, 1].isSorted() && ['a', 'b'].isSorted() && [].isSorted()",
        "[1, 2, 3].sum() == 6 && [1.5, 1.5].sum() == 3.0 && [duration('1s'), duration('1m')].sum() == duration('61s')",
        "[3, 1, 2].min() == 1 && [3, 1, 2].max() == 3 && ['b', 'a'].min() == 'a'",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
        "sets.contains([1, 2, 3], [2, 3]) && !sets.contains([1], [1, 2]) && sets.contains([], [])",
        "sets.equivalent([1, 2, 2], [2, 1]) && !sets.equivalent([1], [1, 2])",
        "sets.intersects([1, 2], [2, 3]) && !sets.intersects([1], [2]) && !sets.intersects([], [1])",
        "2 in [1, 2] && !(3 in [1, 2])",
    ]);
    assert_errors(&[
        ("dyn([]).min() == 1", "min called on empty list"),
        ("[9223372036854775807, 1].sum() == 0", "integer overflow"),
    ]);
}

#[test]
fn regular_expressions() {
    assert_all_true(&[
        "'hello'.matches('^h.*o$') && matches('abc', 'b') && !'abc'.matches('^b')",
        "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]+') == ''",
        "'1 22 333'.findAll('[0-9]+') == ['1', '22', '333'] && '1 22 333'.findAll('[0-9]+', 2) == ['1', '22']",
        "'a'.matches(dyn('[a-c]')) && 'b'.matches(dyn('[a-c]'))",
    ]);
    assert_errors(&[("'a'.matches(dyn('(')) == true", "error parsing regexp: unclosed group")]);
}

#[test]
fn urls() {
    assert_all_true(&[
        "url('https://user@example.com:80/path/x?a=1&a=2&b=%20').getHost() == 'example.com:80'",
        "url('https://example.com:80/').getHostname() == 'example.com' && url('https://example.com:80/').getPort() == '80'",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://example.com/').getPort() == ''",
        "url('https://example.com/a%20b').getEscapedPath() == '/a%20b' && url('https://example.com').getEscapedPath() == ''",
        "url('https://example.com/?a=1&a=2&b=%20').getQuery() == {'a': ['1', '2'], 'b': [' ']}",
        "url('https://example.com/').getScheme() == 'https' && url('/path').getScheme() == '' && url('/path').getHost() == ''",
        "isURL('https://example.com') && isURL('/a') && !isURL('example.com') && !isURL('') && !isURL('../a')",
        "url('https://example.com/a') == url('https://example.com/a')",
    ]);
}

#[test]
fn addresses() {
    assert_all_true(&[
        "ip('10.0.0.1').family() == 4 && ip('::1').family() == 6",
        "isIP('10.0.0.1') && !isIP('10.0.0') && !isIP('::ffff:1.2.3.4') && !isIP('010.0.0.1') && !isIP('fe80::1%eth0')",
        "ip.isCanonical('::1') && !ip.isCanonical('0:0::1')",
        "ip('127.0.0.1').isLoopback() && ip('0.0.0.0').isUnspecified() && ip('169.254.1.1').isLinkLocalUnicast()",
        "ip('224.0.0.1').isLinkLocalMulticast() && ip('ff02::1').isLinkLocalMulticast() && ip('8.8.8.8').isGlobalUnicast()",
        "ip('::1') == ip('0:0::1') && string(ip('::1')) == '::1' && type(ip('::1')) == net.IP",
        "cidr('10.0.0.0/8').containsIP('10.1.1.1') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
        "cidr('10.1.2.3/8').ip() == ip('10.1.2.3') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "cidr('10.0.0.0/8').prefixLength() == 8 && isCIDR('::/0') && !isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0')",
    ]);
    assert_errors(&[(
        "ip('x').family() == 4",
        "IP Address \"x\" parse error during conversion from string: unable to parse IP",
    )]);
}

#[test]
fn quantities_and_versions() {
    assert_all_true(&[
        "quantity('1Gi').isGreaterThan(quantity('500Mi')) && quantity('1k').isLessThan(quantity('1Ki'))",
        "quantity('1500m').compareTo(quantity('1.5')) == 0 && quantity('1') == quantity('1000m')",
        "quantity('50M').add(quantity('50M')) == quantity('100M') && quantity('50k').add(20) == quantity('50020')",
        "quantity('50k').sub(quantity('20k')).asInteger() == 30000 && quantity('-1').sign() == -1",
        "isQuantity('1Gi') && !isQuantity('1 Gi') && !isQuantity('') && quantity('1').isInteger() && !quantity('1.5').isInteger()",
        "quantity('1.5').asApproximateFloat() == 1.5",
        "semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
        "semver('1.10.0').isGreaterThan(semver('1.9.0')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
        "semver('1.0.0').compareTo(semver('2.0.0')) == -1 && semver('1.0.0+a') == semver('1.0.0+b')",
        "isSemver('1.0.0') && !isSemver('v1.0') && isSemver('v1.0', true) && semver('v01.2', true) == semver('1.2.0')",
    ]);
    assert_errors(&[
        ("quantity('1.5').asInteger() == 1", "cannot convert value to integer"),
        ("semver('1') == semver('1.0.0')", "invalid semantic version"),
    ]);
}

#[test]
fn formats() {
    assert_all_true(&[
        "!format.dns1123Label().validate('web-1').hasValue() && format.dns1123Label().validate('Web').hasValue()",
        "format.named('dns1123Subdomain').value().validate('a.b').hasValue() == false && !format.named('x').hasValue()",
        "format.dns1035Label().validate('1a').hasValue() && !format.dns1035LabelPrefix().validate('a-').hasValue()",
        "!format.qualifiedName().validate('example.com/Name').hasValue() && format.qualifiedName().validate('a/b/c').hasValue()",
        "!format.labelValue().validate('').hasValue() && format.labelValue().validate('-').hasValue()",
        "!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue() && format.uuid().validate('x').hasValue()",
        "!format.byte().validate('aGk=').hasValue() && format.byte().validate('%').hasValue()",
        "!format.date().validate('2024-02-29').hasValue() && format.date().validate('2023-02-29').hasValue()",
        "!format.datetime().validate('2024-02-29T00:00:00Z').hasValue() && !format.uri().validate('https://a/').hasValue()",
    ]);
}
