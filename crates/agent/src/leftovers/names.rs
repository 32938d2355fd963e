//! How an instance names what it makes on a machine, and which instance a name belongs to. Pure.
//!
//! An instance is the Mainstay of one data directory: `mainstay` for `/var/lib/mainstay`, else `mainstay-` and eight hex digits
//! of the directory's hash. A name that only begins alike belongs to somebody else.

use std::{
    ffi::OsStr,
    fmt,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use mainstay_network::bridge_name;
use xxhash_rust::xxh3::xxh3_64;

const STOCK: &str = "mainstay";
pub const STOCK_DATA_DIR: &str = "/var/lib/mainstay";
const HASH_DIGITS: usize = 8;
/// Sandboxes and containers are named by UUIDs without dashes.
const ID_DIGITS: usize = 32;

/// The name of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an instance is named \"mainstay\", or \"mainstay-\" and eight hex digits")]
pub struct NotAnInstance;

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Instance {
    type Err = NotAnInstance;

    fn from_str(name: &str) -> Result<Self, NotAnInstance> {
        let hash = name.strip_prefix(STOCK).and_then(|rest| rest.strip_prefix('-'));
        match name == STOCK || hash.is_some_and(|hash| is_hex(hash, HASH_DIGITS)) {
            true => Ok(Self(name.to_owned())),
            false => Err(NotAnInstance),
        }
    }
}

impl Instance {
    /// Of a directory's absolute path without symbolic links.
    pub fn of_data_dir(path: &Path) -> Self {
        if path == Path::new(STOCK_DATA_DIR) {
            return Self(STOCK.to_owned());
        }
        Self(format!("{STOCK}-{:08x}", xxh3_64(path.as_os_str().as_encoded_bytes()) >> 32))
    }

    /// Of a bridge: `mainstay0`, `ms-01234567`.
    pub fn of_bridge(name: &str) -> Option<Self> {
        let hash = name.strip_prefix("ms-").filter(|hash| is_hex(hash, HASH_DIGITS));
        let instance = match hash {
            Some(hash) => Self(format!("{STOCK}-{hash}")),
            None => Self(STOCK.to_owned()),
        };
        (instance.bridge() == name).then_some(instance)
    }

    /// Of a table of packet rules: the bridge's, or that of Services.
    pub fn of_table(name: &str) -> Option<Self> {
        Self::of_bridge(name).or_else(|| name.strip_suffix("-services")?.parse().ok())
    }

    /// Of the label of an address on the loopback interface.
    pub fn of_label(label: &str) -> Option<Self> {
        Self::of_bridge(label.strip_prefix("lo:")?)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn bridge(&self) -> String {
        bridge_name(&self.0)
    }

    pub fn run_dir(&self) -> PathBuf {
        Path::new("/run").join(&self.0)
    }
}

/// Whose a cgroup is: `/<instance>/[<class>/]pod<uid>/<sandbox>/<shim or container>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxCgroup {
    pub instance: Instance,
    pub sandbox: String,
    /// `shim`, or the container's id; None in the sandbox's own group.
    pub part: Option<String>,
}

impl SandboxCgroup {
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let instance = parts.next()?.parse().ok()?;
        let class_or_pod = parts.next()?;
        let pod = match class_or_pod {
            "burstable" | "besteffort" => parts.next()?,
            pod => pod,
        };
        pod.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
        let sandbox = parts.next().filter(|id| is_id(id))?.to_owned();
        Some(Self { instance, sandbox, part: parts.next().map(str::to_owned) })
    }

    /// From the lines of `/proc/PID/cgroup`: on version 1 a process that is being moved is in some hierarchies only.
    pub fn of_process(lines: &str) -> Option<Self> {
        lines
            .lines()
            .filter_map(|line| Self::parse(line.splitn(3, ':').nth(2)?))
            .max_by_key(|group| group.part.is_some())
    }
}

