//! The output of a template, and the immutable copies of its versions.
//!
//! The key of the output is written by server-side apply, with a field manager of the template and without force: somebody else who has the key
//! keeps it, and the template says so. Copies belong to the output, not to the template: pods go on reading them when the template is deleted.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use mainstay_api::{
    config_template::{ConfigTemplate, OutputKey, OutputKind, TEMPLATE_LABEL, template_label},
    config_versions::{copy_config_map, copy_secret},
};
use mainstay_templates::version;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    copy_index::CopyIndex,
    notify::Content,
    output_cache::{KnownOutput, OutputCache},
    plan::Outcome,
};
use crate::runtime::{ApiError, ObjectKey, error, version_of};

/// On a copy: the version that it is of.
pub const VERSION_LABEL: &str = "mainstay.dev/config-version";
const LONGEST_MANAGER: usize = 128;

/// What there is of a template's versions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputState {
    /// The version of what the output holds now; nothing if it, or the key, does not exist.
    pub version: Option<String>,
    pub exists: bool,
    pub copies: Vec<Copy>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    pub name: String,
    pub uid: String,
    pub version: String,
    /// Workloads whose configuration rolls out own it as well: they may go back to it.
    pub is_shared: bool,
}

impl OutputState {
    /// The copy of a version.
    pub fn copy(&self, version: &str) -> Option<&str> {
        self.copies.iter().find(|copy| copy.version == version).map(|copy| copy.name.as_str())
    }
}

/// An object with keys: a ConfigMap or a Secret.
trait Keyed:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + Serialize + DeserializeOwned
{
    fn value(&self, key: &str) -> Option<String>;
    /// The same with this value of a key.
    fn with_value(self, key: &str, value: &str) -> Self;
    fn with_meta(metadata: ObjectMeta) -> Self;
    fn copied(&self) -> Self;
}

impl Keyed for ConfigMap {
    fn value(&self, key: &str) -> Option<String> {
        self.data.as_ref()?.get(key).cloned()
    }

    fn with_value(mut self, key: &str, value: &str) -> Self {
        self.data.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        self
    }

    fn with_meta(metadata: ObjectMeta) -> Self {
        Self { metadata, ..Self::default() }
    }

    fn copied(&self) -> Self {
        copy_config_map(self)
    }
}

impl Keyed for Secret {
    fn value(&self, key: &str) -> Option<String> {
        let value = self.data.as_ref()?.get(key)?;
        String::from_utf8(value.0.clone()).ok()
    }

    fn with_value(mut self, key: &str, value: &str) -> Self {
        self.data.get_or_insert_default().insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
        self
    }

    fn with_meta(metadata: ObjectMeta) -> Self {
        Self { metadata, ..Self::default() }
    }

    fn copied(&self) -> Self {
        copy_secret(self)
    }
}

/// The field manager that writes the output of a template.
fn field_manager(template: &TemplateOwner) -> String {
    let manager = format!("config-template/{}", template.name);
    if manager.len() <= LONGEST_MANAGER { manager } else { format!("config-template/{}", template.uid) }
}

/// The template that an output belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateOwner {
    pub name: String,
    pub uid: String,
}

/// What the output and its copies are now.
pub async fn read(
    client: &Client,
    copies: &CopyIndex,
    outputs: &OutputCache,
    template: &ConfigTemplate,
) -> Result<OutputState, ApiError> {
    let Some((output, kind)) = template.spec.output.target() else { return Ok(OutputState::default()) };
    let key = ObjectKey::from_meta(&template.metadata);
    let KnownOutput { version, exists, .. } = match outputs.get(&key) {
        Ok(known) => known,
        Err(ticket) => {
            let known = match kind {
                OutputKind::ConfigMap => read_as::<ConfigMap>(client, &key.namespace, output).await,
                OutputKind::Secret => read_as::<Secret>(client, &key.namespace, output).await,
            }?;
            outputs.read(&key, ticket, known.clone());
            known
        }
    };
    let copies = copies.copies(kind, template.namespace(), template.name());
    Ok(OutputState { version, exists, copies })
}

async fn read_as<K: Keyed>(client: &Client, namespace: &str, output: &OutputKey) -> Result<KnownOutput, ApiError> {
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    let doing = || format!("read {} {namespace}/{}", K::kind(&()).to_lowercase(), output.name);
    let current = objects.get_opt(&output.name).await.map_err(|error| ApiError::new(doing(), error))?;
    Ok(current.map_or(KnownOutput { version: None, exists: false, resource_version: 0 }, |own| known(&own, output)))
}

fn known<K: Keyed>(object: &K, output: &OutputKey) -> KnownOutput {
    let version = object.value(&output.key).map(|value| version(&value));
    KnownOutput { version, exists: true, resource_version: version_of(object.meta()) }
}

/// Where a content comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum VersionContent {
    Rendered(Content),
    /// In the copy of this name.
    Copy(String),
}

/// A key of an object, and what sort of object it is.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTarget {
    pub kind: OutputKind,
    pub key: OutputKey,
}

/// Writes a version to the output of a template; a key that somebody else has is left alone.
pub async fn write_output(
    client: &Client,
    outputs: &OutputCache,
    template: &ObjectKey,
    output: &OutputTarget,
    owner: &TemplateOwner,
    content: VersionContent,
) -> Result<Outcome, ApiError> {
    let namespace = &template.namespace;
    let written = match output.kind {
        OutputKind::ConfigMap => write_as::<ConfigMap>(client, namespace, &output.key, owner, content).await,
        OutputKind::Secret => write_as::<Secret>(client, namespace, &output.key, owner, content).await,
    };
    match written? {
        Ok(known) => {
            outputs.wrote(template, known);
            Ok(Outcome::Written)
        }
        Err(message) => Ok(Outcome::Refused(message)),
    }
}

