//! Which versions a workload's template is to name next, and which copies are made for that and given up. Pure.
//!
//! A version is rolled out when the content of a ConfigMap or Secret differs from what was last rolled out. A template that names another version than the
//! one rolled out last was taken back by somebody, and is left alone until the content changes. A rollout that exceeds its progress deadline is taken
//! back to the versions with which the workload was last complete. Deployments have such a deadline; for StatefulSets and DaemonSets it is kept here. A
//! StatefulSet waits for a pod that is not ready before it replaces it: those of a version that was taken back are deleted for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use mainstay_api::config_versions::{ConfigKind, ConfigSource, ConfigVersions};

use super::workload::{Progress, Workload};

/// A ConfigMap or Secret that is a copy of another.
#[derive(Clone, PartialEq)]
pub enum CopyBody {
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

/// Without the content.
impl fmt::Debug for CopyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind().word(), self.name())
    }
}

impl CopyBody {
    pub fn kind(&self) -> ConfigKind {
        match self {
            Self::ConfigMap(_) => ConfigKind::ConfigMap,
            Self::Secret(_) => ConfigKind::Secret,
        }
    }

    pub fn name(&self) -> &str {
        let meta = match self {
            Self::ConfigMap(map) => &map.metadata,
            Self::Secret(secret) => &secret.metadata,
        };
        meta.name.as_deref().unwrap_or_default()
    }
}

/// A copy that the workload owns, alone or with others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedCopy {
    pub kind: ConfigKind,
    pub name: String,
}

pub struct World {
    pub workload: Workload,
    /// A copy of the present content of each source that exists.
    pub contents: BTreeMap<ConfigSource, CopyBody>,
    pub owned: BTreeSet<OwnedCopy>,
    /// Copies that pods of the namespace or retained revisions of the workload name.
    pub in_use: BTreeSet<OwnedCopy>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Makes a copy, or becomes one of the owners of the one that is there.
    EnsureCopy(CopyBody),
    Write(VersionsWrite),
    /// No longer wants to own a copy; it goes with its last owner.
    Release(OwnedCopy),
    /// A pod that is not ready with a version that was taken back; its controller makes another.
    DeletePod {
        name: String,
        uid: String,
    },
}

/// Annotations of the workload and its template, as they are to be.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionsWrite {
    /// Of the workload that was judged.
    pub version: String,
    pub template: Option<ConfigVersions>,
    pub rolled_out: Option<ConfigVersions>,
    pub last_good: Option<ConfigVersions>,
    /// When the rollout of the last change began, of workloads whose deadline is kept here.
    pub began: Option<Timestamp>,
    pub why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The content changed.
    Changed(Vec<VersionChange>),
    /// The rollout failed.
    Failed(Vec<VersionChange>),
    /// Somebody took the template back.
    TakenBack(Vec<VersionChange>),
    /// All pods are up to date and available.
    Complete,
    /// The workload no longer asks for versions.
    Unbudgeted,
    /// Nothing that users have to know.
    Recorded,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionChange {
    pub source: ConfigSource,
    pub from: Option<String>,
    pub to: String,
}

impl fmt::Display for VersionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            Some(from) => write!(f, "{} from {from} to {}", self.source, self.to),
            None => write!(f, "{} at {}", self.source, self.to),
        }
    }
}

/// When to look again although nothing changed: a rollout may have made no progress for too long.
pub fn next_look(world: &World) -> Option<Timestamp> {
    let workload = &world.workload;
    let template = workload.template.as_ref().filter(|_| workload.is_budgeted && !workload.is_being_deleted)?;
    if workload.progress != Progress::UnderWay || returns(world, template).is_empty() {
        return None;
    }
    workload.deadline.as_ref()?.expires(template)
}

pub fn plan(world: &World, now: Timestamp) -> Vec<Action> {
    let workload = &world.workload;
    if workload.is_being_deleted {
        return Vec::new();
    }
    if !workload.is_budgeted {
        return give_up_versions(world);
    }
    let next = next_versions(world, now);
    let mut actions: Vec<Action> = world
        .contents
        .iter()
        .filter(|(source, body)| next.template.copies.get(*source).is_some_and(|copy| copy == body.name()))
        .filter(|(_, body)| !world.owns(body.kind(), body.name()))
        .map(|(_, body)| Action::EnsureCopy(body.clone()))
        .collect();
    let template = Some(next.template).filter(|versions| !versions.is_empty());
    let rolled_out = Some(next.rolled_out);
    let is_recorded =
        (&template, &rolled_out, &next.last_good) == (&workload.template, &workload.rolled_out, &workload.last_good);
    if is_recorded {
        actions.extend(release(world));
        actions.extend(delete_rejected(world));
    } else {
        let (version, last_good, why) = (workload.version.clone(), next.last_good, next.why);
        let began = workload.deadline.as_ref().and_then(|deadline| match why {
            Why::Changed(_) => Some(now),
            _ => deadline.began,
        });
        actions.push(Action::Write(VersionsWrite { version, template, rolled_out, last_good, began, why }));
    }
    actions
}

impl World {
    fn owns(&self, kind: ConfigKind, name: &str) -> bool {
        self.owned.contains(&OwnedCopy { kind, name: name.to_owned() })
    }
}

struct NextVersions {
    template: ConfigVersions,
    rolled_out: ConfigVersions,
    last_good: Option<ConfigVersions>,
    why: Why,
}

