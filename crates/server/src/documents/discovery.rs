//! API discovery: groups, versions and resources, as lists and in the aggregated form.

use std::cmp::Reverse;

use http::{HeaderMap, StatusCode, header};
use mainstay_api::{descriptor::Descriptor, registry::Registry};
use serde_json::{Value, json};

use crate::{
    documents::component_status as components,
    http::{
        reply,
        response_body::Response,
        route::Route,
        status::{ApiError, ApiResult},
    },
    relay::metrics,
};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

pub fn respond(registry: &Registry, headers: &HeaderMap, route: &Route<'_>) -> ApiResult<Response> {
    let document = match route {
        Route::Groups { legacy } => {
            if let Some(version) = aggregated_version(headers) {
                return Ok(aggregated_answer(registry, *legacy, version));
            }
            if *legacy { legacy_versions(registry) } else { group_list(registry) }
        }
        Route::Group(name) => {
            let group = group(registry, name).filter(|_| !name.is_empty()).ok_or_else(ApiError::no_such_path)?;
            with_type(group, "APIGroup")
        }
        Route::GroupVersion { group, version } if group == metrics::GROUP && version == metrics::VERSION => {
            measured_list()
        }
        Route::GroupVersion { group, version } if registry.has_group_version(group, version) => {
            resource_list(registry, group, version)
        }
        Route::GroupVersion { .. } | Route::Resource(_) | Route::Other => return Err(ApiError::no_such_path()),
    };
    Ok(reply::json(StatusCode::OK, &document))
}

/// The version of `apidiscovery.k8s.io` a client asks for, if it wants everything in one answer.
fn aggregated_version(headers: &HeaderMap) -> Option<&'static str> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).find_map(|range| {
        let parameter = |name: &str| range.split(';').find_map(|p| p.trim().strip_prefix(name)?.strip_prefix('='));
        let wanted = parameter("as") == Some("APIGroupDiscoveryList") && parameter("g") == Some("apidiscovery.k8s.io");
        match parameter("v").filter(|_| wanted) {
            Some("v2") => Some("v2"),
            Some("v2beta1") => Some("v2beta1"),
            _ => None,
        }
    })
}

fn with_type(mut document: Value, kind: &str) -> Value {
    document["kind"] = json!(kind);
    document["apiVersion"] = json!("v1");
    document
}

fn legacy_versions(registry: &Registry) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": versions(registry, ""),
        "serverAddressByClientCIDRs": [],
    })
}

fn group_list(registry: &Registry) -> Value {
    let groups: Vec<_> = groups(registry).iter().filter_map(|name| group(registry, name)).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// Every group but the core one: the built-in ones first, so that a short name means theirs to clients that take the first.
fn groups(registry: &Registry) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let mut add = |is_custom: bool| {
        for d in registry.iter().filter(|d| d.custom.is_some() == is_custom && !d.group.is_empty()) {
            if !names.contains(&&*d.group) {
                names.push(&d.group);
            }
        }
        if !is_custom {
            names.push(metrics::GROUP);
        }
    };
    add(false);
    add(true);
    names
}

/// The versions of a group, the one to prefer first.
fn versions<'r>(registry: &'r Registry, group: &str) -> Vec<&'r str> {
    let mut versions: Vec<&str> = registry.iter().filter(|d| d.group == group).map(|d| &*d.version).collect();
    versions.sort_by_key(|version| Reverse(rank(version)));
    versions.dedup();
    if group == metrics::GROUP {
        versions.push(metrics::VERSION);
    }
    versions
}

/// Stable before beta before alpha, then higher numbers first: `v2`, `v1`, `v1beta2`, `v1beta1`. Names of another form come last, in the
/// order of the alphabet.
fn rank(version: &str) -> (u8, u32, u32, Reverse<&str>) {
    let (stage, major, minor) = parse_version(version).unwrap_or((0, 0, 0));
    (stage, major, minor, Reverse(version))
}

