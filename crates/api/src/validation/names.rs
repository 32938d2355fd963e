//! What names, keys and other short strings may look like.
//!
//! Each check returns what is wrong with a value, in the API's own words; nothing means valid.
//! They run on every name and label of every write, so they look at bytes and allocate only to
//! complain.

use std::net::{IpAddr, Ipv6Addr};

use crate::{
    descriptor::NameRule,
    field::{Errors, FieldError, Path},
};

/// What is wrong with a value; empty if nothing is.
pub type Violations = Vec<String>;

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FMT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_WORDS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character";
const QUALIFIED_EXAMPLES: &[&str] = &["MyName", "my.name", "123-abc"];

/// Records every complaint of `check` about `value` as an invalid value at `path`.
pub fn refuse(value: &str, path: &Path, check: impl Fn(&str) -> Violations, errors: &mut Errors) {
    errors.extend(check(value).into_iter().map(|complaint| FieldError::invalid(path, value, complaint)));
}

/// Like [`refuse`], but an empty value is a missing one.
pub fn require(value: &str, path: &Path, check: impl Fn(&str) -> Violations, errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        refuse(value, path, check, errors);
    }
}

/// The name of an object. With `prefix`, the value is a `generateName`, to which something will
/// be appended: it may end in a dash.
pub fn object_name(rule: NameRule, value: &str, prefix: bool) -> Violations {
    match rule {
        NameRule::Subdomain => masked(value, prefix, dns1123_subdomain),
        NameRule::Label => masked(value, prefix, dns1123_label),
        NameRule::ServiceLabel => masked(value, prefix, dns1035_label),
        NameRule::PathSegment if prefix => path_segment_prefix(value),
        NameRule::PathSegment => path_segment_name(value),
    }
}

/// [`dns1123_subdomain`] for a `generateName`.
pub fn dns1123_subdomain_prefix(value: &str) -> Violations {
    masked(value, true, dns1123_subdomain)
}

fn masked(value: &str, prefix: bool, check: fn(&str) -> Violations) -> Violations {
    match value.strip_suffix('-') {
        Some(stem) if prefix && !stem.is_empty() && stem.is_ascii() => check(&format!("{}a", &stem[..stem.len() - 1])),
        _ => check(value),
    }
}

/// RFC 1123 label: lower case alphanumerics and dashes, up to 63.
pub fn dns1123_label(value: &str) -> Violations {
    let mut complaints = at_most(value, LABEL_MAX);
    if !is_label(value) {
        complaints.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            regex(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                 start and end with an alphanumeric character",
                LABEL_FMT,
                &["my-name", "123-abc"],
            )
        });
    }
    complaints
}

/// RFC 1123 subdomain: dot-separated labels, up to 253 in all.
pub fn dns1123_subdomain(value: &str) -> Violations {
    let mut complaints = at_most(value, SUBDOMAIN_MAX);
    if !is_subdomain(value) {
        complaints.push(regex(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            SUBDOMAIN_FMT,
            &["example.com"],
        ));
    }
    complaints
}

/// As [`dns1123_subdomain`], with underscores: what a DNS search domain may be.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Violations {
    let label = |part: &str| {
        let body = part.strip_prefix('_').unwrap_or(part);
        framed(body, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), |b| b == b'-' || b == b'_')
    };
    let mut complaints = at_most(value, SUBDOMAIN_MAX);
    if !value.split('.').all(label) {
        complaints.push(regex(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character",
            r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    complaints
}

/// A subdomain whose first label is `*`.
pub fn wildcard_dns1123_subdomain(value: &str) -> Violations {
    let mut complaints = at_most(value, SUBDOMAIN_MAX);
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        complaints.push(regex(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["*.example.com"],
        ));
    }
    complaints
}

/// RFC 1035 label: as [`dns1123_label`], but starting with a letter.
pub fn dns1035_label(value: &str) -> Violations {
    let mut complaints = at_most(value, LABEL_MAX);
    if !(is_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        complaints.push(regex(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    complaints
}

/// `name` or `example.com/name`: label and annotation keys, finalizers, condition types.
pub fn qualified_name(value: &str) -> Violations {
    let mut complaints = Violations::new();
    let mut parts = value.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(""), Some(name), None) => {
            complaints.push("prefix part must be non-empty".to_owned());
            name
        }
        (Some(prefix), Some(name), None) => {
            complaints.extend(dns1123_subdomain(prefix).into_iter().map(|text| format!("prefix part {text}")));
            name
        }
        _ => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                regex(QUALIFIED_WORDS, QUALIFIED_FMT, QUALIFIED_EXAMPLES)
            )];
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        complaints.push(format!("name part {}", max_len(LABEL_MAX)));
    }
    if !is_qualified(name) {
        complaints.push(format!("name part {}", regex(QUALIFIED_WORDS, QUALIFIED_FMT, QUALIFIED_EXAMPLES)));
    }
    complaints
}

