//! Makes the OCI configuration (`config.json`) that libcontainer reads from a container spec. Pure, but for the numbers of devices.

use std::{
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::users::User;
use crate::{
    cgroup::Layout,
    images::ImageConfig,
    spec::{ContainerSpec, DeviceNode, MASKED_PATHS, Mount, PidMode, Propagation, READ_ONLY_PATHS, RecursiveReadOnly},
};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const CGROUP: &str = "/sys/fs/cgroup";

/// Everything a configuration is made from.
pub struct ConfigInput<'a> {
    pub spec: &'a ContainerSpec,
    pub image: &'a ImageConfig,
    pub user: &'a User,
    pub root: &'a Path,
    pub hostname: &'a str,
    pub cgroup: &'a Path,
    /// How the machine's cgroups are mounted.
    pub layout: &'a Layout,
    /// In a user namespace of the pod's.
    pub users: bool,
    /// The AppArmor profile, where one is to be applied.
    pub apparmor: Option<&'a str>,
    pub pids: PidNamespace,
    /// The pod's shared memory.
    pub shm: &'a Path,
    /// Where a mount that propagates back is found, in the order of such mounts.
    pub stages: &'a [PathBuf],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PidNamespace {
    Own,
    Host,
    /// That of this process.
    OfProcess(i32),
}

impl PidNamespace {
    pub fn select(mode: PidMode, reaper: Option<i32>, target: Option<i32>) -> Self {
        match (target, mode, reaper) {
            (Some(pid), _, _) => Self::OfProcess(pid),
            (None, PidMode::Host, _) => Self::Host,
            (None, PidMode::Pod, Some(pid)) => Self::OfProcess(pid),
            (None, PidMode::Pod | PidMode::Container, _) => Self::Own,
        }
    }
}

/// The command line: the pod's command replaces the image's entrypoint and arguments, its arguments the image's.
pub fn command(spec: &ContainerSpec, image: &ImageConfig) -> Result<Vec<String>, String> {
    let (first, rest) = match (spec.command.is_empty(), spec.args.is_empty()) {
        (true, true) => (&image.entrypoint, &image.cmd),
        (true, false) => (&image.entrypoint, &spec.args),
        (false, _) => (&spec.command, &spec.args),
    };
    let all: Vec<String> = first.iter().chain(rest).cloned().collect();
    if all.is_empty() { Err("no command specified".into()) } else { Ok(all) }
}

pub fn working_dir<'a>(spec: &'a ContainerSpec, image: &'a ImageConfig) -> &'a str {
    [&spec.working_dir, &image.working_dir].into_iter().find(|dir| !dir.is_empty()).map_or("/", String::as_str)
}

fn environment(input: &ConfigInput<'_>) -> Vec<String> {
    let mut all = vec![PATH.to_owned()];
    let mut set = |entry: String| {
        let name = entry.split('=').next().unwrap_or_default().to_owned();
        all.retain(|have| have.split('=').next() != Some(&name));
        all.push(entry);
    };
    input.image.env.iter().cloned().for_each(&mut set);
    set(format!("HOSTNAME={}", input.hostname));
    if input.spec.tty {
        set("TERM=xterm".into());
    }
    input.spec.env.iter().for_each(|(name, value)| set(format!("{name}={value}")));
    all
}

