//! Workloads of a Release: which it selects, how far they are, and the writes that change them.
//!
//! Every write is one patch that holds only while the workload is as it was judged. It changes the template, and with it notes what was
//! done and which template there was before ([`mainstay_machines::workloads`]). A change that the API refuses is noted as the workload's
//! failure: trying again would not help.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, StatefulSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
};
use mainstay_api::{
    release::{Release, WorkloadChange, workload_name},
    validation::labels::matches,
    wellknown::mainstay::{RELEASE_MARK, RELEASE_TEMPLATES},
};
use mainstay_machines::{
    release::{Overlap, WorkloadProblem},
    workloads::{ReleaseMark, TemplateHistory, WorkloadMove, WorkloadProgress, WorkloadView, template_patch},
};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    config_rollout::workload::{Progress, Workload, WorkloadKind},
    objects::deployment::Deployment,
    runtime::{ApiError, Cache, CachedObject, Caches, Context, error},
};

/// So much of what the API says about a change that it refuses is noted.
const LONGEST_ERROR: usize = 300;

/// A workload that a Release selects.
#[derive(Clone, Debug)]
pub struct SelectedWorkload {
    pub view: WorkloadView,
    kind: WorkloadKind,
    namespace: String,
    name: String,
    resource_version: String,
    template: Value,
    change: WorkloadChange,
}

/// A fenced write to a workload.
#[derive(Debug)]
pub struct WorkloadWrite {
    workload: SelectedWorkload,
    action: WorkloadMove,
}

fn kind_name(kind: WorkloadKind) -> &'static str {
    match kind {
        WorkloadKind::Deployment => "Deployment",
        WorkloadKind::StatefulSet => "StatefulSet",
        WorkloadKind::DaemonSet => "DaemonSet",
    }
}

/// The change of a Release that is about this workload, with its place in the list.
fn change_for<'a>(release: &'a Release, kind: WorkloadKind, meta: &ObjectMeta) -> Option<(usize, &'a WorkloadChange)> {
    let (kind, namespace) = (kind_name(kind), meta.namespace.as_deref().unwrap_or_default());
    let labels = meta.labels.clone().unwrap_or_default();
    release.spec.workloads.iter().enumerate().find(|(_, change)| {
        (change.kinds.is_empty() || change.kinds.iter().any(|own| own == kind))
            && (change.namespaces.is_empty() || change.namespaces.iter().any(|own| own == namespace))
            && matches(&change.selector, &labels)
    })
}

pub fn selects(release: &Release, kind: WorkloadKind, meta: &ObjectMeta) -> bool {
    change_for(release, kind, meta).is_some()
}

/// What selection and judgement read of a workload.
struct Candidate {
    kind: WorkloadKind,
    meta: ObjectMeta,
    template: Value,
    progress: WorkloadProgress,
}

fn candidates(caches: &Caches, is_wanted: impl Fn(WorkloadKind, &ObjectMeta) -> bool) -> Vec<Candidate> {
    fn all<K: CachedObject>(
        cache: &Cache<K>,
        kind: WorkloadKind,
        is_wanted: &impl Fn(WorkloadKind, &ObjectMeta) -> bool,
        read: impl Fn(&K) -> (Value, WorkloadProgress),
    ) -> Vec<Candidate> {
        let wanted = cache.select(|own| own.meta().deletion_timestamp.is_none() && is_wanted(kind, own.meta()));
        let candidate = |own: Arc<K>| {
            let (template, progress) = read(&own);
            Candidate { kind, meta: own.meta().clone(), template, progress }
        };
        wanted.into_iter().map(candidate).collect()
    }
    let value = |template: &PodTemplateSpec| serde_json::to_value(template).unwrap_or_default();
    let mut found = all(&caches.deployments, WorkloadKind::Deployment, &is_wanted, |own| {
        (own.spec.template.clone(), progress(Workload::from(own).progress, None))
    });
    found.extend(all(&caches.stateful_sets, WorkloadKind::StatefulSet, &is_wanted, |own| {
        let strategy = own.spec.update_strategy.as_ref().and_then(|own| own.type_.as_deref());
        (value(&own.spec.template), progress(Workload::from(own).progress, strategy))
    }));
    found.extend(all(&caches.daemon_sets, WorkloadKind::DaemonSet, &is_wanted, |own| {
        let strategy = own.spec.update_strategy.as_ref().and_then(|own| own.type_.as_deref());
        (value(&own.spec.template), progress(Workload::from(own).progress, strategy))
    }));
    found
}