fn parse_version(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..end].parse().ok()?;
    match &rest[end..] {
        "" => Some((3, major, 0)),
        stage => match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
            (Some(minor), _) => Some((2, major, minor.parse().ok()?)),
            (None, Some(minor)) => Some((1, major, minor.parse().ok()?)),
            (None, None) => None,
        },
    }
}

fn group(registry: &Registry, name: &str) -> Option<Value> {
    let version = |version: &&str| json!({ "groupVersion": format!("{name}/{version}"), "version": version });
    let versions: Vec<_> = versions(registry, name).iter().map(version).collect();
    let preferred = versions.first()?.clone();
    Some(json!({ "name": name, "versions": versions, "preferredVersion": preferred }))
}

/// The verbs of a resource itself.
fn verbs(d: &Descriptor) -> Vec<&'static str> {
    if d.is_review {
        return vec!["create"];
    }
    let is_terminating = d.custom.as_ref().is_some_and(|custom| custom.is_terminating);
    let allowed = |verb: &&str| match *verb {
        "deletecollection" => d.delete_collection,
        "create" | "patch" | "update" => !is_terminating,
        _ => true,
    };
    VERBS.into_iter().filter(allowed).collect()
}

/// The resources that are measured and not stored.
fn measured_list() -> Value {
    let resource = |r: &metrics::MetricsResource| {
        json!({
            "name": r.plural, "singularName": "", "namespaced": r.namespaced, "kind": r.kind, "verbs": ["get", "list"],
        })
    };
    let resources: Vec<Value> = metrics::RESOURCES.iter().map(resource).collect();
    let version = format!("{}/{}", metrics::GROUP, metrics::VERSION);
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources })
}

fn measured_aggregated() -> Vec<Value> {
    let resource = |r: &metrics::MetricsResource| {
        json!({
            "resource": r.plural,
            "responseKind": { "group": metrics::GROUP, "version": metrics::VERSION, "kind": r.kind },
            "scope": if r.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": "",
            "verbs": ["get", "list"],
        })
    };
    metrics::RESOURCES.iter().map(resource).collect()
}

/// Resources of the core group that have no descriptor because none is stored: Bindings, ComponentStatuses.
fn unstored(group: &str, version: &str) -> Vec<Value> {
    if (group, version) != ("", "v1") {
        return Vec::new();
    }
    vec![
        json!({
            "name": "bindings", "singularName": "binding", "namespaced": true, "kind": "Binding", "verbs": ["create"],
        }),
        json!({
            "name": components::PLURAL, "singularName": components::SINGULAR, "namespaced": false,
            "kind": components::KIND, "verbs": components::VERBS, "shortNames": [components::SHORT_NAME],
        }),
    ]
}

/// A resource of a list as the aggregated form has it.
fn aggregated_from_list(resource: &Value) -> Value {
    let mut aggregated = json!({
        "resource": resource["name"], "singularResource": resource["singularName"],
        "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
        "responseKind": { "group": "", "version": "v1", "kind": resource["kind"] }, "verbs": resource["verbs"],
    });
    if let Some(names) = resource.get("shortNames") {
        aggregated["shortNames"] = names.clone();
    }
    aggregated
}

fn resource_list(registry: &Registry, group: &str, version: &str) -> Value {
    let mut resources = unstored(group, version);
    for d in registry.iter().filter(|d| d.group == group && d.version == version) {
        let mut resource = json!({
            "name": d.plural, "singularName": d.singular, "namespaced": d.namespaced(), "kind": d.kind,
            "verbs": verbs(d),
        });
        if !d.short_names.is_empty() {
            resource["shortNames"] = json!(d.short_names);
        }
        if !d.categories.is_empty() {
            resource["categories"] = json!(d.categories);
        }
        resources.push(resource);
        for sub in d.all_subresources() {
            let kind = sub.kind(d);
            let mut entry = json!({
                "name": format!("{}/{}", d.plural, sub.name()), "singularName": "", "namespaced": d.namespaced(),
                "kind": kind.as_ref().map_or(&d.kind, |of| &of.kind), "verbs": sub.verbs(),
            });
            if let Some(of) = kind.filter(|of| (of.group, of.version) != (&*d.group, &*d.version)) {
                entry["group"] = json!(of.group);
                entry["version"] = json!(of.version);
            }
            resources.push(entry);
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources })
}