pub fn config(input: &ConfigInput<'_>) -> Result<Value, String> {
    let spec = input.spec;
    let security = &spec.security;
    let unmasked = security.privileged || security.unmasked_proc;
    let mut namespaces = vec![json!({"type": "mount"}), json!({"type": "cgroup"})];
    match input.pids {
        PidNamespace::Own => namespaces.push(json!({"type": "pid"})),
        PidNamespace::OfProcess(pid) => namespaces.push(json!({"type": "pid", "path": format!("/proc/{pid}/ns/pid")})),
        PidNamespace::Host => {}
    }
    let (devices, rules) = devices(spec)?;
    let mut read_only: Vec<&str> = if unmasked { Vec::new() } else { READ_ONLY_PATHS.to_vec() };
    if has_own_cgroup(input) {
        // The hierarchies below are mounted read-only one by one; this is the directory that holds them.
        read_only.push(CGROUP);
    }
    let hooks = hooks(spec);
    let propagates = spec.mounts.iter().any(|mount| mount.propagation == Propagation::Bidirectional);
    let mut config = json!({
        "ociVersion": "1.0.2",
        "root": {"path": input.root, "readonly": security.read_only_root},
        "process": {
            "terminal": spec.tty,
            "user": {"uid": input.user.uid, "gid": input.user.gid, "additionalGids": input.user.groups},
            "args": command(spec, input.image)?,
            "env": environment(input),
            "cwd": working_dir(spec, input.image),
            "noNewPrivileges": security.no_new_privileges,
            "apparmorProfile": input.apparmor,
        },
        "mounts": mounts(input),
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": Path::new("/").join(input.cgroup),
            "resources": {"devices": rules},
            "devices": devices,
            "rootfsPropagation": if propagates { "shared" } else { "slave" },
            "maskedPaths": if unmasked { &[][..] } else { MASKED_PATHS },
            "readonlyPaths": read_only,
        },
    });
    if !hooks.is_empty() {
        config["hooks"] = Value::Object(hooks);
    }
    Ok(config)
}

/// By the point of the container's life at which they run.
fn hooks(spec: &ContainerSpec) -> serde_json::Map<String, Value> {
    let mut all = serde_json::Map::new();
    for hook in &spec.device_edits.hooks {
        let entry = json!({"path": hook.path, "args": hook.args, "env": hook.env, "timeout": hook.timeout});
        if let Some(list) = all.entry(hook.name.clone()).or_insert_with(|| json!([])).as_array_mut() {
            list.push(entry);
        }
    }
    all
}

/// Whether the container sees nothing of the machine's cgroups but its own, which it cannot change. Privileged ones see all
/// there is, as upstream's do; a volume of the pod's own at that place takes the place of ours.
fn has_own_cgroup(input: &ConfigInput<'_>) -> bool {
    let replaced = input.spec.mounts.iter().any(|mount| mount.target == Path::new(CGROUP));
    (!input.spec.security.privileged || input.users) && !replaced
}

/// The container's own cgroup at the root of each hierarchy's mount, and no named hierarchies: processes are not moved
/// in those, so their mounts would show the machine's root. Mounts of type `cgroup` are not used for it, because
/// libcontainer leaves them writable.
fn cgroup_mounts(input: &ConfigInput<'_>) -> Vec<Value> {
    let bind = |source: PathBuf, target: &Path| {
        json!({"destination": target, "type": "bind", "source": source,
               "options": ["bind", "nosuid", "noexec", "nodev", "ro"]})
    };
    match input.layout {
        Layout::V2(root) => vec![bind(root.join(input.cgroup), Path::new(CGROUP))],
        Layout::V1(hierarchies) => {
            let mut all = vec![json!({"destination": CGROUP, "type": "tmpfs", "source": "tmpfs",
                                      "options": ["nosuid", "noexec", "nodev", "mode=755", "size=64k"]})];
            for (controllers, root) in hierarchies {
                // `cpu,cpuacct` is also looked for as `cpu` and as `cpuacct`.
                let joint = controllers.join(",");
                let names = controllers.iter().filter(|name| **name != joint).chain([&joint]);
                all.extend(names.map(|name| bind(root.join(input.cgroup), &Path::new(CGROUP).join(name))));
            }
            all
        }
    }
}

