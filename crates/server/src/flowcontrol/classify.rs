//! The FlowSchema that a request matches, and its flow within it.

use std::sync::Arc;

use k8s_openapi::api::flowcontrol::v1::{PolicyRulesWithSubjects, Subject};

use super::config::{Distinguisher, FlowConfig, ParsedFlowSchema};
use crate::{
    auth::User,
    authorize::{Attributes, RequestTarget},
};

/// What classification looks at.
pub struct RequestDigest<'a> {
    pub user: &'a User,
    pub asked: &'a Attributes<'a>,
}

impl FlowConfig {
    /// The first FlowSchema that matches, by its place; `catch-all` takes what none matches.
    pub fn classify(&self, request: &RequestDigest<'_>) -> Option<(usize, &Arc<ParsedFlowSchema>)> {
        let matching =
            |(_, schema): &(usize, &Arc<ParsedFlowSchema>)| schema.rules.iter().any(|rule| rule_matches(rule, request));
        self.schemas.iter().enumerate().find(matching).or(self.schemas.iter().enumerate().next_back())
    }
}

impl ParsedFlowSchema {
    pub fn distinguish<'a>(&self, request: &'a RequestDigest<'a>) -> &'a str {
        match self.distinguisher {
            Distinguisher::Nothing => "",
            Distinguisher::User => &request.user.name,
            Distinguisher::Namespace => request.asked.namespace().unwrap_or_default(),
        }
    }
}

fn lists(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn rule_matches(rule: &PolicyRulesWithSubjects, request: &RequestDigest<'_>) -> bool {
    if !rule.subjects.iter().any(|subject| subject_matches(subject, request.user)) {
        return false;
    }
    let verb = request.asked.verb;
    match &request.asked.target {
        RequestTarget::Resource(resource) => rule.resource_rules.iter().flatten().any(|rule| {
            let is_in_scope = match resource.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
                None => rule.cluster_scope == Some(true),
                Some(namespace) => rule.namespaces.as_ref().is_some_and(|listed| lists(listed, namespace)),
            };
            is_in_scope
                && lists(&rule.verbs, verb)
                && lists(&rule.api_groups, &resource.group)
                && lists(&rule.resources, &resource.full_resource())
        }),
        RequestTarget::Path(path) => rule
            .non_resource_rules
            .iter()
            .flatten()
            .any(|rule| lists(&rule.verbs, verb) && path_matches(&rule.non_resource_urls, path)),
    }
}

fn path_matches(urls: &[String], path: &str) -> bool {
    urls.iter().any(|url| match url.strip_suffix("/*") {
        Some(prefix) => path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')),
        None => url == "*" || url == path,
    })
}

fn subject_matches(subject: &Subject, user: &User) -> bool {
    match subject.kind.as_str() {
        "User" => subject.user.as_ref().is_some_and(|listed| listed.name == "*" || listed.name == *user.name),
        "Group" => subject.group.as_ref().is_some_and(|listed| listed.name == "*" || user.is_in(&listed.name)),
        "ServiceAccount" => {
            let own = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
            subject.service_account.as_ref().zip(own).is_some_and(|(listed, (namespace, name))| {
                listed.namespace == namespace && (listed.name == "*" || listed.name == name)
            })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::http::{query::Query, route::Route};

    fn classified(user: &User, method: Method, path: &str) -> (String, String) {
        let config = FlowConfig::new(Vec::new(), Vec::new());
        let route = Route::parse(path).unwrap();
        let query = Query::default();
        let asked = Attributes::from_request(&method, path, &route, &query);
        let digest = RequestDigest { user, asked: &asked };
        let (_, schema) = config.classify(&digest).unwrap();
        (schema.name.to_string(), schema.distinguish(&digest).to_owned())
    }

    #[test]
    fn requests_match_the_suggested_flow_schemas_as_upstreams_do() {
        let pair = |schema: &str, flow: &str| (schema.to_owned(), flow.to_owned());
        let node = User::node("a");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a";
        assert_eq!(classified(&node, Method::PUT, lease), pair("system-node-high", "system:node:a"));
        let pods = "/api/v1/namespaces/shop/pods";
        assert_eq!(classified(&node, Method::GET, pods), pair("system-nodes", "system:node:a"));
        let account = User::service_account("shop", "web");
        let name = "system:serviceaccount:shop:web";
        assert_eq!(classified(&account, Method::GET, pods), pair("service-accounts", name));
        let own = User::service_account("kube-system", "dns");
        assert_eq!(classified(&own, Method::GET, pods), pair("kube-system-service-accounts", "shop"));
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x";
        let name = "system:serviceaccount:kube-system:dns";
        assert_eq!(classified(&own, Method::GET, lease), pair("system-leader-election", name));
        let ann = User::authenticated("ann".to_owned(), vec![]);
        assert_eq!(classified(&ann, Method::GET, "/version"), pair("global-default", "ann"));
        assert_eq!(classified(&User::internal("x"), Method::GET, pods), pair("exempt", ""));
        let nobody = User { name: "10.0.0.1".to_owned(), ..User::default() };
        assert_eq!(classified(&nobody, Method::GET, "/version"), pair("catch-all", "10.0.0.1"), "in no group at all");
    }
}
