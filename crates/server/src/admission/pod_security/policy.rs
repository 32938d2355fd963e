//! Levels of Pod Security, and the labels by which a namespace chooses them.

use std::{fmt, str::FromStr};

use serde_json::Value;

const PREFIX: &str = "pod-security.kubernetes.io/";
/// Where parts of the system run that need the machine itself.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The Pod Security Standards, from the most permissive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Level {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Privileged, Self::Baseline, Self::Restricted];
        let found = all.into_iter().find(|level| level.as_str() == text);
        found.ok_or("must be one of privileged, baseline, restricted")
    }
}

/// What holds in namespaces without labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodSecuritySettings {
    pub enforce: Level,
    pub warn: Level,
    pub audit: Level,
}

impl Default for PodSecuritySettings {
    fn default() -> Self {
        Self { enforce: Level::Baseline, warn: Level::Restricted, audit: Level::Privileged }
    }
}

impl PodSecuritySettings {
    pub(super) fn for_namespace(&self, name: &str) -> Self {
        if SYSTEM.contains(&name) {
            return Self { enforce: Level::Privileged, warn: Level::Privileged, audit: Level::Privileged };
        }
        *self
    }
}

/// A level with the version that was asked for: `baseline:latest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedLevel {
    pub level: Level,
    version: String,
}

impl fmt::Display for VersionedLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// What a namespace asks of its pods.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    pub enforce: VersionedLevel,
    pub warn: VersionedLevel,
    pub audit: VersionedLevel,
}

/// A label that means nothing: its key and value, and what would be right.
pub type WrongLabel = (String, String, &'static str);

impl Policy {
    /// What cannot be understood is enforced as `restricted`, and neither warned of nor audited.
    pub fn from_labels(labels: &Value, stock: &PodSecuritySettings) -> (Self, Vec<WrongLabel>) {
        let mut wrong = Vec::new();
        let mut mode = |name: &str, stock: Level, unknown: Level| {
            let label = |key: String| labels[&key].as_str().map(|value| (key.clone(), value.to_owned()));
            let mut level = stock;
            if let Some((key, value)) = label(format!("{PREFIX}{name}")) {
                level = value.parse().unwrap_or_else(|detail| {
                    wrong.push((key, value.clone(), detail));
                    unknown
                });
            }
            let mut version = "latest".to_owned();
            if let Some((key, value)) = label(format!("{PREFIX}{name}-version")) {
                if is_version(&value) {
                    version = value;
                } else {
                    wrong.push((key, value, "must be \"latest\" or \"v1.x\""));
                }
            }
            VersionedLevel { level, version }
        };
        let enforce = mode("enforce", stock.enforce, Level::Restricted);
        let audit = mode("audit", stock.audit, Level::Privileged);
        let warn = mode("warn", stock.warn, Level::Privileged);
        (Self { enforce, warn, audit }, wrong)
    }
}

fn is_version(text: &str) -> bool {
    let minor = text.strip_prefix("v1.").unwrap_or_default();
    let number = !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit());
    text == "latest" || (number && (minor == "0" || !minor.starts_with('0')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(labels: Value, namespace: &str) -> (String, Vec<WrongLabel>) {
        let stock = PodSecuritySettings::default().for_namespace(namespace);
        let (policy, wrong) = Policy::from_labels(&labels, &stock);
        (format!("{} {} {}", policy.enforce, policy.warn, policy.audit), wrong)
    }

    #[test]
    fn labels_change_what_is_stock() {
        assert_eq!(shown(Value::Null, "a").0, "baseline:latest restricted:latest privileged:latest");
        assert_eq!(shown(Value::Null, "kube-system").0, "privileged:latest privileged:latest privileged:latest");
        let labels = json!({
            "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.25",
            "pod-security.kubernetes.io/warn": "privileged", "pod-security.kubernetes.io/audit": "baseline",
        });
        assert_eq!(shown(labels, "kube-system").0, "restricted:v1.25 privileged:latest baseline:latest");
    }

    #[test]
    fn labels_that_mean_nothing_are_named_and_enforced_strictly() {
        let labels = json!({
            "pod-security.kubernetes.io/enforce": "lax", "pod-security.kubernetes.io/warn-version": "1.2",
        });
        let (policy, wrong) = shown(labels, "a");
        assert_eq!(policy, "restricted:latest restricted:latest privileged:latest");
        let wrong: Vec<String> = wrong.iter().map(|(key, value, detail)| format!("{key}={value} {detail}")).collect();
        assert_eq!(
            wrong,
            [
                "pod-security.kubernetes.io/enforce=lax must be one of privileged, baseline, restricted",
                "pod-security.kubernetes.io/warn-version=1.2 must be \"latest\" or \"v1.x\"",
            ]
        );
    }
}
