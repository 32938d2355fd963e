//! Kubernetes' URL library: `url('https://example.com:80/a?b=c').getHost()`. A URL is absolute, or an absolute path.

use std::{collections::BTreeMap, sync::Arc};

use http::Uri;

use super::{Function, no_such_overload};
use crate::{
    error::EvalError,
    evaluate::Context,
    value::{Key, Value},
};

/// A parsed URL with its text.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    pub(crate) text: Box<str>,
    uri: Uri,
}

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "url", signatures: &["(string) -> kubernetes.URL"], call: url },
    Function { name: "isURL", signatures: &["(string) -> bool"], call: is_url },
    Function {
        name: "getScheme",
        signatures: &["kubernetes.URL.() -> string"],
        call: |_, args| get(args, |url| url.uri.scheme_str().unwrap_or("").to_owned()),
    },
    Function {
        name: "getHost",
        signatures: &["kubernetes.URL.() -> string"],
        call: |_, args| get(args, |url| without_user(&url.uri).to_owned()),
    },
    Function {
        name: "getHostname",
        signatures: &["kubernetes.URL.() -> string"],
        call: |_, args| {
            get(args, |url| url.uri.host().unwrap_or("").trim_start_matches('[').trim_end_matches(']').to_owned())
        },
    },
    Function {
        name: "getPort",
        signatures: &["kubernetes.URL.() -> string"],
        call: |_, args| get(args, |url| url.uri.port().map(|port| port.as_str().to_owned()).unwrap_or_default()),
    },
    Function { name: "getEscapedPath", signatures: &["kubernetes.URL.() -> string"], call: |_, args| get(args, path) },
    Function { name: "getQuery", signatures: &["kubernetes.URL.() -> map(string, list(string))"], call: get_query },
];

fn without_user(url: &Uri) -> &str {
    url.authority().map_or("", |authority| authority.as_str().rsplit('@').next().unwrap_or(""))
}

/// A URL without a path is parsed with the path `/`.
fn path(url: &Url) -> String {
    let after_scheme = url.text.split_once("://").map_or(&*url.text, |(_, rest)| rest);
    if after_scheme.contains('/') { url.uri.path().to_owned() } else { String::new() }
}

fn parse(text: &str) -> Option<Url> {
    let absolute = text.starts_with('/') || text.contains("://");
    if !absolute || text.contains('#') {
        return None;
    }
    Some(Url { text: text.into(), uri: text.parse().ok()? })
}

fn url<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text)] = args else { return no_such_overload() };
    context.meter.charge_traversal(text.len())?;
    let refused = || {
        EvalError::message(format_args!(
            "URL parse error during conversion from string: parse \"{}\": invalid URI for request",
            &**text
        ))
    };
    parse(text).map(|url| Value::Url(Arc::new(url))).ok_or_else(refused)
}

fn is_url<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text)] = args else { return no_such_overload() };
    context.meter.charge_traversal(text.len())?;
    Ok(Value::Bool(parse(text).is_some()))
}

fn get<'a>(args: &[Value<'a>], getter: fn(&Url) -> String) -> Result<Value<'a>, EvalError> {
    let [Value::Url(url)] = args else { return no_such_overload() };
    Ok(Value::string(getter(url)))
}

fn get_query<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Url(url)] = args else { return no_such_overload() };
    let query = url.uri.query().unwrap_or("");
    context.meter.charge_traversal(query.len())?;
    let mut values: BTreeMap<Key, Vec<Value<'a>>> = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        context.meter.charge(1)?;
        values.entry(Key::String(name.into())).or_default().push(Value::string(value.into_owned()));
    }
    Ok(Value::map(values.into_iter().map(|(name, values)| (name, Value::list(values))).collect()))
}
