//! Needs between workloads ([`mainstay_api::needs`]) when they are written: one that names itself is refused, a cycle is warned of.
//!
//! Pods that wait for each other to be ready never start. Here the templates that exist are looked at, so that whoever applies the last of a cycle
//! is told at once; that is advice, since a Service may come to select other pods. What really waits is found by the controllers. Needs of
//! addresses make no cycle, nor do Consul's names, which are of all namespaces.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{Errors, FieldError, Path},
    needs::{
        self, AnnotationMap, EndpointState, NeedTarget, Needs,
        cycle::{CycleSearch, WorkloadId},
    },
};
use mainstay_store::List;
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::Api,
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, keys, object},
};

/// Kinds whose pods may wait for each other, with the plural.
const WORKLOADS: [(&str, &str, &str); 4] = [
    ("apps", "deployments", "Deployment"),
    ("apps", "statefulsets", "StatefulSet"),
    ("apps", "daemonsets", "DaemonSet"),
    ("batch", "jobs", "Job"),
];
/// A namespace with more objects than this is not searched: a write must not cost so much.
const MOST_OBJECTS: usize = 2000;

pub struct DependencyCycles;

#[async_trait]
impl Plugin for DependencyCycles {
    fn name(&self) -> &'static str {
        "DependencyCycles"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        WORKLOADS.iter().any(|(group, plural, _)| d.group == *group && d.plural == *plural)
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        review(request, object).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let template = |object: &Value| object["spec"]["template"]["metadata"].clone();
        if request.part != Part::Main || template(object) == template(old) {
            return Ok(());
        }
        review(request, object).await
    }
}

async fn review(request: &Request<'_>, object: &Value) -> ApiResult<()> {
    let d = &request.target.d;
    let Some(own) = Workload::from_object(&d.kind, object) else { return Ok(()) };
    let errors = own_names(&own);
    if !errors.is_empty() {
        return Err(ApiError::invalid(d, &own.id.name, &errors));
    }
    if !own.needs.needs.iter().any(|need| need.target.waits_for_readiness()) {
        return Ok(());
    }
    let mut known = KnownWorkloads::new(request.api, own);
    if let Some(cycle) = known.find_cycle().await? {
        let field = Path::new("spec").child("template").child("metadata").child("annotations").key(needs::ANNOTATION);
        request.notes.warn(format!("{field}: pods that wait for each other to be ready never start: {cycle}"));
    }
    Ok(())
}

struct Workload {
    id: WorkloadId,
    needs: Needs,
    /// Labels of its pods.
    labels: Value,
}

impl Workload {
    fn from_object(kind: &str, object: &Value) -> Option<Self> {
        let (meta, template) = (&object["metadata"], &object["spec"]["template"]["metadata"]);
        let id = WorkloadId {
            namespace: meta["namespace"].as_str()?.to_owned(),
            kind: kind.to_owned(),
            name: meta["name"].as_str()?.to_owned(),
        };
        let needs = Needs::from_annotations(&template["annotations"]);
        Some(Self { id, needs, labels: template["labels"].clone() })
    }
}

/// An error for each need that is of the workload itself.
fn own_names(own: &Workload) -> Errors {
    let path = Path::new("spec").child("template").child("metadata").child("annotations").key(needs::ANNOTATION);
    let is_own = |target: &NeedTarget| match target {
        NeedTarget::Workload { kind, name } => kind.kind() == own.id.kind && *name == own.id.name,
        NeedTarget::Service { .. } | NeedTarget::Object { .. } => false,
    };
    let wrong = own.needs.needs.iter().filter(|need| is_own(&need.target));
    let why = "names the workload itself, whose pods would wait for themselves for ever";
    wrong.map(|need| FieldError::invalid(&path, need.target.to_string(), why)).collect()
}

/// Workloads and Services, read as far as the search comes.
struct KnownWorkloads<'a> {
    api: &'a Api,
    start: WorkloadId,
    namespaces: BTreeMap<String, NamespaceObjects>,
    /// What is being written takes the place of what is stored.
    written: Option<Workload>,
}

#[derive(Default)]
struct NamespaceObjects {
    workloads: BTreeMap<WorkloadId, Workload>,
    /// The selectors of Services.
    services: BTreeMap<String, Value>,
}

impl<'a> KnownWorkloads<'a> {
    fn new(api: &'a Api, written: Workload) -> Self {
        let start = written.id.clone();
        Self { api, start, namespaces: BTreeMap::new(), written: Some(written) }
    }

    /// The shortest cycle that the workload closes: `web → api → web`.
    async fn find_cycle(&mut self) -> ApiResult<Option<String>> {
        let mut search = CycleSearch::new(self.start.clone());
        while let Some(workload) = search.next_workload() {
            if let Some(cycle) = search.expand(&workload, self.awaited(&workload).await?) {
                return Ok(Some(cycle));
            }
        }
        Ok(None)
    }

    /// Whose pods have to be ready before those of a workload start.
    async fn awaited(&mut self, workload: &WorkloadId) -> ApiResult<BTreeSet<WorkloadId>> {
        self.load(&workload.namespace).await?;
        let of_namespace = self.namespaces.get(&workload.namespace);
        let needs = of_namespace.and_then(|all| all.workloads.get(workload)).map(|own| own.needs.clone());
        let mut awaited = BTreeSet::new();
        for need in needs.unwrap_or_default().needs {
            match &need.target {
                NeedTarget::Service { service, state: EndpointState::Ready, .. } => {
                    let Some(namespace) = service.namespace(&workload.namespace) else { continue };
                    self.load(namespace).await?;
                    let Some(there) = self.namespaces.get(namespace) else { continue };
                    let Some(selector) = there.services.get(service.name()) else { continue };
                    let selected = there.workloads.values().filter(|other| selects(selector, &other.labels));
                    awaited.extend(selected.map(|other| other.id.clone()));
                }
                NeedTarget::Workload { kind, name } => {
                    let namespace = workload.namespace.clone();
                    awaited.insert(WorkloadId { namespace, kind: kind.kind().to_owned(), name: name.clone() });
                }
                NeedTarget::Service { state: EndpointState::Addressable, .. } | NeedTarget::Object { .. } => {}
            }
        }
        Ok(awaited)
    }

