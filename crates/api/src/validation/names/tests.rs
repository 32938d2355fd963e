use super::*;

const NONE: [&str; 0] = [];

#[test]
fn complaints_read_as_upstream_writes_them() {
    let long = "a".repeat(64);
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
         and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    let name = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    type Check = fn(&str) -> Violations;
    let cases: &[(Check, &str, &[&str])] = &[
        (dns1123_label, "a", &NONE),
        (dns1123_label, "a-1", &NONE),
        (dns1123_label, "a.b", &["must not contain dots"]),
        (dns1123_label, "A", &[label]),
        (dns1123_label, "", &[label]),
        (dns1123_label, &long, &["must be no more than 63 bytes"]),
        (dns1123_subdomain, "a.b-c.d", &NONE),
        (
            dns1123_subdomain,
            "a..b",
            &["a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
               must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"],
        ),
        (
            dns1035_label,
            "1a",
            &["a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
               character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
               validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"],
        ),
        (qualified_name, "example.com/My_Name", &NONE),
        (qualified_name, "-a", &[name]),
        (qualified_name, "/a", &["prefix part must be non-empty"]),
        (qualified_name, "a/", &["name part must be non-empty", name]),
        (label_value, "", &NONE),
        (label_value, "a_b.C", &NONE),
        (
            label_value,
            "a b",
            &[
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
               start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
               for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ],
        ),
        (port_name, "http-2", &NONE),
        (port_name, "80", &["must contain at least one letter (a-z)"]),
        (port_name, "a--b", &["must not contain consecutive hyphens"]),
        (port_name, "a-", &["must not begin or end with a hyphen"]),
        (port_name, "Http", &["must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"]),
        (path_segment_name, "system:node%", &["may not contain '%'"]),
        (path_segment_name, "..", &["may not be '..'"]),
        (env_var_name, "1 any thing!", &NONE),
        (
            env_var_name,
            "A=B",
            &["a valid environment variable name must consist only of printable ASCII characters other than '='"],
        ),
        (config_map_key, "app.conf", &NONE),
        (config_map_key, "..x", &["must not start with '..'"]),
        (config_map_key, ".", &["must not be '.'"]),
        (ip, "2001:db8::1", &NONE),
        (ip, "1.2.3", &["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]),
        (cidr, "10.0.0.0/8", &NONE),
        (cidr, "10.0.0.0/33", &["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]),
        (percent, "50%", &NONE),
    ];
    for (check, value, expected) in cases {
        assert_eq!(check(value), *expected, "{value:?}");
    }
    assert_eq!(is_valid_port_num(0), ["must be between 1 and 65535, inclusive"]);
    assert_eq!(is_valid_port_num(65535), NONE);
}

#[test]
fn a_prefix_may_end_in_a_dash() {
    assert_eq!(object_name(NameRule::Subdomain, "web-", true), NONE);
    assert_eq!(object_name(NameRule::Subdomain, "web-", false).len(), 1);
    assert_eq!(object_name(NameRule::Label, "-", true).len(), 1);
    assert_eq!(object_name(NameRule::ServiceLabel, "1-", true), NONE, "upstream masks both characters");
    assert_eq!(object_name(NameRule::PathSegment, "..", true), NONE);
    assert_eq!(object_name(NameRule::Subdomain, "é-", true).len(), 1);
}
