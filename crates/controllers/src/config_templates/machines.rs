//! Machines that have a template's output as a file: consumers like pods, each by a MachineFile ([`mainstay_api::machine_file`]).
//!
//! The MachineFile says which version the machine is to have, and in its status the machine says how far it has come; so a machine is moved by one write and
//! notifies itself. MachineFiles belong to the template and go with it; the machine then removes the file.

use std::{collections::HashSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    Resource,
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use mainstay_api::{
    config_template::{ConfigTemplate, MachineConsumer, OutputKey},
    machine_file::{ContentSource, FileAttributes, MachineFile, MachineFileSpec},
    validation::labels,
};
use mainstay_templates::version;
use mainstay_waves::Health;
use serde_json::json;

use super::{
    consumers::{ConsumerState, ConsumerView, Step},
    notify::PodAction,
    plan::Outcome,
    versions::{OutputTarget, TemplateOwner},
};
use crate::runtime::{ApiError, Context, ObjectKey, error};

const LONGEST_NAME: usize = 253;

/// The machine that a consumer is, and the file it is to have.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineTarget {
    pub node: String,
    pub file: FileAttributes,
    /// Of the MachineFile, if there is one.
    pub existing: Option<String>,
}

/// A MachineFile that no entry of the template asks for any longer.
#[derive(Clone, Debug, PartialEq)]
pub struct FormerFile {
    pub name: String,
    pub uid: String,
}

/// Has a machine have a version as a file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileChange {
    pub machine: MachineTarget,
    pub owner: TemplateOwner,
    pub version: String,
    pub output: OutputTarget,
    pub copy: String,
    pub assigned: Timestamp,
}

/// How a MachineFile of a template and a node is called.
pub fn file_name(template: &str, node: &str) -> String {
    let name = format!("{template}.{node}");
    if name.len() <= LONGEST_NAME { name } else { format!("{}.{}", version(template), version(node)) }
}

/// The machines of a template, by the names of their nodes.
pub fn observe(context: &Context, template: &ConfigTemplate) -> Vec<ConsumerView> {
    if !template.spec.has_machines() {
        return Vec::new();
    }
    let mut nodes = context.caches.nodes.select(|node| find(template, node).is_some());
    nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let consumer = |node: &Arc<Node>| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(template.namespace(), file_name(template.name(), name));
        let file = context.machine_files.get(&key);
        Some(view(find(template, node)?, node, file.as_deref()))
    };
    nodes.iter().filter_map(consumer).collect()
}

/// The entry of the template that a machine is a consumer by: the first that fits.
fn find<'t>(template: &'t ConfigTemplate, node: &Node) -> Option<&'t MachineConsumer> {
    let own = node.metadata.labels.clone().unwrap_or_default();
    let machines = template.spec.consumers.iter().filter_map(|consumer| consumer.machines.as_ref());
    machines
        .into_iter()
        .find(|machines| machines.selector.as_ref().is_none_or(|selector| labels::matches(selector, &own)))
}

fn view(machines: &MachineConsumer, node: &Node, file: Option<&MachineFile>) -> ConsumerView {
    let name = node.metadata.name.clone().unwrap_or_default();
    let existing = file.map(|file| file.uid().to_owned());
    let machine = MachineTarget { node: name.clone(), file: machines.file.clone(), existing };
    ConsumerView {
        name: format!("node/{name}"),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        action: PodAction::Nothing,
        containers: Vec::new(),
        state: file.filter(|file| file.spec.file == machines.file).map(state),
        files: None,
        begun_with: None,
        started: true,
        running: false, // nothing is validated there
        deleting: node.metadata.deletion_timestamp.is_some(),
        waits: false,
        needs_met: None,
        health: health(node),
        restarts: 0,
        crash: None,
        machine: Some(machine),
    }
}

/// How far a machine has come with what it was given last.
fn state(file: &MachineFile) -> ConsumerState {
    let spec = &file.spec;
    let assigned = spec.assigned.clone().unwrap_or(Time(Timestamp::UNIX_EPOCH));
    let (step, time, message) = match file.current_status() {
        None => (Step::Assigned, assigned, String::new()),
        Some(status) => {
            let time = status.time.clone().unwrap_or(assigned);
            match status.reason.as_str() {
                "" => (Step::Notified, time, String::new()),
                reason => (Step::Failed, time, format!("{reason}: {}", status.message)),
            }
        }
    };
    ConsumerState { version: spec.version.clone(), step, time, restarts: 0, message }
}

fn health(node: &Node) -> Health {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let created = || node.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |Time(time)| *time);
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).map_or_else(created, |Time(time)| *time);
    match ready.map(|ready| ready.status.as_str()) {
        Some("True") => Health::Healthy { since },
        Some("False") => Health::Unhealthy { since },
        _ => Health::Unknown { since },
    }
}

/// Whether a change of a node may change which machines a template has, or whether they are well.
pub fn differs(before: Option<&Node>, after: Option<&Node>) -> bool {
    let facts = |node: &Node| {
        let leaving = node.metadata.deletion_timestamp.is_some();
        (node.metadata.uid.clone(), node.metadata.labels.clone(), leaving, health(node))
    };
    before.map(facts) != after.map(facts)
}

