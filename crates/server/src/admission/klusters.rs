//! KlusterAdmission: what a Kluster or NodePool may not do because of others.
//!
//! * A Kluster's range of pods overlaps neither with the ranges of this cluster, on which its control plane runs, nor with that of another
//!   Kluster on the same router: 409, naming the other. Its name is the only one in its project, since its servers there bear it.
//! * A Kluster with the annotation `kubernikus.cloud.sap/termination-protection` is not deleted: 403.
//! * A pool has its name to itself in its Kluster, and is deleted at size 0 alone, unless its Kluster goes as well.
//!
//! Before its router is discovered, a Kluster counts as one on the router of every Kluster of its project; it is judged anew when the id is
//! filled in. Every such write compares and changes one key, so that of two that were judged at the same time one is judged again.

use std::sync::Arc;

use async_trait::async_trait;
use ipnet::Ipv4Net;
use mainstay_api::{
    cloud::{
        kluster::{TERMINATION_PROTECTION, parse_range, ranges_overlap},
        kubernikus,
    },
    descriptor::Descriptor,
};
use mainstay_store::{Compare, Expect, List, Op};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, keys, object},
    settings::Settings,
};

const GROUP: &str = "mainstay.dev";
/// Changes with every Kluster and NodePool that is admitted.
const TURN: &str = "/mainstay/klusters";

pub struct KlusterAdmission;

#[async_trait]
impl Plugin for KlusterAdmission {
    fn name(&self) -> &'static str {
        "KlusterAdmission"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        is_kluster(d) || is_node_pool(d)
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        review(request, object, txn).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let d = &request.target.d;
        let is_same = |pointer: &str| object.pointer(pointer) == old.pointer(pointer);
        let is_judged = is_same("/spec/openstack") && is_same("/spec/nodePools");
        if request.part != Part::Main || is_node_pool(d) || is_judged {
            return Ok(());
        }
        review(request, object, txn).await
    }

    async fn delete(&self, request: &Request<'_>, old: &Value) -> ApiResult<()> {
        let (d, name) = (&request.target.d, &*request.target.name);
        if is_kluster(d) {
            let protection = old["metadata"]["annotations"][TERMINATION_PROTECTION].as_str().unwrap_or_default();
            if !protection.is_empty() {
                let why = format!("it is protected from termination; remove its annotation {TERMINATION_PROTECTION}");
                return Err(ApiError::forbidden(d, name, &why));
            }
            return Ok(());
        }
        let size = old["spec"]["size"].as_i64().unwrap_or(0);
        if size > 0 && kluster_stays(request, old).await? {
            let why = format!("a pool can be removed once its size is 0; it is {size}");
            return Err(ApiError::forbidden(d, name, &why));
        }
        Ok(())
    }
}

fn is_kluster(d: &Descriptor) -> bool {
    d.plural == "klusters" && (d.group == GROUP || d.group == kubernikus::GROUP)
}

fn is_node_pool(d: &Descriptor) -> bool {
    d.plural == "nodepools" && d.group == GROUP
}

/// Whether the Kluster of a pool exists and is not being deleted.
async fn kluster_stays(request: &Request<'_>, pool: &Value) -> ApiResult<bool> {
    let Some(klusters) = request.api.registry.find(GROUP, "v1", "klusters") else { return Ok(false) };
    let kluster = pool["spec"]["kluster"].as_str().filter(|name| keys::is_segment(name));
    let Some(kluster) = kluster else { return Ok(false) };
    let key = keys::key(klusters, request.target.namespace.as_deref(), kluster);
    let Some(entry) = request.api.store.get(&key).await?.0 else { return Ok(false) };
    Ok(object::parse(klusters, &entry)?["metadata"]["deletionTimestamp"].is_null())
}

