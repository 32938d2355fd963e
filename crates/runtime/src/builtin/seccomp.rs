//! Seccomp profiles: which system calls a container may make.
//!
//! The default profile is the one that docker and containerd agree on, as a table of our own ([`default_profile`]). Profiles from a file are
//! in OCI's or docker's JSON. Both become filters for the machine's own architecture; a program of another one (32-bit on
//! a 64-bit machine) is killed at its first call.

use serde::Deserialize;

mod compile;
mod default_profile;

use crate::spec::Seccomp;
pub use compile::Filters;

/// The filters to install, in this order; none if nothing is filtered. `capabilities` are the container's, as `CAP_…`.
pub fn compile(wanted: &Seccomp, capabilities: &[String]) -> Result<Filters, String> {
    let profile = match wanted {
        Seccomp::Unconfined => return Ok(Filters::new()),
        Seccomp::RuntimeDefault => default_profile::profile(capabilities),
        Seccomp::Localhost(path) => {
            let failed = |error: &dyn std::fmt::Display| format!("seccomp profile {}: {error}", path.display());
            let text = std::fs::read(path).map_err(|error| failed(&error))?;
            serde_json::from_slice(&text).map_err(|error| failed(&error))?
        }
    };
    compile::compile(&profile.for_capabilities(capabilities))
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    pub default_action: Action,
    pub default_errno_ret: Option<u32>,
    #[serde(default)]
    pub syscalls: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    #[serde(default)]
    pub names: Vec<String>,
    /// As docker wrote it once.
    pub name: Option<String>,
    pub action: Action,
    pub errno_ret: Option<u32>,
    #[serde(default, deserialize_with = "or_default")]
    pub args: Vec<Argument>,
    #[serde(default, deserialize_with = "or_default")]
    pub includes: Condition,
    #[serde(default, deserialize_with = "or_default")]
    pub excludes: Condition,
}

/// Docker's: for which containers a rule is meant.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Condition {
    #[serde(default, deserialize_with = "or_default")]
    pub caps: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub arches: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Argument {
    pub index: u8,
    pub value: u64,
    #[serde(default)]
    pub value_two: u64,
    pub op: Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Operator {
    #[serde(rename = "SCMP_CMP_NE")]
    NotEqual,
    #[serde(rename = "SCMP_CMP_LT")]
    Less,
    #[serde(rename = "SCMP_CMP_LE")]
    LessOrEqual,
    #[serde(rename = "SCMP_CMP_EQ")]
    Equal,
    #[serde(rename = "SCMP_CMP_GE")]
    GreaterOrEqual,
    #[serde(rename = "SCMP_CMP_GT")]
    Greater,
    /// `value` is the mask, `value_two` what must be left.
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_LOG")]
    Log,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
    #[serde(rename = "SCMP_ACT_TRAP")]
    Trap,
    #[serde(rename = "SCMP_ACT_KILL", alias = "SCMP_ACT_KILL_THREAD")]
    KillThread,
    #[serde(rename = "SCMP_ACT_KILL_PROCESS")]
    KillProcess,
}

fn or_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Profile {
    /// Only the rules that are meant for such a container.
    fn for_capabilities(mut self, capabilities: &[String]) -> Self {
        let has = |name: &String| capabilities.contains(name);
        let here = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let arch = |names: &[String]| names.iter().any(|name| name == here);
        self.syscalls.retain(|rule| {
            rule.includes.caps.iter().all(has)
                && !rule.excludes.caps.iter().any(has)
                && (rule.includes.arches.is_empty() || arch(&rule.includes.arches))
                && !arch(&rule.excludes.arches)
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_from_a_file_is_understood_with_its_conditions() {
        let text = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "archMap": [],
            "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "", "includes": {}},
                         {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
                         {"name": "clone", "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
                          "excludes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["s390"]}}]}"#;
        let profile: Profile = serde_json::from_str(text).unwrap();
        assert_eq!(profile.clone().for_capabilities(&[]).syscalls.len(), 2);
        assert_eq!(profile.clone().for_capabilities(&["CAP_SYS_ADMIN".into()]).syscalls.len(), 2);
        assert_eq!(compile::compile(&profile).unwrap().len(), 1);
    }

    #[test]
    fn the_usual_profile_refuses_new_namespaces_in_two_ways() {
        assert_eq!(compile(&Seccomp::RuntimeDefault, &[]).unwrap().len(), 2);
        assert_eq!(compile(&Seccomp::RuntimeDefault, &["CAP_SYS_ADMIN".into()]).unwrap().len(), 1);
        assert!(compile(&Seccomp::Unconfined, &[]).unwrap().is_empty());
    }

    #[test]
    fn a_missing_profile_is_named() {
        let error = compile(&Seccomp::Localhost("/no/such.json".into()), &[]).unwrap_err();
        assert!(error.contains("/no/such.json"), "{error}");
    }
}
