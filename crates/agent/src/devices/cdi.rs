//! Specs of the Container Device Interface: what a device is to a container, as its driver wrote it down.
//!
//! Specs are JSON or YAML files in two directories of the machine; of two that describe a device, the one in the directory that comes
//! later counts, and two in one directory are a conflict. They are read when a container is made: drivers write them just before.
//! Nothing is applied of a device that asks for something the built-in runtime does not do.

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
};

use mainstay_runtime::{
    ContainerSpec,
    spec::{DeviceNode, Hook, Mount, Propagation},
};
use serde::Deserialize;

/// As the specification has them, the less important first.
const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const LARGEST: u64 = 4 << 20;
const HOOKS: [&str; 6] = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    #[error("unresolvable CDI devices {}", .0.join(", "))]
    Unknown(Vec<String>),
    #[error("CDI device {device} is described in {first:?} and in {second:?}")]
    Conflict { device: String, first: PathBuf, second: PathBuf },
    #[error("{0:?} is not the name of a CDI device: vendor.com/class=name")]
    Name(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiSpec {
    /// `vendor.com/class`.
    kind: String,
    devices: Vec<CdiDevice>,
    /// For every container that has one of the devices.
    container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiDevice {
    name: String,
    container_edits: ContainerEdits,
}

/// What is done to a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerEdits {
    env: Vec<String>,
    device_nodes: Vec<CdiDeviceNode>,
    mounts: Vec<CdiMount>,
    hooks: Vec<CdiHook>,
    #[serde(rename = "additionalGids")]
    additional_gids: Vec<i64>,
    intel_rdt: Option<serde_json::Value>,
    net_devices: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiDeviceNode {
    path: PathBuf,
    host_path: Option<PathBuf>,
    #[serde(rename = "type")]
    kind: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    file_mode: Option<u32>,
    permissions: String,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiMount {
    host_path: PathBuf,
    container_path: PathBuf,
    options: Vec<String>,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiHook {
    hook_name: String,
    path: PathBuf,
    args: Vec<String>,
    env: Vec<String>,
    timeout: Option<i64>,
}

/// Where specs are, the less important directory first.
#[derive(Clone, Debug)]
pub struct CdiDirectories(Vec<PathBuf>);

impl CdiDirectories {
    pub fn of_machine() -> Self {
        Self(DIRECTORIES.iter().map(PathBuf::from).collect())
    }

    /// All edits for these devices (`vendor.com/class=name`); those of a spec as a whole once.
    pub fn edits(&self, devices: &[String]) -> Result<ContainerEdits, CdiError> {
        let specs: Vec<(usize, PathBuf, CdiSpec)> = self
            .0
            .iter()
            .enumerate()
            .flat_map(|(priority, directory)| {
                read_specs(directory).into_iter().map(move |(path, spec)| (priority, path, spec))
            })
            .collect();
        let (mut all, mut used, mut unknown) = (ContainerEdits::default(), BTreeMap::new(), Vec::new());
        for id in devices {
            let Some((kind, name)) = id.split_once('=').filter(|(kind, name)| kind.contains('/') && !name.is_empty())
            else {
                return Err(CdiError::Name(id.clone()));
            };
            let mut found: Option<(usize, &PathBuf, &CdiSpec, &CdiDevice)> = None;
            for (priority, path, spec) in specs.iter().filter(|(_, _, spec)| spec.kind == kind) {
                let Some(device) = spec.devices.iter().find(|device| device.name == name) else { continue };
                match &found {
                    Some((known, first, ..)) if known == priority => {
                        let (first, second) = ((*first).clone(), path.clone());
                        return Err(CdiError::Conflict { device: id.clone(), first, second });
                    }
                    _ => found = Some((*priority, path, spec, device)),
                }
            }
            match found {
                Some((_, path, spec, device)) => {
                    if used.insert(path, ()).is_none() {
                        all.extend(&spec.container_edits);
                    }
                    all.extend(&device.container_edits);
                }
                None => unknown.push(id.clone()),
            }
        }
        if unknown.is_empty() { Ok(all) } else { Err(CdiError::Unknown(unknown)) }
    }
}

/// A file that cannot be read is passed over: others may be fine, and what it describes will be missed by name.
fn read_specs(directory: &Path) -> Vec<(PathBuf, CdiSpec)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut specs = Vec::new();
    for path in files {
        let read = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => {
                read_file(&path).and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()))
            }
            Some("yaml" | "yml") => {
                read_file(&path).and_then(|text| serde_saphyr::from_str(&text).map_err(|error| error.to_string()))
            }
            _ => continue,
        };
        match read {
            Ok(spec) => specs.push((path, spec)),
            Err(error) => tracing::warn!(file = ?path, error, "cannot read a CDI spec"),
        }
    }
    specs
}