fn progress(own: Progress, strategy: Option<&str>) -> WorkloadProgress {
    match own {
        Progress::Complete => WorkloadProgress::Settled,
        Progress::UnderWay if strategy == Some("OnDelete") => WorkloadProgress::Failed {
            why: "updateStrategy OnDelete: it does not replace its pods by itself".to_owned(),
        },
        Progress::UnderWay => WorkloadProgress::Rolling,
        Progress::Failed => {
            WorkloadProgress::Failed { why: "ProgressDeadlineExceeded: its pods do not become available".to_owned() }
        }
    }
}

/// The workloads that a Release selects, in the order of their names, and what is wrong with its changes.
pub fn select(caches: &Caches, release: &Release) -> (Vec<SelectedWorkload>, Option<WorkloadProblem>) {
    if release.spec.workloads.is_empty() {
        return (Vec::new(), None);
    }
    let mut counts = vec![0; release.spec.workloads.len()];
    let mut selected = Vec::new();
    for Candidate { kind, meta, template, progress } in candidates(caches, |kind, meta| selects(release, kind, meta)) {
        let Some((nth, change)) = change_for(release, kind, &meta) else { continue };
        counts[nth] += 1;
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name) = (text(&meta.namespace), text(&meta.name));
        let view = WorkloadView {
            name: workload_name(kind_name(kind), &namespace, &name),
            mark: annotation(RELEASE_MARK).and_then(|text| ReleaseMark::parse(text)),
            history: annotation(RELEASE_TEMPLATES).map(|text| TemplateHistory::parse(text)).unwrap_or_default(),
            progress,
            change: fingerprint(change),
        };
        let resource_version = text(&meta.resource_version);
        let change = change.clone();
        let own = SelectedWorkload { view, kind, namespace, name, resource_version, template, change };
        selected.push(own);
    }
    selected.sort_by(|one, other| one.view.name.cmp(&other.view.name));
    let nothing = counts.iter().position(|count| *count == 0).map(|change| WorkloadProblem::SelectsNothing { change });
    let problem = nothing.or_else(|| {
        selected.iter().find_map(|own| {
            let why = template_patch(&own.change, &own.template, &release.spec.version).err()?;
            Some(WorkloadProblem::DoesNotApply { workload: own.view.name.clone(), why })
        })
    });
    (selected, problem)
}

/// A workload that another Release selects as well.
pub fn overlap(caches: &Caches, release: &Release, other: &Release) -> Option<Overlap> {
    if release.spec.workloads.is_empty() || other.spec.workloads.is_empty() {
        return None;
    }
    let both = |kind, meta: &ObjectMeta| selects(release, kind, meta) && selects(other, kind, meta);
    let names = candidates(caches, both).into_iter().map(|own| {
        let text = |field: Option<String>| field.unwrap_or_default();
        workload_name(kind_name(own.kind), &text(own.meta.namespace), &text(own.meta.name))
    });
    Some(Overlap { release: other.name().to_owned(), member: names.min()? })
}

