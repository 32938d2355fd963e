//! Upstream's audit policy (`audit.k8s.io/v1`, kind `Policy`): at which level a request is logged.
//!
//! The first rule that matches decides; a request that no rule matches is not logged. Beyond upstream, a user may end in `*`.

use std::{fs, io, path::Path, path::PathBuf};

use mainstay_api::decode;
use serde::Deserialize;
use serde_json::Value;

use crate::auth::User;

const API_VERSION: &str = "audit.k8s.io/v1";

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
}

/// How much of a request is logged. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    kind: String,
    api_version: String,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What a policy looks at.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub verb: &'a str,
    pub target: Target<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    Resource { group: &'a str, resource: &'a str, subresource: &'a str, namespace: &'a str, name: &'a str },
    Path(&'a str),
}

/// Some of the stages.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        Self(stages.into_iter().fold(0, |all, stage| all | (1 << stage as u8)))
    }
}

impl std::fmt::Debug for Stages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];
        f.debug_set().entries(all.iter().filter(|stage| self.contains(**stage))).finish()
    }
}

/// What a policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub level: Level,
    pub omit_stages: Stages,
    pub omit_managed_fields: bool,
}

impl Policy {
    /// The one that holds unless there is a file.
    pub fn built_in() -> Self {
        Self::parse(include_bytes!("default-policy.yaml")).expect("the built-in policy is valid: a test reads it")
    }

    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let bytes = fs::read(path).map_err(|source| PolicyError::File { path: path.to_owned(), source })?;
        Self::parse(&bytes).map_err(|why| PolicyError::Invalid { path: path.to_owned(), why })
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value = decode::yaml(bytes).map_err(|error| error.to_string())?.value;
        let policy: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if policy.kind != "Policy" || policy.api_version != API_VERSION {
            return Err(format!("must be of kind Policy and apiVersion {API_VERSION}"));
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            let for_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if for_resources && !rule.non_resource_urls.is_empty() {
                return Err(format!(
                    "rules[{index}].nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs"
                ));
            }
        }
        Ok(policy)
    }

    pub fn decide(&self, user: Option<&User>, subject: Subject<'_>) -> Verdict {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(user, subject)) else { return Verdict::default() };
        if rule.level == Level::None {
            return Verdict::default();
        }
        Verdict {
            level: rule.level,
            omit_stages: self.omit_stages.iter().chain(&rule.omit_stages).copied().collect(),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn matches(&self, user: Option<&User>, subject: Subject<'_>) -> bool {
        let name = user.map_or("", |user| user.name.as_str());
        let is_named = self.users.is_empty() || self.users.iter().any(|pattern| matches_prefix(pattern, name));
        let in_group = |group: &String| user.is_some_and(|user| user.is_in(group));
        is_named
            && (self.user_groups.is_empty() || self.user_groups.iter().any(in_group))
            && (self.verbs.is_empty() || self.verbs.iter().any(|verb| verb == subject.verb))
            && self.matches_target(subject.target)
    }

    fn matches_target(&self, target: Target<'_>) -> bool {
        let for_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        match target {
            Target::Resource { group, resource, subresource, namespace, name } => {
                let in_namespace = || self.namespaces.is_empty() || self.namespaces.iter().any(|own| own == namespace);
                let is_listed = |own: &GroupResources| own.matches(group, resource, subresource, name);
                let listed = || self.resources.is_empty() || self.resources.iter().any(is_listed);
                if for_resources { in_namespace() && listed() } else { self.non_resource_urls.is_empty() }
            }
            Target::Path(path) => {
                let urls = &self.non_resource_urls;
                if urls.is_empty() { !for_resources } else { urls.iter().any(|url| matches_prefix(url, path)) }
            }
        }
    }
}

impl GroupResources {
    fn matches(&self, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        let is_kind = |pattern: &String| match pattern.split_once('/') {
            None => pattern == "*" || (subresource.is_empty() && pattern == resource),
            Some(("*", sub)) => sub == subresource,
            Some((of, "*")) => of == resource && !subresource.is_empty(),
            Some((of, sub)) => of == resource && sub == subresource,
        };
        (self.group == group || self.group == "*")
            && (self.resources.is_empty() || self.resources.iter().any(is_kind))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|own| own == name))
    }
}

/// Whether a pattern that may end in `*` stands for this text.
fn matches_prefix(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |prefix| text.starts_with(prefix))
}
