//! POST of an Eviction: a delete that a PodDisruptionBudget may refuse.
//!
//! The budget's allowance is counted down by compare-and-set before the pod is deleted, so evictions that race
//! cannot take more than there is.

use http::StatusCode;
use mainstay_api::selector::Labels;
use mainstay_store::List;
use serde_json::{Value, json};

use super::{
    Call,
    delete::{self, Options},
};
use crate::{
    admission::{self, Request},
    api::{self, Api, Target},
    http::{
        query, reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    objects::{
        guaranteed_update::{Ownership, Part, guaranteed_update},
        keys, metadata, object, request_object,
    },
};

const DEFINITION: &str = "io.k8s.api.policy.v1.Eviction";

/// So many evicted pods may wait to be seen gone.
const MOST_DISRUPTED: usize = 2000;

/// A pod whose eviction hurts nobody need not ask.
#[derive(Debug, PartialEq, Eq)]
enum EvictionCheck {
    Nothing,
    /// Nothing, as long as the pod stays as it was seen.
    Unchanged,
    Budget,
}

pub async fn evict(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, headers, body, .. } = call;
    let mut eviction = request_object::decode(headers, body)?.value;
    admission::create_subresource(&call.admission(), "eviction", &eviction).await?;
    let cannot = |why: String| {
        ApiError::bad_request(format!("Eviction in version \"v1\" cannot be handled as a Eviction: {why}"))
    };
    api.schema.conform(DEFINITION, &mut eviction).map_err(|error| cannot(error.to_string()))?;
    if metadata::string_field(&eviction, "name").is_some_and(|name| !name.is_empty() && name != target.name) {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = Options::from_eviction(query, &eviction["deleteOptions"])?;
    options.dry_run |= query.dry_run;

    let entry = api.existing(target).await?;
    let pod = object::parse(&target.d, &entry)?;
    let needs = needs(&pod);
    match needs {
        EvictionCheck::Nothing => {}
        EvictionCheck::Unchanged => {
            options.version.get_or_insert_with(|| entry.modified.to_string());
        }
        EvictionCheck::Budget => {
            let mut budgets = budgets(api, target, &pod).await?;
            if budgets.len() > 1 {
                return Err(ApiError::too_many_budgets());
            }
            if let Some((name, budget)) = budgets.pop() {
                if is_free(&budget, &pod) {
                    options.version.get_or_insert_with(|| entry.modified.to_string()); // as long as it stays ill
                } else {
                    charge_budget(&call.admission(), &name, options.dry_run).await?;
                }
            }
        }
    }
    if needs != EvictionCheck::Nothing && !options.dry_run {
        mark_disrupted(&call.admission(), &mut options).await?;
    }
    delete::delete_one(&call.admission(), &options).await?;
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(reply::encoded(StatusCode::CREATED, accepted.encoding, &status))
}

fn needs(pod: &Value) -> EvictionCheck {
    match pod["status"]["phase"].as_str() {
        _ if metadata::string_field(pod, "deletionTimestamp").is_some() => EvictionCheck::Nothing,
        Some("Succeeded" | "Failed") => EvictionCheck::Nothing,
        Some("Pending") => EvictionCheck::Unchanged,
        _ => EvictionCheck::Budget,
    }
}

/// The budgets that cover the pod, by name.
async fn budgets(api: &Api, target: &Target, pod: &Value) -> ApiResult<Vec<(String, Value)>> {
    let Some(d) = api.registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(Vec::new()) };
    let prefix = keys::prefix(d, target.namespace.as_deref());
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let labels = pod["metadata"].get("labels");
    let all = listing.entries.iter().map(|entry| object::parse(d, entry)).collect::<ApiResult<Vec<Value>>>()?;
    let covering = all.into_iter().filter(|budget| {
        let selector = &budget["spec"]["selector"];
        !selector.is_null() && Labels::from_selector(selector).is_ok_and(|selector| selector.matches_map(labels))
    });
    Ok(covering.filter_map(|budget| Some((metadata::string_field(&budget, "name")?.to_owned(), budget))).collect())
}

/// Says on the pod itself that it is evicted, for those who judge why it ended. Whatever the options demand of the
/// pod is demanded here already, and of the pod as it is now from here on.
async fn mark_disrupted(request: &Request<'_>, options: &mut Options) -> ApiResult<()> {
    let now = api::now().to_string();
    let marked = guaranteed_update(request, Part::Status, Ownership::Kept, false, |pod| {
        let mut pod = with_disruption_condition(pod, &now);
        for (field, demanded) in [("uid", &options.uid), ("resourceVersion", &options.version)] {
            if let Some(demanded) = demanded {
                pod["metadata"][field] = json!(demanded);
            }
        }
        Ok(pod)
    });
    let revision = marked.await?.revision;
    options.version = options.version.take().map(|_| revision.to_string());
    Ok(())
}

fn with_disruption_condition(pod: &Value, now: &str) -> Value {
    let mut pod = pod.clone();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others = conditions.into_iter().filter(|condition| condition["type"] != "DisruptionTarget");
    let target = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastTransitionTime": now,
    });
    pod["status"]["conditions"] = others.chain([target]).collect();
    pod
}