/// Judges a write, and has it judged again if another one is committed before.
async fn review(request: &Request<'_>, object: &Value, txn: &mut TxnAdditions) -> ApiResult<()> {
    let (api, d) = (request.api, &request.target.d);
    let key: Arc<str> = TURN.into();
    let turn = api.store.get(&key).await?.0;
    let expect = turn.map_or(Expect::Absent, |entry| Expect::ModifiedAt(entry.modified));
    txn.compares.push(Compare { key: key.clone(), expect });
    txn.ops.push(Op::Put { key, value: Default::default() });
    let klusters = list(request, "klusters").await?;
    let pools = list(request, "nodepools").await?;
    let refusal = if is_kluster(d) {
        judge_kluster(object, &klusters, &api.settings).or_else(|| judge_pools(object, &pools))
    } else {
        judge_node_pool(object, &klusters, &pools)
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    refusal.map_or(Ok(()), |why| Err(ApiError::conflict(d, name, &why)))
}

/// All objects of a kind of ours, in their stored form. One that cannot be read is a reason to refuse.
async fn list(request: &Request<'_>, plural: &str) -> ApiResult<Vec<Value>> {
    let Some(d) = request.api.registry.find(GROUP, "v1", plural) else { return Ok(Vec::new()) };
    let listing = request.api.store.list(List { prefix: &keys::prefix(d, None), ..List::default() }).await?;
    listing.entries.iter().map(|entry| object::parse(d, entry)).collect()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_object(a: &Value, b: &Value) -> bool {
    ["/metadata/namespace", "/metadata/name"].iter().all(|pointer| text(a, pointer) == text(b, pointer))
}

fn display_name(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

fn judge_kluster(own: &Value, all: &[Value], settings: &Settings) -> Option<String> {
    let pods = parse_range(text(own, "/spec/clusterCIDR"));
    if let Some(pods) = pods {
        let ours = [("Services", settings.service_range), ("pods", settings.pod_range)];
        for (what, (base, bits)) in ours {
            let Ok(range) = Ipv4Net::new(base, bits) else { continue };
            if ranges_overlap(pods, range) {
                let what = format!("the range {range} of {what} of the control plane");
                return Some(format!("spec.clusterCIDR: {pods} overlaps with {what}"));
            }
        }
    }
    let field = |object: &Value, name: &str| text(object, &format!("/spec/openstack/{name}")).to_owned();
    let same = |other: &Value, name: &str| field(own, name) == field(other, name);
    let others = all.iter().filter(|other| !is_object(own, other) && same(other, "cloud"));
    for other in others {
        if same(other, "projectID") && text(own, "/spec/name") == text(other, "/spec/name") {
            let (name, other) = (text(own, "/spec/name"), display_name(other));
            return Some(format!("spec.name: {name} is the name of Kluster {other} in the same project"));
        }
        let is_unknown = field(own, "routerID").is_empty() || field(other, "routerID").is_empty();
        let on_router = if is_unknown { same(other, "projectID") } else { same(other, "routerID") };
        let is_cloudless = |object: &Value| object["spec"]["noCloud"] == true;
        if !on_router || is_cloudless(own) || is_cloudless(other) {
            continue;
        }
        if let (Some(pods), Some(range)) = (pods, parse_range(text(other, "/spec/clusterCIDR")))
            && ranges_overlap(pods, range)
        {
            let other = display_name(other);
            return Some(format!(
                "spec.clusterCIDR: {pods} overlaps with the range {range} of Kluster {other} on the same router"
            ));
        }
    }
    None
}

/// A Kluster's own pools, beside those that are objects.
fn judge_pools(kluster: &Value, pools: &[Value]) -> Option<String> {
    let own = kluster.pointer("/spec/nodePools").and_then(Value::as_array)?;
    own.iter().enumerate().find_map(|(i, pool)| {
        let name = text(pool, "/name");
        let other = pools.iter().find(|other| belongs(other, kluster) && text(other, "/spec/name") == name)?;
        Some(format!("spec.nodePools[{i}].name: {name} is the name of NodePool {}", display_name(other)))
    })
}

fn judge_node_pool(own: &Value, klusters: &[Value], pools: &[Value]) -> Option<String> {
    let name = text(own, "/spec/name");
    let kluster = klusters.iter().find(|kluster| belongs(own, kluster));
    let inline = kluster.and_then(|kluster| kluster.pointer("/spec/nodePools")).and_then(Value::as_array);
    if inline.into_iter().flatten().any(|pool| text(pool, "/name") == name) {
        return Some(format!("spec.name: {name} is the name of a pool in Kluster {}", text(own, "/spec/kluster")));
    }
    let is_rival = |other: &&Value| {
        !is_object(own, other)
            && text(own, "/metadata/namespace") == text(other, "/metadata/namespace")
            && text(own, "/spec/kluster") == text(other, "/spec/kluster")
            && text(other, "/spec/name") == name
    };
    let rival = pools.iter().find(is_rival)?;
    Some(format!("spec.name: {name} is the name of NodePool {} of the same Kluster", display_name(rival)))
}

fn belongs(pool: &Value, kluster: &Value) -> bool {
    text(pool, "/metadata/namespace") == text(kluster, "/metadata/namespace")
        && text(pool, "/spec/kluster") == text(kluster, "/metadata/name")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kluster(name: &str, range: &str, openstack: Value) -> Value {
        json!({
            "metadata": {"namespace": "k", "name": name},
            "spec": {"name": name, "clusterCIDR": range, "openstack": openstack},
        })
    }

    #[test]
    fn a_range_overlaps_with_nothing_on_the_way() {
        let on = |router: &str| json!({"projectID": "p", "routerID": router});
        let other = [kluster("b", "100.64.0.0/16", on("r1"))];
        let settings = Settings::default();
        let judge = |range: &str, openstack: Value| judge_kluster(&kluster("a", range, openstack), &other, &settings);
        let cases = [
            ("100.65.0.0/16", on("r1"), None),
            ("100.64.0.0/16", on("r2"), None),
            ("100.64.0.0/16", json!({"projectID": "q"}), None),
            ("100.64.0.0/16", json!({"projectID": "p", "routerID": "r1", "cloud": "other"}), None),
            ("", on("r1"), None),
            (
                "100.64.128.0/17",
                on("r1"),
                Some(
                    "spec.clusterCIDR: 100.64.128.0/17 overlaps with the range 100.64.0.0/16 of Kluster k/b on the same router",
                ),
            ),
            (
                "100.0.0.0/8",
                on(""),
                Some(
                    "spec.clusterCIDR: 100.0.0.0/8 overlaps with the range 100.64.0.0/16 of Kluster k/b on the same router",
                ),
            ),
            (
                "10.96.128.0/17",
                on("r9"),
                Some(
                    "spec.clusterCIDR: 10.96.128.0/17 overlaps with the range 10.96.0.0/16 of Services of the control plane",
                ),
            ),
            (
                "10.244.0.0/16",
                on("r9"),
                Some(
                    "spec.clusterCIDR: 10.244.0.0/16 overlaps with the range 10.244.0.0/16 of pods of the control plane",
                ),
            ),
        ];
        for (range, openstack, expected) in cases {
            assert_eq!(judge(range, openstack.clone()).as_deref(), expected, "{range} {openstack}");
        }
    }

    #[test]
    fn an_object_is_no_rival_of_itself_and_names_are_of_a_project() {
        let settings = Settings::default();
        let own = kluster("a", "100.64.0.0/16", json!({"projectID": "p"}));
        assert_eq!(judge_kluster(&own, std::slice::from_ref(&own), &settings), None);
        let mut other = kluster("x", "100.65.0.0/16", json!({"projectID": "p"}));
        other["spec"]["name"] = "a".into();
        let expected = "spec.name: a is the name of Kluster k/x in the same project";
        assert_eq!(judge_kluster(&own, &[other], &settings).as_deref(), Some(expected));
        let mut cloudless = kluster("y", "100.64.0.0/16", json!({"projectID": "p"}));
        cloudless["spec"]["noCloud"] = true.into();
        assert_eq!(judge_kluster(&own, &[cloudless], &settings), None);
    }

    #[test]
    fn a_pool_has_its_name_to_itself() {
        let pool = |name: &str, pool: &str, kluster: &str| json!({"metadata": {"namespace": "k", "name": name}, "spec": {"kluster": kluster, "name": pool}});
        let mut own = kluster("a", "", json!({}));
        own["spec"]["nodePools"] = json!([{"name": "small"}]);
        let klusters = [own.clone()];
        let judge = |own: &Value, pools: &[Value]| judge_node_pool(own, &klusters, pools);
        let inline = "spec.name: small is the name of a pool in Kluster a";
        assert_eq!(judge(&pool("x", "small", "a"), &[]).as_deref(), Some(inline));
        assert_eq!(judge(&pool("x", "small", "b"), &[]), None);
        let rival = "spec.name: big is the name of NodePool k/y of the same Kluster";
        assert_eq!(judge(&pool("x", "big", "a"), &[pool("y", "big", "a")]).as_deref(), Some(rival));
        assert_eq!(judge(&pool("x", "big", "a"), &[pool("x", "big", "a")]), None);
        let object = "spec.nodePools[0].name: small is the name of NodePool k/z";
        assert_eq!(judge_pools(&own, &[pool("z", "small", "a")]).as_deref(), Some(object));
    }
}
