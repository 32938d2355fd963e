//! API discovery: groups, versions and resources, as lists and in the aggregated form.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet},
};

use http::{HeaderMap, StatusCode, header};
use mainstay_api::{descriptor::Descriptor, registry::Registry};
use serde_json::{Value, json};

use crate::{
    aggregator::api_services::{RemoteVersion, VersionView, local_priorities},
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

/// What is served: by this server, and by others.
struct Served<'a> {
    registry: &'a Registry,
    versions: &'a [VersionView],
}

pub fn respond(
    registry: &Registry,
    versions: &[VersionView],
    headers: &HeaderMap,
    route: &Route<'_>,
) -> ApiResult<Response> {
    let served = Served { registry, versions };
    let document = match route {
        Route::Groups { legacy } => {
            if let Some(version) = aggregated_version(headers) {
                return Ok(aggregated_answer(&served, *legacy, version));
            }
            if *legacy { legacy_versions(&served) } else { group_list(&served) }
        }
        Route::Group(name) => {
            let group = served.group(name).filter(|_| !name.is_empty()).ok_or_else(ApiError::no_such_path)?;
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

fn legacy_versions(served: &Served<'_>) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": served.versions_of(""),
        "serverAddressByClientCIDRs": [],
    })
}

fn group_list(served: &Served<'_>) -> Value {
    let groups: Vec<_> = served.groups().iter().filter_map(|name| served.group(name)).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

impl<'a> Served<'a> {
    /// Every group and version there is.
    fn all(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let own = self.registry.iter().map(|d| (&*d.group, &*d.version));
        let remote = self.versions.iter().filter(|view| view.remote.is_some());
        own.chain([(metrics::GROUP, metrics::VERSION)]).chain(remote.map(|view| (&*view.group, &*view.version)))
    }

    fn priorities(&self, group: &str, version: &str) -> (i64, i64) {
        let view = self.versions.iter().find(|view| view.group == group && view.version == version);
        let stock = || {
            let is_custom = self.registry.iter().find(|d| d.group == group).is_some_and(|d| d.custom.is_some());
            local_priorities(group, version, is_custom)
        };
        view.map_or_else(stock, |view| (view.group_priority, view.version_priority))
    }

    /// Every group but the core one, by priority: a short name means that of the first to clients.
    fn groups(&self) -> Vec<&'a str> {
        let mut groups: BTreeMap<&str, i64> = BTreeMap::new();
        let mut seen = HashSet::new();
        for (group, version) in self.all().filter(|(group, _)| !group.is_empty()) {
            if seen.insert((group, version)) {
                let priority = self.priorities(group, version).0;
                let highest = groups.entry(group).or_insert(priority);
                *highest = priority.max(*highest);
            }
        }
        let mut names: Vec<_> = groups.into_iter().collect();
        names.sort_by_key(|(name, priority)| (Reverse(*priority), *name));
        names.into_iter().map(|(name, _)| name).collect()
    }

    /// The versions of a group, the one to prefer first.
    fn versions_of(&self, group: &str) -> Vec<&'a str> {
        let versions: BTreeSet<&str> =
            self.all().filter(|(own, _)| *own == group).map(|(_, version)| version).collect();
        let mut versions: Vec<&str> = versions.into_iter().collect();
        versions.sort_by_key(|version| Reverse((self.priorities(group, version).1, rank(version))));
        versions
    }

    fn group(&self, name: &str) -> Option<Value> {
        let version = |version: &&str| json!({ "groupVersion": format!("{name}/{version}"), "version": version });
        let versions: Vec<_> = self.versions_of(name).iter().map(version).collect();
        let preferred = versions.first()?.clone();
        Some(json!({ "name": name, "versions": versions, "preferredVersion": preferred }))
    }

    /// A version that another server serves.
    fn remote(&self, group: &str, version: &str) -> Option<&'a RemoteVersion> {
        self.versions.iter().find(|view| view.group == group && view.version == version)?.remote.as_ref()
    }
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
fn aggregated_from_list(resource: &Value, group: &str, version: &str) -> Value {
    let mut aggregated = json!({
        "resource": resource["name"], "singularResource": resource["singularName"],
        "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
        "responseKind": response_kind(resource, group, version), "verbs": resource["verbs"],
    });
    for field in ["shortNames", "categories"] {
        if let Some(names) = resource.get(field) {
            aggregated[field] = names.clone();
        }
    }
    aggregated
}