fn read_file(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > LARGEST { Err("it is larger than 4 MiB".to_owned()) } else { Ok(text) }
}

impl ContainerEdits {
    fn extend(&mut self, more: &Self) {
        self.env.extend(more.env.iter().cloned());
        self.device_nodes.extend(more.device_nodes.iter().cloned());
        self.mounts.extend(more.mounts.iter().cloned());
        self.hooks.extend(more.hooks.iter().cloned());
        self.additional_gids.extend(&more.additional_gids);
        self.intel_rdt = self.intel_rdt.take().or_else(|| more.intel_rdt.clone());
        self.net_devices.extend(more.net_devices.iter().cloned());
    }

    pub fn apply(self, spec: &mut ContainerSpec) -> Result<(), String> {
        if self.intel_rdt.is_some() || !self.net_devices.is_empty() {
            return Err(
                "a CDI device asks for intelRdt or netDevices, which the built-in runtime does not set up".to_owned()
            );
        }
        for entry in self.env {
            let Some((name, value)) = entry.split_once('=').filter(|(name, _)| !name.is_empty()) else {
                return Err(format!("a CDI device sets the environment variable {entry:?}, which is not NAME=value"));
            };
            spec.env.retain(|(own, _)| own != name);
            spec.env.push((name.to_owned(), value.to_owned()));
        }
        for mount in self.mounts {
            let mount = bind_mount(mount)?;
            spec.mounts.retain(|own| own.target != mount.target);
            spec.mounts.push(mount);
        }
        for node in self.device_nodes {
            let node = device_node(node)?;
            spec.device_edits.nodes.retain(|own| own.path != node.path);
            spec.device_edits.nodes.push(node);
        }
        for CdiHook { hook_name, path, args, env, timeout } in self.hooks {
            if !HOOKS.contains(&hook_name.as_str()) || !path.is_absolute() {
                return Err(format!("a CDI device has the hook {hook_name:?} with {path:?}: not a hook of OCI"));
            }
            spec.device_edits.hooks.push(Hook { name: hook_name, path, args, env, timeout });
        }
        for group in self.additional_gids {
            if group != 0 && !spec.security.supplemental_groups.contains(&group) {
                spec.security.supplemental_groups.push(group);
            }
        }
        Ok(())
    }
}

fn bind_mount(mount: CdiMount) -> Result<Mount, String> {
    let CdiMount { host_path, container_path, options, kind } = mount;
    if !matches!(kind.as_str(), "" | "bind" | "none") {
        return Err(format!(
            "a CDI device mounts {container_path:?} with type {kind:?}: only bind mounts are supported"
        ));
    }
    if !host_path.is_absolute() || !container_path.is_absolute() {
        return Err(format!("a CDI device mounts {host_path:?} at {container_path:?}: not absolute paths"));
    }
    let has = |option: &str| options.iter().any(|own| own == option);
    Ok(Mount {
        source: host_path,
        target: container_path,
        read_only: has("ro"),
        recursive_read_only: Default::default(),
        propagation: if has("rslave") || has("slave") { Propagation::HostToContainer } else { Propagation::Private },
    })
}

