//! Controller history: earlier templates of an owner as ControllerRevisions.
//!
//! A revision holds the template as the patch that brings it back, which is what `kubectl rollout
//! undo` sends. The highest number is what is wanted now. A template that was there before gets
//! its old revision back under a new number; names follow from the contents, so that whoever
//! writes a revision twice is refused the second time. Old ones that nobody uses are dropped.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, Time},
        runtime::RawExtension,
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use mainstay_api::selector::Labels;
use serde::Deserialize;
use serde_json::{Value, json};

use super::controller_ref::{self, ClaimedObjects, Owner};
use crate::{
    names,
    runtime::{ApiError, Cache, ObjectKey, error},
};

/// On revisions, and on pods, which say by it what they were made from.
pub const HASH: &str = "controller-revision-hash";
/// Of a label's value.
const LONGEST: usize = 63;
/// Leaves room for the hash in a name.
const LONGEST_PREFIX: usize = 223;

pub struct RevisionRequest<'a> {
    pub owner: &'a Owner,
    pub annotations: Option<&'a std::collections::BTreeMap<String, String>>,
    pub template: &'a PodTemplateSpec,
    /// How often another revision had the name that ours should have had.
    pub collisions: i32,
}

/// Where the template stands in its history.
#[derive(Clone, Debug)]
pub struct TemplateRevision {
    pub revision: Arc<ControllerRevision>,
    pub write: Option<Write>,
    pub collisions: i32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Create(Box<ControllerRevision>),
    /// It is the newest again.
    Renumber {
        name: String,
        uid: String,
        version: String,
        number: i64,
    },
    Drop {
        name: String,
        uid: String,
    },
}

/// The revisions of an owner, and where its template stands among them.
pub fn observe_revisions(
    wanted: &RevisionRequest<'_>,
    selector: &Labels,
    cache: &Cache<ControllerRevision>,
) -> (ClaimedObjects<ControllerRevision>, TemplateRevision) {
    let fits = |revision: &ControllerRevision| controller_ref::selects(selector, &revision.metadata);
    let revisions = controller_ref::claim_objects(wanted.owner, cache, fits);
    let taken = |name: &str| cache.get(&ObjectKey::new(&wanted.owner.key.namespace, name)).is_some();
    let template_revision = find_revision(wanted, &revisions.held, taken);
    (revisions, template_revision)
}

/// Finds or makes the revision of the template. `known` are the owner's revisions; `taken` says whose other
/// revisions hold a name.
pub fn find_revision(
    wanted: &RevisionRequest<'_>,
    known: &[Arc<ControllerRevision>],
    taken: impl Fn(&str) -> bool,
) -> TemplateRevision {
    let newest = known.iter().max_by_key(|revision| rank(revision));
    let next = newest.map_or(1, |newest| newest.revision.unwrap_or_default() + 1);
    let equal = known.iter().filter(|revision| holds(revision, wanted.template));
    if let Some(equal) = equal.max_by_key(|revision| rank(revision)) {
        let write = newest.is_some_and(|newest| newest.metadata.uid != equal.metadata.uid).then(|| {
            let (name, uid, version) = identity(&equal.metadata);
            Write::Renumber { name, uid, version, number: next }
        });
        return TemplateRevision { revision: equal.clone(), write, collisions: wanted.collisions };
    }
    let data = data(wanted.template);
    let others = |name: &str| taken(name) || known.iter().any(|own| own.metadata.name.as_deref() == Some(name));
    let mut collisions = wanted.collisions;
    let revision = loop {
        let revision = make(wanted, &data, collisions, next);
        if !others(name(&revision)) {
            break revision;
        }
        collisions += 1;
    };
    TemplateRevision {
        revision: Arc::new(revision.clone()),
        write: Some(Write::Create(Box::new(revision))),
        collisions,
    }
}

