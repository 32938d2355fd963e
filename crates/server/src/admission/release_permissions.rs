//! ReleasePermissions: who has a Release run a command in a pod or change workloads may do so himself.
//!
//! The release controller acts for whoever wrote the Release. Without this plugin the right to write Releases would be the right to
//! run anything in any pod. Only what a write adds or changes is judged, so that others may still pause or approve it.

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, release::WORKLOAD_KINDS};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    authorize::{self, Attributes, RequestTarget, ResourceAttributes},
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, metadata},
};

pub struct ReleasePermissions;

#[async_trait]
impl Plugin for ReleasePermissions {
    fn name(&self) -> &'static str {
        "ReleasePermissions"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group == "mainstay.dev" && d.kind == "Release"
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        check(request, object, &Value::Null).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        if request.part == Part::Main { check(request, object, old).await } else { Ok(()) }
    }
}

/// One right that a Release makes use of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NeededRight {
    verb: &'static str,
    group: &'static str,
    resource: String,
    subresource: Option<&'static str>,
    /// Every namespace if it names none.
    namespace: Option<String>,
}

async fn check(request: &Request<'_>, object: &Value, old: &Value) -> ApiResult<()> {
    for NeededRight { verb, group, resource, subresource, namespace } in needed_rights(&object["spec"], &old["spec"]) {
        let target = ResourceAttributes {
            group: group.into(),
            resource: resource.as_str().into(),
            subresource: subresource.map(Into::into),
            namespace: namespace.as_deref().map(Into::into),
            ..ResourceAttributes::default()
        };
        let asked = Attributes { verb, target: RequestTarget::Resource(target) };
        if authorize::decide(request.api, request.user, &asked).await?.is_ok() {
            continue;
        }
        let name = metadata::string_field(object, "name").unwrap_or_default();
        let what = subresource.map_or(resource.clone(), |subresource| format!("{resource}/{subresource}"));
        let place = namespace.map_or("every namespace".to_owned(), |namespace| format!("namespace {namespace:?}"));
        let why = format!("it makes use of a right that the user does not have: {verb} {what} in {place}");
        return Err(ApiError::forbidden(&request.target.d, name, &why));
    }
    Ok(())
}

fn needed_rights(spec: &Value, old: &Value) -> Vec<NeededRight> {
    let mut needed = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let commands = |spec: &Value| -> Vec<Value> {
        let waves = list(&spec["waves"]);
        let gates = waves.iter().flat_map(|wave| list(&wave["gates"]));
        gates.filter(|gate| gate["exec"].is_object()).map(|gate| gate["exec"].clone()).collect()
    };
    let known = commands(old);
    for exec in commands(spec).into_iter().filter(|exec| !known.contains(exec)) {
        let namespace = exec["namespace"].as_str().map(str::to_owned);
        let (resource, subresource) = ("pods".to_owned(), Some("exec"));
        needed.push(NeededRight { verb: "create", group: "", resource, subresource, namespace });
    }
    let known = list(&old["workloads"]);
    for change in list(&spec["workloads"]).into_iter().filter(|change| !known.contains(change)) {
        let texts = |field: &str| -> Vec<String> {
            list(&change[field]).iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let kinds = match texts("kinds") {
            kinds if kinds.is_empty() => WORKLOAD_KINDS.map(str::to_owned).to_vec(),
            kinds => kinds,
        };
        let namespaces: Vec<Option<String>> = match texts("namespaces") {
            namespaces if namespaces.is_empty() => vec![None],
            namespaces => namespaces.into_iter().map(Some).collect(),
        };
        for kind in &kinds {
            let right = |namespace: &Option<String>| NeededRight {
                verb: "patch",
                group: "apps",
                resource: format!("{}s", kind.to_lowercase()),
                subresource: None,
                namespace: namespace.clone(),
            };
            needed.extend(namespaces.iter().map(right));
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_release_adds_needs_the_rights_of_its_author() {
        let exec =
            json!({"waves": [{"upTo": 1, "gates": [{"exec": {"namespace": "db", "pod": "p", "command": ["x"]}}]}]});
        let named = |spec: &Value, old: &Value| -> Vec<String> {
            let all = needed_rights(spec, old).into_iter();
            let text = |own: NeededRight| {
                let place = own.namespace.unwrap_or_else(|| "all".to_owned());
                format!("{} {}{} in {place}", own.verb, own.resource, own.subresource.unwrap_or_default())
            };
            all.map(text).collect()
        };
        assert_eq!(named(&exec, &Value::Null), ["create podsexec in db"]);
        assert!(named(&exec, &exec).is_empty(), "somebody else wrote that");
        let workloads =
            json!({"workloads": [{"kinds": ["Deployment"], "namespaces": ["a", "b"], "images": {"x": "y"}}]});
        assert_eq!(named(&workloads, &Value::Null), ["patch deployments in a", "patch deployments in b"]);
        let all = json!({"workloads": [{"images": {"x": "z"}}]});
        assert_eq!(
            named(&all, &workloads),
            ["patch daemonsets in all", "patch deployments in all", "patch statefulsets in all"]
        );
        assert!(named(&json!({"paused": true}), &all).is_empty());
    }
}