fn device_node(node: CdiDeviceNode) -> Result<DeviceNode, String> {
    let CdiDeviceNode { path, host_path, kind, major, minor, file_mode, permissions, uid, gid } = node;
    if !path.is_absolute() || permissions.chars().any(|right| !"rwm".contains(right)) {
        return Err(format!("a CDI device has the device node {path:?} with permissions {permissions:?}"));
    }
    let known = |kind: &str| ["b", "c", "u", "p"].contains(&kind);
    if kind.as_deref().is_some_and(|kind| !kind.is_empty() && !known(kind)) {
        return Err(format!("a CDI device has the device node {path:?} of type {kind:?}"));
    }
    let kind = kind.filter(|kind| !kind.is_empty());
    Ok(DeviceNode { path, host_path, kind, major, minor, mode: file_mode, uid, gid, permissions })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn write(directory: &Path, file: &str, spec: &Value) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join(file), spec.to_string()).unwrap();
    }

    fn spec(name: &str, value: &str) -> Value {
        json!({
            "cdiVersion": "0.6.0", "kind": "example.com/gpu",
            "containerEdits": { "env": ["ALL=1"] },
            "devices": [{ "name": name, "containerEdits": {
                "env": [format!("DEVICE={value}")],
                "deviceNodes": [{ "path": "/dev/gpu", "hostPath": "/dev/null", "permissions": "rw" }],
                "mounts": [{ "hostPath": "/opt/gpu", "containerPath": "/gpu", "options": ["ro", "bind"] }],
                "hooks": [{ "hookName": "createContainer", "path": "/bin/true" }],
                "additionalGids": [44],
            } }],
        })
    }

    #[test]
    fn a_device_is_what_the_more_important_directory_says() {
        let root = tempfile::tempdir().unwrap();
        let (etc, run) = (root.path().join("etc"), root.path().join("run"));
        let directories = CdiDirectories(vec![etc.clone(), run.clone()]);
        write(&etc, "a.json", &spec("0", "etc"));
        write(&run, "b.json", &spec("0", "run"));
        std::fs::write(run.join("broken.yaml"), "kind: [").unwrap();
        let mut container = ContainerSpec { env: vec![("DEVICE".into(), "own".into())], ..Default::default() };
        directories.edits(&["example.com/gpu=0".to_owned()]).unwrap().apply(&mut container).unwrap();
        assert_eq!(container.env, [("ALL".into(), "1".into()), ("DEVICE".into(), "run".into())]);
        assert!(container.mounts[0].read_only && container.mounts[0].target == Path::new("/gpu"));
        assert_eq!(container.device_edits.nodes[0].host_path.as_deref(), Some(Path::new("/dev/null")));
        assert_eq!(container.device_edits.hooks[0].name, "createContainer");
        assert_eq!(container.security.supplemental_groups, [44]);
        write(&run, "c.json", &spec("0", "twice"));
        let twice = directories.edits(&["example.com/gpu=0".to_owned()]).unwrap_err();
        assert!(matches!(twice, CdiError::Conflict { .. }), "{twice}");
    }

    #[test]
    fn yaml_is_read_and_what_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        let yaml =
            "cdiVersion: 0.6.0\nkind: example.com/net\ndevices:\n- name: eth\n  containerEdits:\n    env: [NIC=eth]\n";
        std::fs::write(root.path().join("net.yaml"), yaml).unwrap();
        let directories = CdiDirectories(vec![root.path().to_owned()]);
        let edits = directories.edits(&["example.com/net=eth".to_owned()]).unwrap();
        assert_eq!(edits.env, ["NIC=eth"]);
        let why = directories.edits(&["example.com/net=x".to_owned()]).unwrap_err().to_string();
        assert_eq!(why, "unresolvable CDI devices example.com/net=x");
        assert!(matches!(directories.edits(&["net".to_owned()]), Err(CdiError::Name(_))));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (edits, expected) in [
            (json!({ "env": ["=x"] }), "environment variable"),
            (json!({ "mounts": [{ "hostPath": "/a", "containerPath": "/b", "type": "tmpfs" }] }), "only bind mounts"),
            (json!({ "mounts": [{ "hostPath": "a", "containerPath": "/b" }] }), "not absolute paths"),
            (json!({ "deviceNodes": [{ "path": "/dev/x", "permissions": "q" }] }), "permissions"),
            (json!({ "hooks": [{ "hookName": "never", "path": "/bin/true" }] }), "not a hook of OCI"),
            (json!({ "intelRdt": {} }), "intelRdt"),
        ] {
            let edits: ContainerEdits = serde_json::from_value(edits).unwrap();
            let why = edits.apply(&mut ContainerSpec::default()).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