fn aggregated_answer(registry: &Registry, legacy: bool, api_version: &'static str) -> Response {
    let names = if legacy { vec![""] } else { groups(registry) };
    let items: Vec<Value> = names
        .into_iter()
        .map(|group| {
            let version = |version: &str| {
                let resources = registry.iter().filter(|d| d.group == group && d.version == version);
                let unstored = unstored(group, version);
                let unstored = unstored.iter().map(aggregated_from_list);
                json!({
                    "version": version,
                    "freshness": "Current",
                    "resources": match group {
                        metrics::GROUP => measured_aggregated(),
                        _ => unstored.chain(resources.map(|d| aggregated_resource(d))).collect(),
                    },
                })
            };
            let versions: Vec<_> = versions(registry, group).into_iter().map(version).collect();
            let mut metadata = json!({ "creationTimestamp": null });
            if !group.is_empty() {
                metadata["name"] = json!(group);
            }
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{api_version}"),
        "metadata": {},
        "items": items,
    });
    let media_type = match api_version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    let mut response = reply::json(StatusCode::OK, &document);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    response.headers_mut().insert(header::VARY, header::HeaderValue::from_static("Accept"));
    response
}

fn aggregated_resource(d: &Descriptor) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({ "group": group, "version": version, "kind": kind });
    let own = || kind(&d.group, &d.version, &d.kind);
    let subresources: Vec<Value> = d
        .all_subresources()
        .into_iter()
        .map(|sub| {
            let response = sub.kind(d).map_or_else(own, |of| kind(of.group, of.version, &of.kind));
            json!({ "subresource": sub.name(), "responseKind": response, "verbs": sub.verbs() })
        })
        .collect();
    let mut resource = json!({
        "resource": d.plural,
        "responseKind": own(),
        "scope": if d.namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": d.singular,
        "verbs": verbs(d),
    });
    for (name, values) in [("shortNames", &d.short_names), ("categories", &d.categories)] {
        if !values.is_empty() {
            resource[name] = json!(values);
        }
    }
    if !subresources.is_empty() {
        resource["subresources"] = json!(subresources);
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ranked_as_clients_prefer_them() {
        let mut versions = vec!["v1beta1", "foo10", "v1", "v1alpha3", "v2", "foo1", "v1beta2", "v10"];
        versions.sort_by_key(|v| Reverse(rank(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha3", "foo1", "foo10"]);
    }

    #[test]
    fn resources_that_agents_answer_are_listed_with_their_kinds() {
        let registry = Registry::builtin();
        let listed = resource_list(&registry, "", "v1")["resources"].clone();
        let exec = listed.as_array().unwrap().iter().find(|r| r["name"] == "pods/exec").cloned().unwrap();
        assert_eq!((&exec["kind"], &exec["verbs"]), (&json!("PodExecOptions"), &json!(["create", "get"])));
        assert!(exec.get("group").is_none());
        assert!(groups(&registry).contains(&metrics::GROUP));
        assert_eq!(versions(&registry, metrics::GROUP), [metrics::VERSION]);
        let pods = measured_list()["resources"][1].clone();
        assert_eq!((&pods["name"], &pods["kind"]), (&json!("pods"), &json!("PodMetrics")));
    }

    #[test]
    fn both_forms_list_the_same_resources() {
        let registry = Registry::builtin();
        let listed = |group: &str, version: &str| resource_list(&registry, group, version)["resources"].clone();
        let pods = listed("", "v1").as_array().unwrap().iter().find(|r| r["name"] == "pods").cloned().unwrap();
        assert_eq!((&pods["kind"], &pods["namespaced"]), (&json!("Pod"), &json!(true)));
        assert_eq!(pods["shortNames"], json!(["po"]));
        let scale = listed("apps", "v1").as_array().unwrap().iter().any(|r| r["name"] == "deployments/scale");
        assert!(scale);
        assert_eq!(versions(&registry, "autoscaling"), ["v2", "v1"]);
    }
}