fn mounts(input: &ConfigInput<'_>) -> Vec<Value> {
    let privileged = input.spec.security.privileged;
    let access = if privileged { "rw" } else { "ro" };
    let mut all = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
               "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
               "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]}),
        json!({"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", access]}),
    ];
    if has_own_cgroup(input) {
        all.extend(cgroup_mounts(input));
    } else {
        all.push(json!({"destination": CGROUP, "type": "cgroup", "source": "cgroup",
                        "options": ["nosuid", "noexec", "nodev", "relatime", access]}));
    }
    // One that the pod mounts itself takes the place of ours.
    let own = |path: &str| input.spec.mounts.iter().any(|mount| mount.target == Path::new(path));
    all.retain(|mount| !mount["destination"].as_str().is_some_and(own));
    if !own("/dev/shm") {
        all.push(json!({"destination": "/dev/shm", "type": "bind", "source": input.shm, "options": ["rbind", "rw"]}));
    }
    let mut stages = input.stages.iter();
    let mut asked: Vec<(&Mount, &Path)> = input
        .spec
        .mounts
        .iter()
        .map(|mount| {
            let stage = (mount.propagation == Propagation::Bidirectional).then(|| stages.next()).flatten();
            (mount, stage.map_or(mount.source.as_path(), PathBuf::as_path))
        })
        .collect();
    // What lies above comes first.
    asked.sort_by_key(|(mount, _)| mount.target.components().count());
    all.extend(asked.into_iter().map(|(mount, source)| {
        let access = match (mount.read_only, mount.recursive_read_only) {
            (true, RecursiveReadOnly::Enabled | RecursiveReadOnly::IfPossible) => "rro",
            (true, RecursiveReadOnly::Disabled) => "ro",
            (false, _) => "rw",
        };
        json!({"destination": mount.target, "type": "bind", "source": source, "options": ["rbind", access]})
    }));
    all
}

/// The device nodes to make, and which may be used.
fn devices(spec: &ContainerSpec) -> Result<(Vec<Value>, Vec<Value>), String> {
    if spec.security.privileged {
        let mut all: Vec<Value> = host_devices(Path::new("/dev"), 0)
            .iter()
            .filter_map(|path| node(path).ok())
            .map(|(node, _)| node)
            .collect();
        for edit in &spec.device_edits.nodes {
            all.retain(|node| node["path"] != json!(edit.path));
            all.push(claimed_node(edit)?.0);
        }
        return Ok((all, vec![json!({"allow": true, "access": "rwm"})]));
    }
    let mut rules = vec![json!({"allow": false, "access": "rwm"})];
    let mut nodes = Vec::new();
    for path in &spec.devices {
        let (node, rule) = node(path)?;
        nodes.push(node);
        rules.push(rule);
    }
    for edit in &spec.device_edits.nodes {
        let (node, rule) = claimed_node(edit)?;
        nodes.push(node);
        rules.extend(rule);
    }
    Ok((nodes, rules))
}

/// A node of a claimed device. What its driver leaves out is as on the machine. A pipe needs no permission.
fn claimed_node(edit: &DeviceNode) -> Result<(Value, Option<Value>), String> {
    let host_path = edit.host_path.as_deref().unwrap_or(&edit.path);
    let described = edit.kind.as_deref().filter(|kind| *kind == "p" || edit.major.is_some());
    let (mut made, kind) = match described {
        Some(kind) => {
            (json!({"type": kind, "major": edit.major.unwrap_or(0), "minor": edit.minor.unwrap_or(0)}), kind.to_owned())
        }
        None => {
            let (made, _) = node(host_path)?;
            let kind = made["type"].as_str().unwrap_or_default().to_owned();
            (made, kind)
        }
    };
    made["path"] = json!(edit.path);
    for (field, value) in [("fileMode", edit.mode), ("uid", edit.uid), ("gid", edit.gid)] {
        if let Some(value) = value {
            made[field] = json!(value);
        }
    }
    let access = if edit.permissions.is_empty() { "rwm" } else { &edit.permissions };
    let rule = json!({"allow": true, "type": kind, "major": made["major"], "minor": made["minor"], "access": access});
    Ok((made, (kind != "p").then_some(rule)))
}

fn node(path: &Path) -> Result<(Value, Value), String> {
    let meta = std::fs::metadata(path).map_err(|error| format!("device {}: {error}", path.display()))?;
    let kind = if meta.file_type().is_block_device() {
        "b"
    } else if meta.file_type().is_char_device() {
        "c"
    } else {
        return Err(format!("{} is not a device", path.display()));
    };
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let node = json!({"path": path, "type": kind, "major": major, "minor": minor,
                      "fileMode": meta.mode() & 0o7777, "uid": meta.uid(), "gid": meta.gid()});
    Ok((node, json!({"allow": true, "type": kind, "major": major, "minor": minor, "access": "rwm"})))
}