/// The data directory that a shim was started for: `… shim <data>/runtime/sandboxes/<id> /run/<instance>/s/<id>`.
pub fn data_dir_of_shim(command: &[impl AsRef<str>]) -> Option<PathBuf> {
    let [_, verb, directory, socket] = command else { return None };
    let (directory, socket) = (Path::new(directory.as_ref()), Path::new(socket.as_ref()));
    let ids = (directory.file_name()?, socket.file_name()?);
    let data_dir = directory.parent()?.parent()?.parent()?;
    let expected = data_dir.join("runtime/sandboxes").join(ids.0);
    (verb.as_ref() == "shim" && ids.0 == ids.1 && expected == directory).then(|| data_dir.to_owned())
}

/// Which data directory a mount was made for, by where it is: a container's root, something in a pod's directory, or a disk of a pod. Anything
/// else below a data directory, and the directory itself, may be a disk of the administrator's.
pub fn data_dir_of_mount(point: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = point.components().collect();
    let is = |at: usize, name: &str| parts.get(at).is_some_and(|part| part.as_os_str() == name);
    let has_id = |at: usize| parts.get(at).is_some_and(|part| part.as_os_str().to_str().is_some_and(is_id));
    let root = |at| {
        is(at, "runtime") && is(at + 1, "images") && is(at + 2, "rootfs") && has_id(at + 3) && is(at + 4, "merged")
    };
    let volume = |at: usize| is(at, "agent") && is(at + 1, "pods") && (is(at + 3, "volumes") || is(at + 3, "subpaths"));
    let disk = |at: usize| is(at, "agent") && is(at + 1, "attached") && is(at + 3, "mount");
    let at = (1..parts.len()).find(|at| root(*at) || volume(*at) || disk(*at))?;
    Some(parts[..at].iter().collect())
}

/// The pod's shared memory: `/run/<instance>/shm/<sandbox>`.
pub fn instance_of_shm(point: &Path) -> Option<Instance> {
    let rest = point.strip_prefix("/run").ok()?;
    let parts: Option<Vec<&str>> = rest.iter().map(OsStr::to_str).collect();
    match parts?[..] {
        [instance, "shm", sandbox] if is_id(sandbox) => instance.parse().ok(),
        _ => None,
    }
}

