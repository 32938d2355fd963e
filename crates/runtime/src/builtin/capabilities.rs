//! Which capabilities a container gets: the set that docker and containerd agree on, and what the pod adds and drops.

use caps::{CapSet, Capability, CapsHashSet};

use super::cgroup::Layout;
use crate::spec::Security;

const USUAL: [Capability; 14] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_FSETID,
    Capability::CAP_FOWNER,
    Capability::CAP_MKNOD,
    Capability::CAP_NET_RAW,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_SETFCAP,
    Capability::CAP_SETPCAP,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_KILL,
    Capability::CAP_AUDIT_WRITE,
];

/// Those that this process could pass on.
pub fn available() -> CapsHashSet {
    caps::read(None, CapSet::Bounding).unwrap_or_default()
}

/// As `CAP_…` names, in order. Version 2 of control groups does not keep a container from devices, so there it may not
/// make device nodes unless that is asked for.
pub fn select_capabilities(
    security: &Security,
    available: &CapsHashSet,
    layout: &Layout,
) -> Result<Vec<String>, String> {
    let is_all = |name: &String| name.eq_ignore_ascii_case("all");
    let add = parse(&security.add_capabilities)?;
    let drop = parse(&security.drop_capabilities)?;
    let mut set: CapsHashSet = USUAL.into_iter().collect();
    if matches!(layout, Layout::V2(_)) {
        set.remove(&Capability::CAP_MKNOD);
    }
    if security.privileged || security.add_capabilities.iter().any(is_all) {
        set = caps::all();
    }
    if !security.privileged && security.drop_capabilities.iter().any(is_all) {
        set.clear();
    }
    if !security.privileged {
        set.extend(add);
        set.retain(|capability| !drop.contains(capability));
    }
    let mut names: Vec<String> = set.intersection(available).map(Capability::to_string).collect();
    names.sort();
    Ok(names)
}

fn parse(names: &[String]) -> Result<Vec<Capability>, String> {
    names
        .iter()
        .filter(|name| !name.eq_ignore_ascii_case("all"))
        .map(|name| {
            let upper = name.to_ascii_uppercase();
            let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
            full.parse().map_err(|_| format!("unknown capability {name:?}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(add: &[&str], drop: &[&str]) -> Vec<String> {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let security = Security { add_capabilities: own(add), drop_capabilities: own(drop), ..Default::default() };
        select_capabilities(&security, &caps::all(), &Layout::V1(Vec::new())).unwrap()
    }

    #[test]
    fn the_usual_set_is_of_fourteen() {
        assert_eq!(with(&[], &[]).len(), 14);
    }

    #[test]
    fn all_can_be_dropped_and_some_kept() {
        assert_eq!(with(&["NET_ADMIN", "cap_chown"], &["ALL"]), ["CAP_CHOWN", "CAP_NET_ADMIN"]);
    }

    #[test]
    fn all_can_be_added_and_some_dropped() {
        let set = with(&["ALL"], &["SYS_ADMIN"]);
        assert_eq!(set.len(), caps::all().len() - 1);
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let security = Security { add_capabilities: vec!["FLY".into()], ..Default::default() };
        assert!(select_capabilities(&security, &caps::all(), &Layout::V1(Vec::new())).is_err());
    }

    #[test]
    fn privileged_has_all_that_there_is() {
        let security = Security { privileged: true, drop_capabilities: vec!["ALL".into()], ..Default::default() };
        let have: CapsHashSet = [Capability::CAP_CHOWN, Capability::CAP_BPF].into_iter().collect();
        assert_eq!(select_capabilities(&security, &have, &Layout::V1(Vec::new())).unwrap(), ["CAP_BPF", "CAP_CHOWN"]);
    }
}