/// Takes one from the budget's allowance.
async fn charge_budget(request: &Request<'_>, name: &str, dry_run: bool) -> ApiResult<()> {
    let Request { api, target, .. } = *request;
    let Some(d) = api.registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
    let budget = Target { d: d.clone(), namespace: target.namespace.clone(), name: name.to_owned() };
    let now = api::now().to_string();
    let update = Request { target: &budget, ..*request };
    let charge = guaranteed_update(&update, Part::Status, Ownership::Kept, dry_run, |budget| {
        take_disruption(budget, &target.name, &now).map_err(|refusal| match refusal {
            Refusal::Behind => ApiError::budget_refuses(
                &format!("The disruption budget {name} is still being processed by the server."),
                Some(10),
            ),
            Refusal::Exhausted { needs, has } => ApiError::budget_refuses(
                &format!("The disruption budget {name} needs {needs} healthy pods and has {has} currently"),
                None,
            ),
            Refusal::Broken(why) => ApiError::forbidden(d, name, why),
        })
    });
    charge.await.map(drop)
}

/// An ill pod of a set that is whole without it, or one whose budget does not count ill pods.
fn is_free(budget: &Value, pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let count = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    !ready
        && match budget["spec"]["unhealthyPodEvictionPolicy"].as_str() {
            Some("AlwaysAllow") => true,
            _ => count("desiredHealthy") > 0 && count("currentHealthy") >= count("desiredHealthy"),
        }
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// Nobody has looked at the budget since it changed.
    Behind,
    Exhausted {
        needs: i64,
        has: i64,
    },
    Broken(&'static str),
}

/// The budget after one more eviction.
fn take_disruption(budget: &Value, pod: &str, now: &str) -> Result<Value, Refusal> {
    let status = &budget["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    if count("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(Refusal::Behind);
    }
    let allowed = count("disruptionsAllowed");
    if allowed < 0 {
        return Err(Refusal::Broken("pdb disruptions allowed is negative"));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MOST_DISRUPTED) {
        return Err(Refusal::Broken("DisruptedPods map too big - too many evictions not confirmed by PDB controller"));
    }
    if allowed == 0 {
        return Err(Refusal::Exhausted { needs: count("desiredHealthy"), has: count("currentHealthy") });
    }
    let mut budget = budget.clone();
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    budget["status"]["disruptedPods"][pod] = json!(now);
    if allowed == 1 {
        let conditions = budget["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let others = conditions.into_iter().filter(|condition| condition["type"] != "DisruptionAllowed");
        let none_left = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "lastTransitionTime": now, "observedGeneration": budget["status"]["observedGeneration"],
        });
        budget["status"]["conditions"] = others.chain([none_left]).collect();
    }
    Ok(budget)
}

impl Options {
    /// From the query and the options that an Eviction carries.
    fn from_eviction(query: &query::Query, options: &Value) -> ApiResult<Self> {
        let body = if options.is_null() { bytes::Bytes::new() } else { options.to_string().into() };
        Self::parse(query, &http::HeaderMap::new(), &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(allowed: i64) -> Value {
        json!({
            "metadata": {"name": "b", "generation": 2},
            "spec": {},
            "status": {
                "observedGeneration": 2, "disruptionsAllowed": allowed, "desiredHealthy": 2, "currentHealthy": 2,
            },
        })
    }

    #[test]
    fn each_eviction_takes_one_until_there_is_none() {
        let once = take_disruption(&budget(2), "p", "now").unwrap();
        assert_eq!(once["status"]["disruptionsAllowed"], 1);
        assert_eq!(once["status"]["disruptedPods"], json!({"p": "now"}));
        let twice = take_disruption(&once, "q", "now").unwrap();
        assert_eq!(twice["status"]["conditions"][0]["reason"], "InsufficientPods");
        assert_eq!(take_disruption(&twice, "r", "now"), Err(Refusal::Exhausted { needs: 2, has: 2 }));
    }

    #[test]
    fn a_budget_nobody_looked_at_allows_nothing() {
        let mut stale = budget(5);
        stale["metadata"]["generation"] = json!(3);
        assert_eq!(take_disruption(&stale, "p", "now"), Err(Refusal::Behind));
        assert!(matches!(take_disruption(&budget(-1), "p", "now"), Err(Refusal::Broken(_))));
    }

    #[test]
    fn pods_that_do_not_serve_need_no_budget() {
        let pod = |phase: &str| json!({"metadata": {}, "status": {"phase": phase}});
        assert_eq!(needs(&pod("Pending")), EvictionCheck::Unchanged);
        assert_eq!(needs(&pod("Failed")), EvictionCheck::Nothing);
        assert_eq!(needs(&pod("Running")), EvictionCheck::Budget);
        assert_eq!(
            needs(&json!({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Running"}})),
            EvictionCheck::Nothing
        );
    }

    #[test]
    fn an_evicted_pod_says_so_once() {
        let pod = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let once = with_disruption_condition(&pod, "then");
        let twice = with_disruption_condition(&once, "now");
        let conditions = twice["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 2);
        assert_eq!(conditions[0]["type"], "Ready");
        assert_eq!(conditions[1]["reason"], "EvictionByEvictionAPI");
        assert_eq!(conditions[1]["lastTransitionTime"], "now");
    }

    #[test]
    fn an_ill_pod_may_go_when_the_rest_suffices() {
        let ill = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let well = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(is_free(&budget(0), &ill));
        assert!(!is_free(&budget(0), &well));
        let mut short = budget(0);
        short["status"]["currentHealthy"] = json!(1);
        assert!(!is_free(&short, &ill));
        short["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        assert!(is_free(&short, &ill));
    }
}
