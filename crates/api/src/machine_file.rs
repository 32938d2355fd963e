//! The kind MachineFile: a version of a ConfigTemplate's output that one machine is to have as a file.
//!
//! The controller of [`config_template`](crate::config_template)s writes one for each machine that a template selects; the machine's agent writes the file and reports. The content
//! is not in it: it is a key of an immutable copy of the output, so that what a Secret renders to stays in a Secret. A node reads the MachineFiles
//! that name it, and the copies that these name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::{
    config_template::{OutputKey, OutputKind},
    own_object::{DefinitionDoc, OwnKind, OwnObject},
};

/// The mode of a file that does not say another.
pub const DEFAULT_MODE: &str = "0600";
/// What upstream's kernels take.
pub const LONGEST_PATH: usize = 4000;
/// Of an account or a group.
pub const LONGEST_ACCOUNT: usize = 64;

/// Why a file is not as it should be.
pub mod reason {
    /// The machine's own configuration file does not allow the path.
    pub const NOT_ALLOWED: &str = "PathNotAllowed";
    /// There is a file at the path that is not of this MachineFile.
    pub const CONFLICT: &str = "Conflict";
    pub const WRITE_FAILED: &str = "WriteFailed";
    /// The command that the machine's own configuration file names for a change failed.
    pub const COMMAND_FAILED: &str = "CommandFailed";
}

pub type MachineFile = OwnObject<MachineFileSpec, MachineFileStatus>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineFileSpec {
    pub node_name: String,
    /// The ConfigTemplate, of the same namespace.
    pub template: String,
    pub version: String,
    /// When the machine was given this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned: Option<Time>,
    #[serde(flatten)]
    pub file: FileAttributes,
    pub content: ContentSource,
}

/// Where a file is, and who may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileAttributes {
    pub path: String,
    /// Octal; [`DEFAULT_MODE`] if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// An account of the machine, by name or number; root if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A key of a copy of the output: exactly one of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<OutputKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<OutputKey>,
}

impl ContentSource {
    pub fn new(kind: OutputKind, key: OutputKey) -> Self {
        match kind {
            OutputKind::ConfigMap => Self { config_map: Some(key), secret: None },
            OutputKind::Secret => Self { config_map: None, secret: Some(key) },
        }
    }

    pub fn target(&self) -> Option<(&OutputKey, OutputKind)> {
        let map = self.config_map.as_ref().map(|key| (key, OutputKind::ConfigMap));
        map.or_else(|| self.secret.as_ref().map(|key| (key, OutputKind::Secret)))
    }
}

/// What the machine says. The file is as wanted if the generation is the observed one and there is no reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineFileStatus {
    /// Of the spec that this is about.
    pub observed_generation: i64,
    /// The version that the file has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why it is not as wanted: one of [`reason`]; empty if it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

impl MachineFile {
    /// What the machine says of the present spec; nothing if it has not looked at it.
    pub fn current_status(&self) -> Option<&MachineFileStatus> {
        self.status.as_ref().filter(|status| Some(status.observed_generation) == self.metadata.generation)
    }
}

/// What is wrong with the path of a file; nothing if it can be one: absolute, and without any step that means another place.
pub fn path_violation(path: &str) -> Option<&'static str> {
    let Some(below_root) = path.strip_prefix('/') else { return Some("must be an absolute path") };
    if path.len() > LONGEST_PATH || path.chars().any(char::is_control) {
        return Some("must have at most 4000 bytes and no control characters");
    }
    let is_name = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    (!below_root.split('/').all(is_name)).then_some("must be the path of a file, without `//`, `.` and `..`")
}

/// The permissions that a text such as `0640` stands for; neither setuid nor any other special one.
pub fn parse_mode(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('0').unwrap_or(text);
    let is_octal = digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    u32::from_str_radix(digits, 8).ok().filter(|_| is_octal)
}

/// Whether a text can be the name or number of an account or a group.
pub fn is_account(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let first = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    first && text.len() <= LONGEST_ACCOUNT && text.chars().all(inside)
}

impl OwnKind for MachineFileSpec {
    type Scope = k8s_openapi::NamespaceResourceScope;
    const KIND: &'static str = "MachineFile";
    const LIST_KIND: &'static str = "MachineFileList";
    const PLURAL: &'static str = "machinefiles";
    const ABOUT: &'static str = "MachineFile is a version of a ConfigTemplate's output that one machine is to have as a file. \
                                 The controller of ConfigTemplates writes it, and the machine reports in its status.";
    const SPEC_ABOUT: &'static str = "The file that the machine is to have.";
    const STATUS_ABOUT: &'static str = "What the machine says of it.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "MachineFileSpec",
            about: "MachineFileSpec is the file that a machine is to have.",
            fields: &[
                ("assigned", "When the machine was given this version."),
                ("content", "Where the content is: a key of an immutable copy of the template's output."),
                ("group", "A group of the machine, by name or number; root's if left out."),
                ("mode", "The permissions, in octal. Defaults to 0600."),
                ("nodeName", "The Node of the machine."),
                ("owner", "An account of the machine, by name or number; root if left out."),
                (
                    "path",
                    "The path on the machine. It has to be below a directory that the machine's own configuration file allows.",
                ),
                ("template", "The ConfigTemplate, of the same namespace, whose output it is."),
                ("version", "The version of the content."),
            ],
        },
        DefinitionDoc {
            name: "MachineFileContent",
            about: "MachineFileContent is a key of a ConfigMap or Secret. Exactly one of both is set.",
            fields: &[("configMap", "A key of a ConfigMap."), ("secret", "A key of a Secret.")],
        },
        DefinitionDoc {
            name: "MachineFileStatus",
            about: "MachineFileStatus is what the machine says of the file.",
            fields: &[
                ("message", "More about the reason."),
                ("observedGeneration", "The generation of the spec that this is about."),
                ("reason", "Why the file is not as wanted: PathNotAllowed, Conflict, WriteFailed, CommandFailed."),
                ("time", "Since when."),
                ("version", "The version that the file has."),
            ],
        },
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_file_and_no_other_place() {
        for path in ["/etc/app.conf", "/a", "/etc/..data", "/etc/a b", "/é/x"] {
            assert_eq!(path_violation(path), None, "{path:?}");
        }
        for path in ["", "/", "etc/app", "/etc/", "/etc//app", "/etc/../shadow", "/./a", "/a\nb", "/a\0b"] {
            assert!(path_violation(path).is_some(), "{path:?}");
        }
        assert!(path_violation(&format!("/{}", "x/".repeat(2001))).is_some());
        assert!(path_violation(&format!("/{}", "x".repeat(256))).is_some());
    }

    #[test]
    fn a_mode_has_permissions_alone() {
        assert_eq!(["0640", "640", "0000", "777"].map(parse_mode), [Some(0o640), Some(0o640), Some(0), Some(0o777)]);
        for mode in ["", "0", "4755", "04755", "0688", "0o640", "-640", "+64", "u=rw"] {
            assert_eq!(parse_mode(mode), None, "{mode:?}");
        }
    }

    #[test]
    fn accounts_are_names_or_numbers() {
        for account in ["root", "0", "www-data", "_apt", "a.b"] {
            assert!(is_account(account), "{account:?}");
        }
        for account in ["", "-x", "a b", "a/b", "a:b", &"x".repeat(65)] {
            assert!(!is_account(account), "{account:?}");
        }
    }
}