fn response_kind(resource: &Value, group: &str, version: &str) -> Value {
    let own = |field: &str, or: &str| resource[field].as_str().filter(|own| !own.is_empty()).unwrap_or(or).to_owned();
    let version = own("version", if resource["group"].is_string() { "" } else { version });
    json!({ "group": own("group", group), "version": version, "kind": resource["kind"] })
}

/// The resources that another server lists, with their subresources.
fn aggregated_from_remote(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let listed = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |resource: &Value| resource["name"].as_str().unwrap_or_default().to_owned();
    let resource = |resource: &Value| {
        let mut aggregated = aggregated_from_list(resource, group, version);
        let prefix = format!("{}/", name(resource));
        let subresource = |own: &Value| {
            let name = name(own).strip_prefix(&prefix)?.to_owned();
            let kind = response_kind(own, group, version);
            Some(json!({ "subresource": name, "responseKind": kind, "verbs": own["verbs"] }))
        };
        let subresources: Vec<Value> = listed.iter().filter_map(subresource).collect();
        if !subresources.is_empty() {
            aggregated["subresources"] = json!(subresources);
        }
        aggregated
    };
    listed.iter().filter(|own| !name(own).contains('/')).map(resource).collect()
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

fn aggregated_answer(served: &Served<'_>, legacy: bool, api_version: &'static str) -> Response {
    let registry = served.registry;
    let names = if legacy { vec![""] } else { served.groups() };
    let items: Vec<Value> = names
        .into_iter()
        .map(|group| {
            let version = |version: &str| {
                if let Some(remote) = served.remote(group, version) {
                    let resources = remote.resources.as_deref();
                    return json!({
                        "version": version,
                        "freshness": if remote.is_current { "Current" } else { "Stale" },
                        "resources": resources.map_or_else(Vec::new, |list| aggregated_from_remote(list, group, version)),
                    });
                }
                let resources = registry.iter().filter(|d| d.group == group && d.version == version);
                let unstored = unstored(group, version);
                let unstored = unstored.iter().map(|resource| aggregated_from_list(resource, group, version));
                json!({
                    "version": version,
                    "freshness": "Current",
                    "resources": match group {
                        metrics::GROUP => measured_aggregated(),
                        _ => unstored.chain(resources.map(|d| aggregated_resource(d))).collect(),
                    },
                })
            };
            let versions: Vec<_> = served.versions_of(group).into_iter().map(version).collect();
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
        let served = Served { registry: &registry, versions: &[] };
        assert!(served.groups().contains(&metrics::GROUP));
        assert_eq!(served.versions_of(metrics::GROUP), [metrics::VERSION]);
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
        let served = Served { registry: &registry, versions: &[] };
        assert_eq!(served.versions_of("autoscaling"), ["v2", "v1"]);
    }

    #[test]
    fn what_others_serve_is_listed_by_priority_and_marked_when_it_may_be_out_of_date() {
        let registry = Registry::builtin();
        let view = |version: &str, version_priority, is_current| VersionView {
            group: "example.com".to_owned(),
            version: version.to_owned(),
            group_priority: 17_790,
            version_priority,
            remote: Some(RemoteVersion {
                is_current,
                resources: Some(std::sync::Arc::new(json!({ "resources": [
                    { "name": "foos", "singularName": "foo", "namespaced": true, "kind": "Foo", "verbs": ["get"] },
                    { "name": "foos/status", "singularName": "", "namespaced": true, "kind": "Foo", "verbs": ["get"] },
                ] }))),
            }),
        };
        let versions = [view("v1", 10, true), view("v1beta1", 20, false)];
        let served = Served { registry: &registry, versions: &versions };
        let groups = served.groups();
        let at = |name: &str| groups.iter().position(|group| *group == name).unwrap();
        assert!(at("apps") < at("example.com") && at("example.com") < at("events.k8s.io"), "{groups:?}");
        assert_eq!(served.versions_of("example.com"), ["v1beta1", "v1"], "by their own priority");
        assert!(!served.remote("example.com", "v1beta1").unwrap().is_current);
        let listed = aggregated_from_remote(
            &json!({ "resources": [
            { "name": "foos", "namespaced": true, "kind": "Foo", "verbs": ["get"] },
            { "name": "foos/scale", "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"] },
        ] }),
            "example.com",
            "v1",
        );
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0]["responseKind"], json!({ "group": "example.com", "version": "v1", "kind": "Foo" }));
        let scale = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
        assert_eq!(listed[0]["subresources"][0]["responseKind"], scale);
    }
}