/// The value of a label: empty, or like the name part of a qualified name.
pub fn label_value(value: &str) -> Violations {
    let mut complaints = at_most(value, LABEL_MAX);
    if !value.is_empty() && !is_qualified(value) {
        complaints.push(regex(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    complaints
}

/// The name of a port: an RFC 6335 service name in lower case.
pub fn port_name(value: &str) -> Violations {
    let mut complaints = at_most(value, 15);
    let mut unless = |ok: bool, words: &str| {
        if !ok {
            complaints.push(words.to_owned());
        }
    };
    let bytes = value.as_bytes();
    unless(
        !bytes.is_empty() && bytes.iter().all(|&b| is_label_byte(b)),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    unless(bytes.iter().any(u8::is_ascii_lowercase), "must contain at least one letter (a-z)");
    unless(!value.contains("--"), "must not contain consecutive hyphens");
    unless(!value.starts_with('-') && !value.ends_with('-'), "must not begin or end with a hyphen");
    complaints
}

/// Anything that can be one segment of a URL path.
pub fn path_segment_name(value: &str) -> Violations {
    match value {
        "." | ".." => vec![format!("may not be '{value}'")],
        _ => path_segment_prefix(value),
    }
}

fn path_segment_prefix(value: &str) -> Violations {
    ["/", "%"].iter().filter(|bad| value.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

/// The name of an environment variable: printable ASCII without `=`.
pub fn env_var_name(value: &str) -> Violations {
    let mut complaints = Violations::new();
    if value.is_empty() {
        complaints.push("environment variable name must be non-empty".to_owned());
    }
    if !value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        complaints.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    complaints
}

/// A key of a ConfigMap or a Secret: it becomes a file name.
pub fn config_map_key(value: &str) -> Violations {
    let mut complaints = at_most(value, SUBDOMAIN_MAX);
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')) {
        complaints.push(regex(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match value {
        "." | ".." => complaints.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => complaints.push("must not start with '..'".to_owned()),
        _ => {}
    }
    complaints
}

/// The name of an HTTP header.
pub fn http_header_name(value: &str) -> Violations {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Violations::new();
    }
    vec![regex(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// `10%`.
pub fn percent(value: &str) -> Violations {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Violations::new();
    }
    vec![regex("a valid percent string must be a numeric string followed by an ending '%'", "[0-9]+%", &["1%", "93%"])]
}

/// An identifier in C.
pub fn c_identifier(value: &str) -> Violations {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if !value.is_empty() && !value.starts_with(|c: char| c.is_ascii_digit()) && value.bytes().all(word) {
        return Violations::new();
    }
    vec![regex(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
         characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// An IPv4 or IPv6 address.
pub fn ip(value: &str) -> Violations {
    if parse_ip(value).is_some() {
        return Violations::new();
    }
    vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
}

/// An IPv4 address.
pub fn ipv4(value: &str) -> Violations {
    if parse_ip(value).is_some_and(|ip| ip.is_ipv4()) {
        return Violations::new();
    }
    vec!["must be a valid IPv4 address".to_owned()]
}

/// An IPv6 address.
pub fn ipv6(value: &str) -> Violations {
    if parse_ip(value).is_some_and(|ip| ip.is_ipv6()) {
        return Violations::new();
    }
    vec!["must be a valid IPv6 address".to_owned()]
}

/// An address range: `10.9.8.0/24`.
pub fn cidr(value: &str) -> Violations {
    if parse_cidr(value).is_some() {
        return Violations::new();
    }
    vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
}

/// Reads an address; an IPv4 address written as IPv6 counts as IPv4.
pub fn parse_ip(value: &str) -> Option<IpAddr> {
    value.parse().map(|ip: IpAddr| ip.to_canonical()).ok()
}

/// Reads an address range as an address and the length of its prefix.
pub fn parse_cidr(value: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = value.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

/// An address that traffic from elsewhere can be sent to: not unspecified, loopback or link-local.
pub fn non_special_ip(value: &str) -> Violations {
    let Some(ip) = parse_ip(value) else { return vec!["must be a valid IP address".to_owned()] };
    let link_local_multicast = match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    };
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => is_unicast_link_local(v6),
    };
    let mut complaints = Violations::new();
    let mut when = |bad: bool, words: &str| {
        if bad {
            complaints.push(words.to_owned());
        }
    };
    when(ip.is_unspecified(), &format!("may not be unspecified ({value})"));
    when(ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    when(link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    when(link_local_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    complaints
}

fn is_unicast_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

/// A port number, 0 excluded.
pub fn is_valid_port_num(port: i32) -> Violations {
    in_range(port.into(), 1, 65535)
}

/// A Unix user or group id.
pub fn unix_id(id: i64) -> Violations {
    in_range(id, 0, u32::MAX.into())
}

pub fn in_range(value: i64, low: i64, high: i64) -> Violations {
    if (low..=high).contains(&value) { Violations::new() } else { vec![inclusive_range(low, high)] }
}

pub fn inclusive_range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

pub fn max_len(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

/// How upstream explains a pattern: `words (e.g. 'a', or 'b', regex used for validation is '…')`.
pub fn regex(words: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{words} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<_> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{words} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

fn at_most(value: &str, length: usize) -> Violations {
    if value.len() > length { vec![max_len(length)] } else { Violations::new() }
}

fn is_label_byte(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'
}

fn is_label(value: &str) -> bool {
    framed(value, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), |b| b == b'-')
}

pub(crate) fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_qualified(value: &str) -> bool {
    framed(value, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.'))
}

/// Non-empty, `edge` bytes at both ends, `edge` or `inner` bytes between them.
fn framed(value: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match value.as_bytes() {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|&b| edge(b) || inner(b)),
    }
}

#[cfg(test)]
mod tests;