/// Equal changes have equal fingerprints, whatever they select.
fn fingerprint(change: &WorkloadChange) -> String {
    let text = json!([change.images, change.patch]).to_string();
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl WorkloadWrite {
    pub fn new(workloads: &[SelectedWorkload], action: WorkloadMove) -> Option<Self> {
        let (WorkloadMove::Change { workload, .. }
        | WorkloadMove::Restore { workload, .. }
        | WorkloadMove::Note { workload, .. }) = &action;
        let workload = workloads.iter().find(|own| own.view.name == *workload)?.clone();
        Some(Self { workload, action })
    }

    /// Writes it; a change that the API refuses as invalid is noted as the workload's failure.
    pub async fn apply(self, context: &Context, release: &str) -> Result<(), ApiError> {
        let Self { workload, action } = self;
        let now = Time(context.clock.now());
        let mark = |version: &str, change: &str, error: Option<String>| ReleaseMark {
            release: release.to_owned(),
            version: version.to_owned(),
            change: change.to_owned(),
            since: now.clone(),
            arrived: None,
            unready: None,
            error,
        };
        let (patch, version) = match &action {
            WorkloadMove::Note { mark, .. } => return workload.write(context, workload.annotate(mark)).await,
            WorkloadMove::Change { version, .. } => {
                let mark = mark(version, &workload.view.change, None);
                (workload.change_patch(version, &mark), version)
            }
            WorkloadMove::Restore { version, recorded, .. } => {
                let Some(found) = workload.view.history.find(recorded) else { return Ok(()) };
                let mark = mark(version, &workload.view.change, None);
                (workload.restore_patch(&found.template, &mark), version)
            }
        };
        match workload.write(context, patch).await {
            Err(error) if error.is_rejected() => {
                let why = mainstay_errors::error_chain(&error);
                let why: String = why.chars().take(LONGEST_ERROR).collect();
                let mark = mark(version, &workload.view.change, Some(why));
                workload.write(context, workload.annotate(&mark)).await
            }
            written => written,
        }
    }
}

impl SelectedWorkload {
    fn text(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap_or_default()
    }

    /// Only annotations change; pods stay as they are.
    fn annotate(&self, mark: &ReleaseMark) -> Patch<Value> {
        let annotations = json!({ RELEASE_MARK: Self::text(mark) });
        Patch::Merge(json!({"metadata": {"resourceVersion": self.resource_version, "annotations": annotations}}))
    }

    fn change_patch(&self, version: &str, mark: &ReleaseMark) -> Patch<Value> {
        let template = template_patch(&self.change, &self.template, version).unwrap_or_default();
        let before = self.view.version();
        // A corrected change of the same version: what was before it is what it goes back to.
        let history = match before == version {
            true => self.view.history.clone(),
            false => self.view.history.clone().with(before, self.template.clone()),
        };
        Patch::Strategic(json!({
            "metadata": {
                "resourceVersion": self.resource_version,
                "annotations": { RELEASE_MARK: Self::text(mark), RELEASE_TEMPLATES: Self::text(&history) },
            },
            "spec": { "template": template },
        }))
    }

    /// The template as it was, whatever was merged into it meanwhile.
    fn restore_patch(&self, template: &Value, mark: &ReleaseMark) -> Patch<Value> {
        let mut template = template.clone();
        template["$patch"] = "replace".into();
        Patch::Strategic(json!({
            "metadata": {
                "resourceVersion": self.resource_version,
                "annotations": { RELEASE_MARK: Self::text(mark) },
            },
            "spec": { "template": template },
        }))
    }

    async fn write(&self, context: &Context, patch: Patch<Value>) -> Result<(), ApiError> {
        let (client, caches) = (&context.client, &context.caches);
        let (namespace, name) = (self.namespace.as_str(), self.name.as_str());
        let written = match self.kind {
            WorkloadKind::Deployment => {
                patch_one::<Deployment>(client, &caches.deployments, namespace, name, &patch).await
            }
            WorkloadKind::StatefulSet => {
                patch_one::<StatefulSet>(client, &caches.stateful_sets, namespace, name, &patch).await
            }
            WorkloadKind::DaemonSet => {
                patch_one::<DaemonSet>(client, &caches.daemon_sets, namespace, name, &patch).await
            }
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) if error::is_not_found(&error, name) => Ok(()),
            Err(error) => Err(ApiError::new(format!("change {}", self.view.name), error)),
        }
    }
}

async fn patch_one<K>(
    client: &Client,
    cache: &Cache<K>,
    namespace: &str,
    name: &str,
    patch: &Patch<Value>,
) -> Result<(), kube::Error>
where
    K: CachedObject + kube::Resource<Scope = NamespaceResourceScope>,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let written = api.patch(name, &PatchParams::default(), patch).await?;
    cache.wrote(written);
    Ok(())
}