/// The oldest that nobody uses, beyond as many as are to be kept.
pub fn surplus(known: &[Arc<ControllerRevision>], used: &BTreeSet<String>, limit: i32) -> Vec<Write> {
    let mut idle: Vec<&Arc<ControllerRevision>> =
        known.iter().filter(|revision| !used.contains(name(revision)) && !used.contains(hash(revision))).collect();
    idle.sort_by_key(|revision| rank(revision));
    let too_many = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    let dropped = idle.into_iter().take(too_many).map(|revision| {
        let (name, uid, _) = identity(&revision.metadata);
        Write::Drop { name, uid }
    });
    dropped.collect()
}

/// What a pod is made from; in logs, its name.
#[derive(Clone, PartialEq)]
pub struct PodRevision(pub Arc<ControllerRevision>);

impl std::fmt::Debug for PodRevision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(name(&self.0))
    }
}

pub fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or_default()
}

pub fn hash(revision: &ControllerRevision) -> &str {
    revision.metadata.labels.as_ref().and_then(|labels| labels.get(HASH)).map_or("", String::as_str)
}

/// What the pods of a StatefulSet carry: the revision's name, or its hash where that is too long for a label.
pub fn mark(revision: &ControllerRevision) -> &str {
    if name(revision).len() <= LONGEST { name(revision) } else { hash(revision) }
}

/// The template that a revision keeps.
pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let retained = revision.data.0.get("spec")?.get("template")?;
    PodTemplateSpec::deserialize(retained).ok()
}

fn holds(revision: &ControllerRevision, template: &PodTemplateSpec) -> bool {
    template_of(revision).is_some_and(|retained| retained == *template)
}

fn rank(revision: &ControllerRevision) -> (i64, Option<Time>, String) {
    (revision.revision.unwrap_or_default(), revision.metadata.creation_timestamp.clone(), name(revision).to_owned())
}

/// The patch that brings the template back.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({ "spec": { "template": template } })
}

fn make(wanted: &RevisionRequest<'_>, data: &Value, collisions: i32, number: i64) -> ControllerRevision {
    let mut text = data.to_string();
    if collisions > 0 {
        text.push_str(&collisions.to_string());
    }
    let number_of = names::hash(text.as_bytes());
    let hash = names::letters(number_of) + &names::letters(number_of >> 32);
    let mut labels = wanted.template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let prefix = &wanted.owner.key.name;
    let prefix = prefix.get(..LONGEST_PREFIX).unwrap_or(prefix);
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: Some(wanted.owner.key.namespace.clone()),
            labels: Some(labels),
            annotations: wanted.annotations.cloned(),
            owner_references: Some(vec![wanted.owner.reference()]),
            ..ObjectMeta::default()
        },
        data: RawExtension(data.clone()),
        revision: Some(number),
    }
}

fn identity(meta: &ObjectMeta) -> (String, String, String) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (text(&meta.name), text(&meta.uid), text(&meta.resource_version))
}

/// Makes one of these writes, and lets the cache know.
pub async fn write(
    client: &Client,
    cache: &Cache<ControllerRevision>,
    owner: &Owner,
    write: Write,
) -> Result<(), ApiError> {
    let namespace = &owner.key.namespace;
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    match write {
        Write::Create(revision) => {
            let doing = format!("create controllerrevision {namespace}/{}", name(&revision));
            let made = revisions.create(&PostParams::default(), &revision).await;
            cache.wrote(made.map_err(ApiError::when(doing))?);
        }
        Write::Renumber { name, uid, version, number } => {
            let change = json!({ "metadata": { "uid": uid, "resourceVersion": version }, "revision": number });
            let written = revisions.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await;
            cache.wrote(written.map_err(ApiError::when(format!("renumber controllerrevision {namespace}/{name}")))?);
        }
        Write::Drop { name, uid } => {
            let fence = Preconditions { uid: Some(uid.clone()), resource_version: None };
            let params = DeleteParams { preconditions: Some(fence), ..DeleteParams::default() };
            match revisions.delete(&name, &params).await {
                Ok(answer) if answer.is_right() => cache.removed(&ObjectKey::new(namespace, &name), &uid),
                Ok(_) => {} // someone holds on to it
                Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => {}
                Err(error) => {
                    return Err(ApiError::new(format!("delete controllerrevision {namespace}/{name}"), error));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