/// What the output holds by then, or why somebody else's key is not ours.
async fn write_as<K: Keyed>(
    client: &Client,
    namespace: &str,
    output: &OutputKey,
    owner: &TemplateOwner,
    content: VersionContent,
) -> Result<Result<KnownOutput, String>, ApiError> {
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    let doing = format!("write {} {namespace}/{}", K::kind(&()).to_lowercase(), output.name);
    let content = match content {
        VersionContent::Rendered(Content(content)) => content,
        VersionContent::Copy(name) => {
            let copy = objects.get(&name).await.map_err(ApiError::when(format!("read copy {namespace}/{name}")))?;
            copy.value(&output.key).unwrap_or_default()
        }
    };
    let metadata =
        ObjectMeta { name: Some(output.name.clone()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
    let wanted = K::with_meta(metadata).with_value(&output.key, &content);
    match objects.patch(&output.name, &PatchParams::apply(&field_manager(owner)), &Patch::Apply(&wanted)).await {
        Ok(written) => Ok(Ok(known(&written, output))),
        Err(error) if error::has_code(&error, 409) || error::has_code(&error, 422) => Ok(Err(error::message(&error))),
        Err(error) => Err(ApiError::new(doing, error)),
    }
}

/// A copy that is to be made of the output with this content.
#[derive(Clone, Debug, PartialEq)]
pub struct NewCopy {
    pub output: OutputTarget,
    pub owner: TemplateOwner,
    pub version: String,
    pub content: Content,
}

/// Makes the copy, with whatever other keys the output has now.
pub async fn make_copy(
    client: &Client,
    copies: &CopyIndex,
    outputs: &OutputCache,
    template: &ObjectKey,
    copy: NewCopy,
) -> Result<Outcome, ApiError> {
    let (kind, namespace) = (copy.output.kind, &template.namespace);
    let made = match kind {
        OutputKind::ConfigMap => make_copy_as::<ConfigMap>(client, namespace, copy).await,
        OutputKind::Secret => make_copy_as::<Secret>(client, namespace, copy).await,
    }?;
    match made {
        Some(meta) => copies.apply(kind, &meta),
        None => outputs.changed(template, None), // it went a moment ago
    }
    Ok(Outcome::Done)
}

/// The metadata of the copy, also if there was one already; nothing if there is nothing to copy yet.
async fn make_copy_as<K: Keyed>(
    client: &Client,
    namespace: &str,
    new: NewCopy,
) -> Result<Option<ObjectMeta>, ApiError> {
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    let NewCopy { output: OutputTarget { key: output, .. }, owner, version, content: Content(content) } = new;
    let doing = format!("copy {} {namespace}/{}", K::kind(&()).to_lowercase(), output.name);
    let Some(original) = objects.get_opt(&output.name).await.map_err(ApiError::when(doing.clone()))? else {
        return Ok(None); // the next reconcile writes it first
    };
    let owned_by = OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: output.name.clone(),
        uid: original.uid().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let mut copy = original.with_value(&output.key, &content).copied();
    let labels: BTreeMap<String, String> =
        [(TEMPLATE_LABEL.to_owned(), template_label(&owner.name)), (VERSION_LABEL.to_owned(), version)].into();
    copy.labels_mut().extend(labels.clone());
    copy.meta_mut().owner_references = Some(vec![owned_by.clone()]);
    match objects.create(&PostParams::default(), &copy).await {
        Ok(made) => Ok(Some(made.meta().clone())),
        Err(error) if error::has_code(&error, 409) => {
            // Workloads whose configuration rolls out may have made the same copy, for themselves.
            let shared = json!({ "metadata": { "labels": labels, "ownerReferences": [owned_by] } });
            let shared = Patch::Strategic(shared);
            match objects.patch(&copy.name_any(), &PatchParams::default(), &shared).await {
                Ok(there) => Ok(Some(there.meta().clone())),
                Err(error) if error::is_not_found(&error, &copy.name_any()) => Ok(None),
                Err(error) => Err(ApiError::new(doing, error)),
            }
        }
        Err(error) => Err(ApiError::new(doing, error)),
    }
}

pub async fn delete_copy(
    client: &Client,
    copies: &CopyIndex,
    namespace: &str,
    kind: OutputKind,
    name: &str,
    uid: &str,
) -> Result<Outcome, ApiError> {
    async fn delete<K: Keyed>(
        client: &Client,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<(), kube::Error> {
        Api::<K>::namespaced(client.clone(), namespace).delete(name, params).await.map(drop)
    }
    let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::background() };
    let deleted = match kind {
        OutputKind::ConfigMap => delete::<ConfigMap>(client, namespace, name, &params).await,
        OutputKind::Secret => delete::<Secret>(client, namespace, name, &params).await,
    };
    match deleted {
        Ok(()) => {}
        Err(error) if error::is_not_found(&error, name) || error::has_code(&error, 409) => {}
        Err(error) => return Err(ApiError::new(format!("delete copy {namespace}/{name}"), error)),
    }
    copies.remove(kind, &ObjectKey::new(namespace, name), uid);
    Ok(Outcome::Done)
}