fn next_versions(world: &World, now: Timestamp) -> NextVersions {
    let workload = &world.workload;
    let current = workload.template.clone().unwrap_or_default();
    let (mut template, mut rolled_out) = (ConfigVersions::default(), ConfigVersions::default());
    let (mut changed, mut taken_back) = (Vec::new(), Vec::new());
    for source in &workload.sources {
        let named = current.copies.get(source);
        let recorded = workload.rolled_out.as_ref().map(|versions| versions.copies.get(source));
        let Some(content) = world.contents.get(source).map(CopyBody::name) else {
            // Without the original, the version that there is stays.
            template.copies.extend(named.map(|named| (source.clone(), named.clone())));
            rolled_out.copies.extend(recorded.flatten().map(|copy| (source.clone(), copy.clone())));
            continue;
        };
        let elsewhere = named.filter(|named| *named != content && world.owns(source.kind, named));
        let to = match (elsewhere, recorded) {
            (Some(named), Some(recorded)) if recorded.is_some_and(|recorded| recorded == content) => named.clone(),
            // `kubectl rollout undo` of a Deployment replaces its annotations, and with them the record.
            (Some(named), None) => {
                let change =
                    VersionChange { source: source.clone(), from: Some(content.to_owned()), to: named.clone() };
                taken_back.push(change);
                named.clone()
            }
            (Some(_), Some(_)) | (None, _) => content.to_owned(),
        };
        if named != Some(&to) {
            changed.push(VersionChange { source: source.clone(), from: named.cloned(), to: to.clone() });
        }
        template.copies.insert(source.clone(), to);
        rolled_out.copies.insert(source.clone(), content.to_owned());
    }
    let mut last_good = workload.last_good.clone();
    if template == current {
        let expires = workload.deadline.as_ref().and_then(|deadline| deadline.expires(&current));
        let progress = match workload.progress {
            Progress::UnderWay if expires.is_some_and(|expires| now >= expires) => Progress::Failed,
            progress => progress,
        };
        match progress {
            Progress::Complete if last_good.as_ref() != Some(&current) => {
                last_good = Some(current);
                let why = if taken_back.is_empty() { Why::Complete } else { Why::TakenBack(taken_back) };
                return NextVersions { template, rolled_out, last_good, why };
            }
            Progress::Failed => {
                let returns = returns(world, &template);
                if !returns.is_empty() {
                    template.copies.extend(returns.iter().map(|change| (change.source.clone(), change.to.clone())));
                    return NextVersions { template, rolled_out, last_good, why: Why::Failed(returns) };
                }
            }
            Progress::Complete | Progress::UnderWay => {}
        }
    }
    let why = match (changed.is_empty(), taken_back.is_empty()) {
        (false, _) => Why::Changed(changed),
        (true, false) => Why::TakenBack(taken_back),
        (true, true) => Why::Recorded,
    };
    NextVersions { template, rolled_out, last_good, why }
}

/// What a failed rollout goes back to: versions that were good before and are still there.
fn returns(world: &World, template: &ConfigVersions) -> Vec<VersionChange> {
    let good = world.workload.last_good.iter().flat_map(|good| &good.copies);
    let differs = good.filter(|(source, copy)| {
        template.copies.get(*source).is_some_and(|current| current != *copy) && world.owns(source.kind, copy)
    });
    let change = |(source, copy): (&ConfigSource, &String)| VersionChange {
        source: source.clone(),
        from: template.copies.get(source).cloned(),
        to: copy.clone(),
    };
    differs.map(change).collect()
}

/// The pods of a workload that is no longer budgeted read the originals again.
fn give_up_versions(world: &World) -> Vec<Action> {
    let workload = &world.workload;
    if workload.rolled_out.is_none() && workload.last_good.is_none() {
        // What else is in the template was written by others.
        return release(world);
    }
    let version = workload.version.clone();
    let why = Why::Unbudgeted;
    let write = VersionsWrite { version, template: None, rolled_out: None, last_good: None, began: None, why };
    vec![Action::Write(write)]
}

/// Pods that are not ready with a version that was taken back, and that their controller would wait for.
fn delete_rejected(world: &World) -> Vec<Action> {
    let workload = &world.workload;
    let deadline = workload.deadline.as_ref().filter(|deadline| deadline.waits_for_unready);
    let (Some(deadline), Some(template), Some(rolled_out)) = (deadline, &workload.template, &workload.rolled_out)
    else {
        return Vec::new();
    };
    let is_rejected = |(source, copy): (&ConfigSource, &String)| {
        rolled_out.copies.get(source) == Some(copy) && template.copies.get(source).is_some_and(|own| own != copy)
    };
    let stuck = deadline.pods.iter().filter(|pod| pod.ready_since.is_none() && !pod.is_leaving && !pod.waits);
    let rejected = stuck.filter(|pod| pod.versions.copies.iter().any(is_rejected));
    rejected.map(|pod| Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone() }).collect()
}

/// Copies that nobody will read again.
fn release(world: &World) -> Vec<Action> {
    let workload = &world.workload;
    let named = [&workload.template, &workload.last_good];
    let named: BTreeSet<OwnedCopy> = named
        .into_iter()
        .flatten()
        .flat_map(|versions| &versions.copies)
        .map(|(source, copy)| OwnedCopy { kind: source.kind, name: copy.clone() })
        .collect();
    let unused = world.owned.iter().filter(|copy| !named.contains(copy) && !world.in_use.contains(copy));
    unused.cloned().map(Action::Release).collect()
}

#[cfg(test)]
mod tests;
