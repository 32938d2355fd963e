//! Reads the list of needs. Every error names the item and says what would be right.

use std::{str::FromStr, time::Duration};

use super::{
    EndpointState, LONGEST_WAIT, MOST_ENDPOINTS, MOST_NEEDS, Need, NeedTarget, Needs, ObjectKind, ServiceName,
    WorkloadKind,
};
use crate::{
    duration::parse_duration,
    validation::names::{dns1035_label, dns1123_label, dns1123_subdomain},
};

const ITEM: &str = "write NAME [>= NUMBER] [ready|addressable] [keep] for a Service, KIND/NAME [keep] for another object, \
                    or within TIME";
const KINDS: &str =
    "deployment, statefulset, daemonset, job, configmap (or config), secret, service, persistentvolumeclaim";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeedsError {
    #[error("names no need: {ITEM}")]
    Empty,
    #[error("there are {0} needs, and at most {MOST_NEEDS} are allowed")]
    TooMany(usize),
    #[error("{item:?} is not understood at {word:?}: {ITEM}")]
    Word { item: String, word: String },
    #[error("{item:?} needs a kind {kind:?}, which is none of {KINDS}")]
    Kind { item: String, kind: String },
    #[error("{item:?} has the name {name:?}, which must be {right}")]
    Name { item: String, name: String, right: &'static str },
    #[error("{item:?} counts endpoints, which only a Service has: leave out the number and the state")]
    Counted { item: String },
    #[error("{item:?}: the number must be from 1 to {MOST_ENDPOINTS}")]
    Number { item: String },
    #[error("{item:?}: the time must be a duration such as 90s or 10m, from 1s to 168h")]
    Within { item: String },
    #[error("{0} is there twice")]
    Twice(String),
}

impl FromStr for Needs {
    type Err = NeedsError;

    fn from_str(text: &str) -> Result<Self, NeedsError> {
        let mut needs = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match item.strip_prefix("within").filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
                Some(_) if needs.within.is_some() => return Err(NeedsError::Twice("within".to_owned())),
                Some(time) => needs.within = Some(parse_within(item, time.trim())?),
                None => {
                    let need = parse_need(item)?;
                    if needs.needs.iter().any(|other| same_target(&other.target, &need.target)) {
                        return Err(NeedsError::Twice(need.target.to_string()));
                    }
                    needs.needs.push(need);
                }
            }
        }
        match needs.needs.len() {
            0 => Err(NeedsError::Empty),
            count if count > MOST_NEEDS => Err(NeedsError::TooMany(count)),
            _ => Ok(needs),
        }
    }
}

/// A Service may be needed in both states; then it may become ready after others have its address.
fn same_target(one: &NeedTarget, other: &NeedTarget) -> bool {
    match (one, other) {
        (
            NeedTarget::Service { service, state, .. },
            NeedTarget::Service { service: other_service, state: other_state, .. },
        ) => service == other_service && state == other_state,
        _ => one == other,
    }
}

fn parse_within(item: &str, time: &str) -> Result<Duration, NeedsError> {
    let allowed = Duration::from_secs(1)..=LONGEST_WAIT;
    let time = parse_duration(time).filter(|time| allowed.contains(time));
    time.ok_or_else(|| NeedsError::Within { item: item.to_owned() })
}

fn parse_need(item: &str) -> Result<Need, NeedsError> {
    let item_text = || item.to_owned();
    // `mysql>=2` is as clear as `mysql >= 2`.
    let spaced = item.replacen(">=", " >= ", 1);
    let mut words = spaced.split_whitespace().peekable();
    let target = words.next().unwrap_or_default();
    let counted = words.next_if_eq(&">=").is_some();
    let at_least = match counted.then(|| words.next().unwrap_or_default()) {
        None => 1,
        Some(number) => {
            let number = number.parse().ok().filter(|number| (1..=MOST_ENDPOINTS).contains(number));
            number.ok_or_else(|| NeedsError::Number { item: item_text() })?
        }
    };
    let state = match words.next_if(|word| matches!(*word, "ready" | "addressable")) {
        Some("addressable") => Some(EndpointState::Addressable),
        Some(_) => Some(EndpointState::Ready),
        None => None,
    };
    let keep = words.next_if_eq(&"keep").is_some();
    if let Some(word) = words.next() {
        return Err(NeedsError::Word { item: item_text(), word: word.to_owned() });
    }
    let target = match target.split_once('/') {
        Some((kind, name)) if !counted && state.is_none() => parse_object(item, kind, name)?,
        Some(_) => return Err(NeedsError::Counted { item: item_text() }),
        None => {
            let state = state.unwrap_or(EndpointState::Ready);
            NeedTarget::Service { service: parse_service(item, target)?, at_least, state }
        }
    };
    Ok(Need { target, keep })
}

fn parse_object(item: &str, kind: &str, name: &str) -> Result<NeedTarget, NeedsError> {
    let kind = kind.to_lowercase();
    if !dns1123_subdomain(name).is_empty() {
        let right = "the name of an object in the namespace of the pod";
        return Err(NeedsError::Name { item: item.to_owned(), name: name.to_owned(), right });
    }
    let name = name.to_owned();
    if let Some(kind) = WorkloadKind::ALL.into_iter().find(|known| known.kind().to_lowercase() == kind) {
        return Ok(NeedTarget::Workload { kind, name });
    }
    let alias = if kind == "config" { "configmap" } else { &kind };
    match ObjectKind::ALL.into_iter().find(|known| known.kind().to_lowercase() == alias) {
        Some(kind) => Ok(NeedTarget::Object { kind, name }),
        None => Err(NeedsError::Kind { item: item.to_owned(), kind }),
    }
}

/// `name`, `name.namespace[.svc[.zone]]`, or Consul's `name.service[.namespace.ns][.datacentre][.zone]`.
fn parse_service(item: &str, text: &str) -> Result<ServiceName, NeedsError> {
    let wrong = || NeedsError::Name {
        item: item.to_owned(),
        name: text.to_owned(),
        right: "the name of a Service: NAME, NAME.NAMESPACE, NAME.NAMESPACE.svc or NAME.service.consul",
    };
    let labels: Vec<&str> = text.trim_end_matches('.').split('.').collect();
    if !dns1035_label(labels[0]).is_empty() || labels.iter().any(|label| !dns1123_label(label).is_empty()) {
        return Err(wrong());
    }
    let name = labels[0].to_owned();
    Ok(match labels[1..] {
        [] => ServiceName::InOwnNamespace(name),
        ["service", namespace, "ns", ..] => ServiceName::InNamespace { name, namespace: namespace.to_owned() },
        ["service", ..] => ServiceName::InAnyNamespace(name),
        [namespace] | [namespace, "svc", ..] => ServiceName::InNamespace { name, namespace: namespace.to_owned() },
        _ => return Err(wrong()),
    })
}
