//! Which rights the parts of a server use and which they lack, read from the server's log: for tests that no part has a right that it never uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use k8s_openapi::api::rbac::v1::PolicyRule;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// A verb and a resource, with its subresource: `patch`, `pods/status`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsedRight {
    pub verb: String,
    pub resource: String,
}

/// Verbs that admission asks for, which no request has.
const OF_ADMISSION: [&str; 3] = ["approve", "escalate", "sign"];

static USED: Mutex<BTreeMap<String, BTreeSet<UsedRight>>> = Mutex::new(BTreeMap::new());
static LACKING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// What each user did in this process.
pub fn used_rights() -> BTreeMap<String, BTreeSet<UsedRight>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Reads from the server's log what each user does, and what our own parts are refused.
pub struct RightsRecorder;

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber> Layer<S> for RightsRecorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != "mainstay_server::http::request_log"
            && event.metadata().target() != "mainstay_server::handler"
        {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let field = |name: &str| fields.0.get(name).cloned().unwrap_or_default();
        match field("message").as_str() {
            "request answered" => {
                let verb = match field("verb").as_str() {
                    "POST" => "create".to_owned(),
                    "PUT" => "update".to_owned(),
                    other => other.to_lowercase(),
                };
                let resource = match field("subresource").as_str() {
                    "" => field("resource"),
                    subresource => format!("{}/{subresource}", field("resource")),
                };
                let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
                used.entry(field("user")).or_default().insert(UsedRight { verb, resource });
            }
            message if message.starts_with("a part of this server lacks a right") => {
                let lacking = format!("{} {} {}", field("user"), field("verb"), field("path"));
                LACKING.lock().unwrap_or_else(PoisonError::into_inner).insert(lacking);
            }
            _ => {}
        }
    }
}

/// What our own parts were refused in this process.
pub fn lacking() -> BTreeSet<String> {
    LACKING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The rights of a rule, as `verb resource`, that are not among those that were used.
pub fn unused_of(rule: &PolicyRule, used: &BTreeSet<UsedRight>) -> Vec<String> {
    let verbs = rule.verbs.iter().filter(|verb| !OF_ADMISSION.contains(&&***verb));
    let rights = verbs.flat_map(|verb| rule.resources.iter().flatten().map(move |resource| (verb, resource)));
    let is_unused = |(verb, resource): &(&String, &String)| {
        let covers = |right: &UsedRight| {
            let same_subresource = || match (resource.strip_prefix("*/"), right.resource.split_once('/')) {
                (Some(wanted), Some((_, subresource))) => wanted == subresource,
                _ => false,
            };
            right.verb == **verb && (*resource == "*" || right.resource == **resource || same_subresource())
        };
        !used.iter().any(covers)
    };
    rights.filter(is_unused).map(|(verb, resource)| format!("{verb} {resource}")).collect()
}