pub fn is_id(name: &str) -> bool {
    is_hex(name, ID_DIGITS)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn instance(name: &str) -> Instance {
        name.parse().unwrap()
    }

    #[test]
    fn only_whole_names_are_an_instance() {
        assert!("mainstay".parse::<Instance>().is_ok() && "mainstay-0a1b2c3d".parse::<Instance>().is_ok());
        for other in ["", "mainstay-", "mainstay-0a1b2c3", "mainstay-0A1B2C3D", "mainstay-0a1b2c3d4", "mainstayx", "x"]
        {
            assert_eq!(other.parse::<Instance>(), Err(NotAnInstance), "{other}");
        }
    }

    #[test]
    fn bridges_tables_and_labels_lead_back_to_their_instance() {
        for name in ["mainstay", "mainstay-0a1b2c3d"] {
            let own = instance(name);
            assert_eq!(Instance::of_bridge(&own.bridge()).as_ref(), Some(&own));
            assert_eq!(Instance::of_table(&own.bridge()).as_ref(), Some(&own));
            assert_eq!(Instance::of_table(&format!("{name}-services")).as_ref(), Some(&own));
            assert_eq!(Instance::of_label(&format!("lo:{}", own.bridge())).as_ref(), Some(&own));
        }
        for other in ["ms-", "ms-0a1b2c3", "ms-0a1b2c3dx", "mainstay1", "mainstay00", "cni0", "lo", "-services"] {
            assert_eq!((Instance::of_bridge(other), Instance::of_table(other)), (None, None), "{other}");
        }
    }

    #[test]
    fn a_cgroup_is_ours_by_its_whole_shape() {
        let whole = SandboxCgroup::parse(&format!("/mainstay-0a1b2c3d/besteffort/pod1-2/{ID}/shim")).unwrap();
        assert_eq!((whole.instance.name(), whole.part.as_deref()), ("mainstay-0a1b2c3d", Some("shim")));
        let plain = SandboxCgroup::parse(&format!("/mainstay/podx/{ID}")).unwrap();
        assert_eq!((plain.sandbox.as_str(), plain.part), (ID, None));
        let inner = SandboxCgroup::parse(&format!("/mainstay/podx/{ID}/c/mainstay-0a1b2c3d/pody/{ID}/shim")).unwrap();
        assert_eq!(inner.instance.name(), "mainstay", "one that runs in a pod of another");
        for other in
            ["/", "/mainstay", "/mainstay.service", "/system.slice/mainstay", "/mainstay/podx", "/mainstay/user/x"]
        {
            assert_eq!(SandboxCgroup::parse(other), None, "{other}");
        }
        assert_eq!(SandboxCgroup::parse(&format!("/mainstay-backup/podx/{ID}")), None);
    }

    #[test]
    fn a_process_is_where_any_hierarchy_says() {
        let lines = format!("3:cpu:/\n2:memory:/mainstay/podx/{ID}\n1:pids:/mainstay/podx/{ID}/shim\n0::/\n");
        assert_eq!(SandboxCgroup::of_process(&lines).unwrap().part.as_deref(), Some("shim"));
        assert_eq!(SandboxCgroup::of_process("0::/user.slice\n"), None);
    }

    #[test]
    fn a_shim_names_its_data_directory() {
        let command = |directory: &str, socket: &str| {
            data_dir_of_shim(&["/usr/bin/mainstay".to_owned(), "shim".into(), directory.into(), socket.into()])
        };
        let socket = format!("/run/mainstay-0a1b2c3d/s/{ID}");
        assert_eq!(command(&format!("/d/runtime/sandboxes/{ID}"), &socket), Some("/d".into()));
        assert_eq!(command("/d/runtime/sandboxes/other", &socket), None);
        assert_eq!(command(&format!("/d/{ID}"), &socket), None);
        assert_eq!(data_dir_of_shim(&["shim"]), None);
    }

    #[test]
    fn mounts_of_pods_are_distinguished_from_disks_of_the_administrator() {
        let of = |path: &str| data_dir_of_mount(Path::new(path));
        let data_dir = Some(PathBuf::from("/srv/a b"));
        assert_eq!(of(&format!("/srv/a b/runtime/images/rootfs/{ID}/merged")), data_dir);
        assert_eq!(of("/srv/a b/agent/pods/u/volumes/cache"), data_dir);
        assert_eq!(of("/srv/a b/agent/pods/u/subpaths/c/0"), data_dir);
        assert_eq!(of("/srv/a b/agent/attached/1f5f4c1a-8a0f-4f43-a1d1-6c8f3f3b1c11/mount"), data_dir);
        for disk in
            ["/", "/srv/a b", "/srv/a b/runtime", "/srv/a b/runtime/images", "/srv/a b/agent/pods", "/srv/a b/logs"]
        {
            assert_eq!(of(disk), None, "{disk}");
        }
        assert_eq!(
            instance_of_shm(Path::new(&format!("/run/mainstay-0a1b2c3d/shm/{ID}"))).unwrap().name(),
            "mainstay-0a1b2c3d"
        );
        for other in ["/run/shm", "/run/mainstay-0a1b2c3d/shm", "/run/mainstay-x/shm/a", "/dev/shm"] {
            assert_eq!(instance_of_shm(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn instances_differ_by_data_directory() {
        assert_eq!(Instance::of_data_dir(Path::new("/var/lib/mainstay")).name(), "mainstay");
        let (a, b) = (Instance::of_data_dir(Path::new("/a")), Instance::of_data_dir(Path::new("/b")));
        assert!(a != b && a.name().parse() == Ok(a.clone()));
    }
}