/// Without those that a container has of its own.
fn host_devices(dir: &Path, depth: usize) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        let own = ["pts", "shm", "mqueue", "fd", "console", "ptmx", ".lxc", ".lxd-mounts", ".udev"];
        if own.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if kind.is_dir() && depth < 4 {
            found.extend(host_devices(&path, depth + 1));
        } else if kind.is_char_device() || kind.is_block_device() {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{DeviceEdits, Hook};

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|each| (*each).to_owned()).collect()
    }

    fn image() -> ImageConfig {
        ImageConfig {
            entrypoint: strings(&["/entry"]),
            cmd: strings(&["arg"]),
            env: strings(&["A=image", "PATH=/image"]),
            working_dir: "/srv".into(),
            ..Default::default()
        }
    }

    fn made(spec: &ContainerSpec) -> Value {
        let (image, user) = (image(), User { uid: 1, gid: 2, groups: vec![2, 3] });
        let input = ConfigInput {
            spec,
            image: &image,
            user: &user,
            root: Path::new("/root"),
            hostname: "web-0",
            cgroup: Path::new("m/p/c"),
            layout: &hybrid(),
            users: false,
            apparmor: None,
            pids: PidNamespace::Own,
            shm: Path::new("/run/shm"),
            stages: &[],
        };
        config(&input).unwrap()
    }

    fn hybrid() -> Layout {
        let hierarchy = |names: &[&str], root: &str| (strings(names), PathBuf::from(root));
        Layout::V1(vec![
            hierarchy(&["cpu", "cpuacct"], "/sys/fs/cgroup/cpu,cpuacct"),
            hierarchy(&["memory"], "/sys/fs/cgroup/memory"),
        ])
    }

    fn cgroups(spec: &ContainerSpec) -> Vec<(String, String, bool)> {
        let config = made(spec);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = config["mounts"].as_array().unwrap().iter();
        all.filter(|mount| text(&mount["destination"]).starts_with(CGROUP))
            .map(|mount| {
                let read_only = mount["options"].as_array().unwrap().contains(&json!("ro"));
                (text(&mount["destination"]), text(&mount["source"]), read_only)
            })
            .collect()
    }

    #[test]
    fn a_container_sees_its_own_cgroup_alone_and_cannot_write_it() {
        let mut spec = ContainerSpec::default();
        let own = |target: &str, source: &str| (target.to_owned(), source.to_owned(), true);
        assert_eq!(
            cgroups(&spec)[1..],
            [
                own("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct/m/p/c"),
                own("/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu,cpuacct/m/p/c"),
                own("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/m/p/c"),
                own("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/m/p/c"),
            ]
        );
        let read_only =
            |spec: &ContainerSpec| made(spec)["linux"]["readonlyPaths"].as_array().unwrap().contains(&json!(CGROUP));
        assert!(read_only(&spec));
        spec.security.unmasked_proc = true;
        assert!(read_only(&spec), "procMount is about /proc");
        spec.security.privileged = true;
        assert!(!read_only(&spec));
        assert_eq!(cgroups(&spec), [(CGROUP.to_owned(), "cgroup".to_owned(), false)]);
    }

    #[test]
    fn with_one_hierarchy_the_containers_own_part_is_the_whole() {
        let (image, user, spec) = (image(), User { uid: 0, gid: 0, groups: vec![] }, ContainerSpec::default());
        let input = ConfigInput {
            spec: &spec,
            image: &image,
            user: &user,
            root: Path::new("/root"),
            hostname: "web-0",
            cgroup: Path::new("m/p/c"),
            layout: &Layout::V2(CGROUP.into()),
            users: false,
            apparmor: None,
            pids: PidNamespace::Own,
            shm: Path::new("/run/shm"),
            stages: &[],
        };
        let options = json!(["bind", "nosuid", "noexec", "nodev", "ro"]);
        let own = json!({"destination": CGROUP, "type": "bind", "source": "/sys/fs/cgroup/m/p/c", "options": options});
        assert_eq!(cgroup_mounts(&input), [own]);
    }

    #[test]
    fn commands_follow_the_four_rules() {
        let spec = |command: &[&str], args: &[&str]| ContainerSpec {
            command: strings(command),
            args: strings(args),
            ..Default::default()
        };
        let of = |command: &[&str], args: &[&str]| self::command(&spec(command, args), &image()).unwrap();
        assert_eq!(of(&[], &[]), ["/entry", "arg"]);
        assert_eq!(of(&[], &["mine"]), ["/entry", "mine"]);
        assert_eq!(of(&["run"], &[]), ["run"]);
        assert_eq!(of(&["run"], &["mine"]), ["run", "mine"]);
        assert!(self::command(&spec(&[], &[]), &ImageConfig::default()).is_err());
    }

    #[test]
    fn the_pods_variables_win_over_the_images() {
        let spec = ContainerSpec {
            env: vec![("A".into(), "pod".into()), ("HOSTNAME".into(), "x=y".into())],
            ..Default::default()
        };
        assert_eq!(made(&spec)["process"]["env"], json!(["PATH=/image", "A=pod", "HOSTNAME=x=y"]));
    }

    #[test]
    fn claimed_devices_have_nodes_rules_and_hooks() {
        let node = DeviceNode {
            path: "/dev/gpu0".into(),
            host_path: Some("/dev/null".into()),
            mode: Some(0o640),
            permissions: "rw".into(),
            ..DeviceNode::default()
        };
        let hook = Hook { name: "createContainer".into(), path: "/bin/true".into(), ..Hook::default() };
        let edits = DeviceEdits { nodes: vec![node], hooks: vec![hook], cdi_devices: vec![] };
        let spec = ContainerSpec { command: strings(&["sh"]), device_edits: edits, ..Default::default() };
        let config = made(&spec);
        let node = &config["linux"]["devices"][0];
        assert_eq!((&node["path"], &node["major"], &node["minor"]), (&json!("/dev/gpu0"), &json!(1), &json!(3)));
        assert_eq!(node["fileMode"], json!(0o640));
        let rule = json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"});
        assert_eq!(config["linux"]["resources"]["devices"][1], rule);
        assert_eq!(config["hooks"]["createContainer"][0]["path"], "/bin/true");
        let edits =
            DeviceEdits { nodes: vec![DeviceNode { path: "/etc".into(), ..Default::default() }], ..Default::default() };
        assert_eq!(claimed_node(&edits.nodes[0]).unwrap_err(), "/etc is not a device");
    }

    #[test]
    fn privileged_is_neither_masked_nor_kept_from_devices() {
        let mut spec = ContainerSpec::default();
        assert_eq!(made(&spec)["linux"]["maskedPaths"], json!(MASKED_PATHS));
        assert_eq!(made(&spec)["linux"]["resources"]["devices"], json!([{"allow": false, "access": "rwm"}]));
        spec.security.privileged = true;
        let config = made(&spec);
        assert_eq!(config["linux"]["maskedPaths"], json!([]));
        assert_eq!(config["linux"]["resources"]["devices"], json!([{"allow": true, "access": "rwm"}]));
        let sys = config["mounts"].as_array().unwrap().iter().find(|mount| mount["destination"] == "/sys").unwrap();
        assert_eq!(sys["options"][3], "rw");
    }

    #[test]
    fn mounts_go_from_the_top_down_and_replace_ours() {
        let mount = |target: &str| Mount {
            source: "/source".into(),
            target: target.into(),
            read_only: true,
            recursive_read_only: Default::default(),
            propagation: Propagation::Private,
        };
        let spec = ContainerSpec { mounts: vec![mount("/a/b"), mount("/a"), mount("/dev/shm")], ..Default::default() };
        let config = made(&spec);
        let targets: Vec<_> =
            config["mounts"].as_array().unwrap().iter().map(|mount| mount["destination"].as_str().unwrap()).collect();
        assert_eq!(targets[targets.len() - 3..], ["/a", "/a/b", "/dev/shm"]);
        assert_eq!(targets.iter().filter(|target| **target == "/dev/shm").count(), 1);
    }
}