/// MachineFiles of the template for machines that it has no longer.
pub fn observe_former(context: &Context, template: &ConfigTemplate, consumers: &[ConsumerView]) -> Vec<FormerFile> {
    let wanted: HashSet<&str> =
        consumers.iter().filter_map(|own| own.machine.as_ref()).map(|machine| machine.node.as_str()).collect();
    let files = own_files(context, template);
    let former = files.iter().filter(|file| !wanted.contains(file.spec.node_name.as_str()));
    former.map(|file| FormerFile { name: file.name().to_owned(), uid: file.uid().to_owned() }).collect()
}

/// The copies that machines read.
pub fn read_copies(context: &Context, template: &ConfigTemplate) -> Vec<String> {
    let files = own_files(context, template);
    files.iter().filter_map(|file| file.spec.content.target().map(|(key, _)| key.name.clone())).collect()
}

fn own_files(context: &Context, template: &ConfigTemplate) -> Vec<Arc<MachineFile>> {
    context.machine_files.controlled_by(template.uid())
}

/// The template that a MachineFile is of.
pub fn template_key(file: &MachineFile) -> ObjectKey {
    ObjectKey::new(file.namespace(), file.spec.template.clone())
}

pub async fn write(context: &Context, template: &ObjectKey, change: FileChange) -> Result<Outcome, ApiError> {
    let FileChange { machine, owner, version, output, copy, assigned } = change;
    let files: Api<MachineFile> = Api::namespaced(context.client.clone(), &template.namespace);
    let name = file_name(&template.name, &machine.node);
    let doing = format!("write machine file {}/{name}", template.namespace);
    let key = OutputKey { name: copy, key: output.key.key };
    let spec = MachineFileSpec {
        node_name: machine.node,
        template: template.name.clone(),
        version,
        assigned: Some(Time(assigned)),
        file: machine.file,
        content: ContentSource::new(output.kind, key),
    };
    let written = match machine.existing {
        None => {
            let owner = OwnerReference {
                api_version: ConfigTemplate::API_VERSION.to_owned(),
                kind: ConfigTemplate::KIND.to_owned(),
                name: owner.name,
                uid: owner.uid,
                controller: Some(true),
                ..OwnerReference::default()
            };
            let mut file = MachineFile::new(&name, spec);
            file.metadata.namespace = Some(template.namespace.clone());
            file.metadata.owner_references = Some(vec![owner]);
            files.create(&PostParams::default(), &file).await
        }
        Some(uid) => {
            let FileAttributes { path, mode, owner, group } = &spec.file;
            let change = json!({ "metadata": { "uid": uid }, "spec": {
                "version": spec.version, "assigned": spec.assigned, "template": spec.template, "path": path, "mode": mode,
                "owner": owner, "group": group,
                "content": { "configMap": spec.content.config_map, "secret": spec.content.secret },
            } });
            files.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await
        }
    };
    match written {
        Ok(file) => {
            context.machine_files.wrote(file);
            Ok(Outcome::Done)
        }
        // Seen by the next reconcile, in the cache.
        Err(error) if error::has_code(&error, 409) || error::is_not_found(&error, &name) => Ok(Outcome::Done),
        Err(error) => Err(ApiError::new(doing, error)),
    }
}

pub async fn delete(context: &Context, namespace: &str, former: &FormerFile) -> Result<Outcome, ApiError> {
    let files: Api<MachineFile> = Api::namespaced(context.client.clone(), namespace);
    let preconditions = Some(Preconditions { uid: Some(former.uid.clone()), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::background() };
    match files.delete(&former.name, &params).await {
        Ok(_) => Ok(Outcome::Done),
        Err(error) if error::is_not_found(&error, &former.name) || error::has_code(&error, 409) => Ok(Outcome::Done),
        Err(error) => Err(ApiError::new(format!("delete machine file {namespace}/{}", former.name), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_after_its_template_and_node() {
        assert_eq!(file_name("zones", "n1.example"), "zones.n1.example");
        let long = file_name(&"t".repeat(200), &"n".repeat(200));
        assert!(long.len() <= LONGEST_NAME && long != file_name(&"t".repeat(200), &"m".repeat(200)));
    }

    #[test]
    fn a_machine_has_come_as_far_as_it_says_of_the_present_spec() {
        let file = |generation: i64, status: serde_json::Value| -> MachineFile {
            let spec = json!({ "version": "0123456789", "assigned": "2026-01-01T00:00:00Z" });
            let meta = json!({ "generation": generation });
            serde_json::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap()
        };
        let status = json!({ "observedGeneration": 1, "version": "0123456789", "time": "2026-01-01T00:00:05Z" });
        assert_eq!(state(&file(1, json!(null))).step, Step::Assigned);
        assert_eq!(state(&file(1, status.clone())).step, Step::Notified);
        assert_eq!(state(&file(2, status.clone())).step, Step::Assigned, "it was given something else since");
        let mut failed = status;
        (failed["reason"], failed["message"]) = (json!("Conflict"), json!("/etc/x is there"));
        let state = state(&file(1, failed));
        assert_eq!((state.step, state.message.as_str()), (Step::Failed, "Conflict: /etc/x is there"));
    }
}