    async fn load(&mut self, namespace: &str) -> ApiResult<()> {
        if self.namespaces.contains_key(namespace) || !keys::is_segment(namespace) {
            return Ok(());
        }
        let mut objects = NamespaceObjects::default();
        for (group, plural, kind) in WORKLOADS {
            let found = list(self.api, group, plural, namespace).await?;
            let workloads = found.iter().filter_map(|object| Workload::from_object(kind, object));
            objects.workloads.extend(workloads.map(|workload| (workload.id.clone(), workload)));
        }
        for service in list(self.api, "", "services", namespace).await? {
            let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            objects.services.insert(name, service["spec"]["selector"].clone());
        }
        if let Some(written) = self.written.take_if(|written| written.id.namespace == namespace) {
            objects.workloads.insert(written.id.clone(), written);
        }
        self.namespaces.insert(namespace.to_owned(), objects);
        Ok(())
    }
}

/// All objects of a kind in a namespace; none if there are too many to look at. What cannot be read is left out.
async fn list(api: &Api, group: &str, plural: &str, namespace: &str) -> ApiResult<Vec<Value>> {
    let Some(d) = api.registry.find(group, "v1", plural) else { return Ok(Vec::new()) };
    let listing = api.store.list(List { prefix: &keys::prefix(d, Some(namespace)), ..List::default() }).await?;
    if listing.entries.len() > MOST_OBJECTS {
        return Ok(Vec::new());
    }
    Ok(listing.entries.iter().filter_map(|entry| object::parse(d, entry).ok()).collect())
}

fn selects(selector: &Value, labels: &Value) -> bool {
    let Some(wanted) = selector.as_object().filter(|wanted| !wanted.is_empty()) else { return false };
    wanted.iter().all(|(key, value)| labels.annotation(key) == value.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_api::registry::Registry;
    use mainstay_store::{Memory, Op, Store, Txn};
    use serde_json::json;

    use super::*;
    use crate::settings::Settings;

    fn deployment(name: &str, needs: &str) -> Value {
        let template = json!({"metadata": {"labels": {"app": name}, "annotations": {needs::ANNOTATION: needs}}});
        let meta = json!({"name": name, "namespace": "shop"});
        json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": meta, "spec": {"template": template}})
    }

    fn service(name: &str) -> Value {
        let meta = json!({"name": name, "namespace": "shop"});
        json!({"kind": "Service", "apiVersion": "v1", "metadata": meta, "spec": {"selector": {"app": name}}})
    }

    async fn cycle(stored: Vec<Value>, written: Value) -> Option<String> {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        let api = Api::new(Registry::builtin(), store, Settings::default());
        for object in stored {
            let (group, plural) = match object["kind"].as_str() {
                Some("Service") => ("", "services"),
                _ => ("apps", "deployments"),
            };
            let d = api.registry.find(group, "v1", plural).expect("a kind");
            let meta = &object["metadata"];
            let key = keys::key(d, meta["namespace"].as_str(), meta["name"].as_str().expect("a name"));
            let value = object::Wire::encode(&object).json().clone();
            api.store.commit(Txn { compares: Vec::new(), ops: vec![Op::Put { key, value }] }).await.expect("a commit");
        }
        let written = Workload::from_object("Deployment", &written).expect("a workload");
        KnownWorkloads::new(&api, written).find_cycle().await.expect("an answer")
    }

    #[tokio::test]
    async fn a_cycle_of_ready_needs_is_found_whoever_closes_it() {
        let services = || ["web", "api", "db"].map(service);
        let chain = |extra: Vec<Value>| services().into_iter().chain(extra).collect::<Vec<_>>();
        let stored = chain(vec![deployment("api", "db, web addressable"), deployment("db", "deployment/web")]);
        let found = cycle(stored.clone(), deployment("web", "api")).await;
        assert_eq!(found.as_deref(), Some("web → api → db → web"));
        assert_eq!(cycle(stored, deployment("web", "api addressable")).await, None);
        // What was stored before does not count for what is being written.
        let before = chain(vec![deployment("web", "api"), deployment("api", "web")]);
        assert_eq!(cycle(before, deployment("web", "db")).await, None);
        // A Service that selects the pods themselves.
        assert_eq!(cycle(chain(vec![]), deployment("web", "web >= 2")).await.as_deref(), Some("web → web"));
        // Unknown ones are no cycle yet.
        assert_eq!(cycle(vec![deployment("api", "web")], deployment("web", "api")).await, None);
    }

    #[test]
    fn a_need_that_names_the_workload_itself_is_refused() {
        let errors = |needs: &str| {
            let own = Workload::from_object("Deployment", &deployment("web", needs)).unwrap();
            own_names(&own).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            errors("deployment/web, deployment/api"),
            [
                "spec.template.metadata.annotations[mainstay.dev/needs]: Invalid value: \"deployment/web\": names the workload \
              itself, whose pods would wait for themselves for ever"
            ]
        );
        assert!(errors("statefulset/web, configmap/web").is_empty());
    }
}
