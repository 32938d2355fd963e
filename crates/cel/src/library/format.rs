//! Kubernetes' named formats: `format.dns1123Label().validate('a').hasValue()`.

use super::{Function, no_such_overload, time};
use crate::{error::EvalError, evaluate::Context, value::Value};

/// A format and the message for texts that it does not accept.
#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    check: fn(&str) -> bool,
    message: &'static str,
}

impl Format {
    pub(crate) fn accepts(&self, text: &str) -> bool {
        (self.check)(text)
    }
}

const DNS_1123_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_1123_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

static FORMATS: [Format; 13] = [
    Format { name: "dns1123Label", check: is_dns1123_label, message: DNS_1123_LABEL },
    Format { name: "dns1123Subdomain", check: is_dns1123_subdomain, message: DNS_1123_SUBDOMAIN },
    Format { name: "dns1035Label", check: is_dns1035_label, message: DNS_1035_LABEL },
    Format { name: "qualifiedName", check: is_qualified_name, message: QUALIFIED_NAME },
    Format { name: "dns1123LabelPrefix", check: |text| is_dns1123_label(without_dash(text)), message: DNS_1123_LABEL },
    Format {
        name: "dns1123SubdomainPrefix",
        check: |text| is_dns1123_subdomain(without_dash(text)),
        message: DNS_1123_SUBDOMAIN,
    },
    Format { name: "dns1035LabelPrefix", check: |text| is_dns1035_label(without_dash(text)), message: DNS_1035_LABEL },
    Format { name: "labelValue", check: |text| text.is_empty() || is_label_name(text), message: LABEL_VALUE },
    Format {
        name: "uri",
        check: |text| text.starts_with('/') || text.contains("://") && text.parse::<http::Uri>().is_ok(),
        message: "invalid URI for request",
    },
    Format { name: "uuid", check: is_uuid, message: "does not match the UUID format" },
    Format { name: "byte", check: is_base64, message: "invalid base64" },
    Format {
        name: "date",
        check: |text| text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        message: "invalid date",
    },
    Format { name: "datetime", check: |text| time::parse_timestamp(text).is_ok(), message: "invalid datetime" },
];

macro_rules! format_function {
    ($name:literal, $format:literal) => {
        Function {
            name: $name,
            signatures: &["() -> kubernetes.NamedFormat"],
            call: |_, _| find_format($format).map(Value::Format).ok_or(EvalError::NoSuchOverload),
        }
    };
}

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "format.named",
        signatures: &["(string) -> optional(kubernetes.NamedFormat)"],
        call: |_, args| match args {
            [Value::String(name)] => {
                Ok(find_format(name).map_or(Value::Optional(None), |format| Value::some(Value::Format(format))))
            }
            _ => no_such_overload(),
        },
    },
    Function {
        name: "validate",
        signatures: &["kubernetes.NamedFormat.(string) -> optional(list(string))"],
        call: validate,
    },
    format_function!("format.dns1123Label", "dns1123Label"),
    format_function!("format.dns1123Subdomain", "dns1123Subdomain"),
    format_function!("format.dns1035Label", "dns1035Label"),
    format_function!("format.qualifiedName", "qualifiedName"),
    format_function!("format.dns1123LabelPrefix", "dns1123LabelPrefix"),
    format_function!("format.dns1123SubdomainPrefix", "dns1123SubdomainPrefix"),
    format_function!("format.dns1035LabelPrefix", "dns1035LabelPrefix"),
    format_function!("format.labelValue", "labelValue"),
    format_function!("format.uri", "uri"),
    format_function!("format.uuid", "uuid"),
    format_function!("format.byte", "byte"),
    format_function!("format.date", "date"),
    format_function!("format.datetime", "datetime"),
];

pub(crate) fn find_format(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// Nothing for a valid text, otherwise what is wrong with it.
fn validate<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Format(format), Value::String(text)] = args else { return no_such_overload() };
    context.meter.charge_traversal(2 * text.len())?;
    if format.accepts(text) {
        return Ok(Value::Optional(None));
    }
    Ok(Value::some(Value::list(vec![Value::string(format.message)])))
}

fn without_dash(text: &str) -> &str {
    text.strip_suffix('-').unwrap_or(text)
}

fn is_label(text: &str, inner: fn(u8) -> bool, first: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(head), Some(tail)) => {
            first(*head) && tail.is_ascii_alphanumeric() && bytes.iter().all(|byte| inner(*byte))
        }
        _ => false,
    }
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

fn is_dns1123_label(text: &str) -> bool {
    text.len() <= 63 && is_label(text, is_lower, |byte| byte != b'-')
}

fn is_dns1035_label(text: &str) -> bool {
    text.len() <= 63 && is_label(text, is_lower, |byte| byte.is_ascii_lowercase())
}

fn is_dns1123_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_label(part, is_lower, |byte| byte != b'-'))
}

fn is_label_name(text: &str) -> bool {
    text.len() <= 63
        && is_label(
            text,
            |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'),
            |byte| byte.is_ascii_alphanumeric(),
        )
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns1123_subdomain(prefix) && is_label_name(name),
        None => is_label_name(text),
    }
}

/// Eight, four, four, four and twelve hexadecimal digits, with or without dashes.
fn is_uuid(text: &str) -> bool {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let dashed = text.len() == 36 && [8, 13, 18, 23].iter().all(|at| text.as_bytes()[*at] == b'-');
    digits.len() == 32 && (text.len() == 32 || dashed) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_base64(text: &str) -> bool {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}
