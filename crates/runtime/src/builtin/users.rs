//! Who a container runs as: ids and names, from the pod, the image and the image's own `/etc/passwd` and `/etc/group`.

use std::path::Path;

use super::rootfs_files;
use crate::{idmap::UserNamespace, spec::Security};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// In order, without doubles.
    pub groups: Vec<u32>,
}

/// What the image's files say; empty where it has none.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    pub fn read(root: &Path) -> Self {
        let read = |path: &str| rootfs_files::read(root, path).unwrap_or_default();
        Self { passwd: read("etc/passwd"), group: read("etc/group") }
    }

    /// Name, uid and gid of each.
    fn users(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            Some((name, fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        })
    }

    /// Name, gid and members of each.
    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            Some((name, fields.nth(1)?.parse().ok()?, fields.next().unwrap_or_default()))
        })
    }
}

/// The pod's wish, else the image's (`user`, `uid`, either with `:group`), else root.
pub fn resolve(security: &Security, image: &str, accounts: &Accounts) -> Result<User, String> {
    let (image_user, image_group) = image.split_once(':').map_or((image, None), |(user, group)| (user, Some(group)));
    let asked = match security.run_as_user {
        Some(uid) => id(uid)?.to_string(),
        None if image_user.is_empty() => "0".to_owned(),
        None => image_user.to_owned(),
    };
    let by_number = asked.parse::<u32>().ok();
    let known = accounts.users().find(|(name, uid, _)| by_number.map_or(*name == asked, |number| number == *uid));
    let (uid, own_gid) = match (by_number, known) {
        (_, Some((_, uid, gid))) => (uid, gid),
        (Some(uid), None) => (uid, 0),
        (None, None) => return Err(format!("unable to find user {asked}: no matching entries in passwd file")),
    };
    let gid = match (security.run_as_group, image_group) {
        (Some(gid), _) => id(gid)?,
        (None, Some(group)) if security.run_as_user.is_none() && !group.is_empty() => group_id(group, accounts)?,
        (None, _) => own_gid,
    };
    let mut groups = vec![gid];
    if let (false, Some((name, _, _))) = (security.strict_groups, known) {
        groups.extend(
            accounts
                .groups()
                .filter(|(_, _, members)| members.split(',').any(|member| member == name))
                .map(|(_, gid, _)| gid),
        );
    }
    for gid in &security.supplemental_groups {
        groups.push(id(*gid)?);
    }
    let mut observed = Vec::new();
    groups.retain(|gid| {
        !observed.contains(gid) && {
            observed.push(*gid);
            true
        }
    });
    Ok(User { uid, gid, groups })
}

/// Whether all of a container's ids exist in its pod's user namespace.
pub fn verify_within(user: &User, ids: Option<UserNamespace>) -> Result<(), String> {
    let Some(ids) = ids else { return Ok(()) };
    match [user.uid, user.gid].iter().chain(&user.groups).find(|id| !ids.contains(**id)) {
        None => Ok(()),
        Some(id) => {
            Err(format!("user or group id {id} is not among those of the pod's user namespace: 0-{}", ids.length - 1))
        }
    }
}

fn group_id(group: &str, accounts: &Accounts) -> Result<u32, String> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let known = accounts.groups().find(|(name, _, _)| *name == group);
    known
        .map(|(_, gid, _)| gid)
        .ok_or_else(|| format!("unable to find group {group}: no matching entries in group file"))
}

fn id(number: i64) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("{number} cannot be a user or group id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nworker:x:1234:1235::/srv:/bin/sh\nbroken\n".into(),
            group: "root:x:0:\nworkers:x:1235:\nextra:x:2345:other,worker\n".into(),
        }
    }

    #[test]
    fn the_image_names_its_user_and_the_files_know_its_groups() {
        let user = resolve(&Security::default(), "worker", &accounts()).unwrap();
        assert_eq!(user, User { uid: 1234, gid: 1235, groups: vec![1235, 2345] });
        let user = resolve(&Security::default(), "worker:extra", &accounts()).unwrap();
        assert_eq!((user.uid, user.gid), (1234, 2345));
    }

    #[test]
    fn the_pod_wins_over_the_image() {
        let security = Security {
            run_as_user: Some(1234),
            run_as_group: Some(7),
            supplemental_groups: vec![8, 7],
            ..Default::default()
        };
        assert_eq!(
            resolve(&security, "root:root", &accounts()).unwrap(),
            User { uid: 1234, gid: 7, groups: vec![7, 2345, 8] }
        );
        let strict = Security { strict_groups: true, ..security };
        assert_eq!(resolve(&strict, "", &accounts()).unwrap().groups, [7, 8]);
    }

    #[test]
    fn with_a_user_namespace_ids_beyond_it_are_refused() {
        let ids = Some(UserNamespace { host_id: 65_536, length: 65_536 });
        let user = |uid, group| User { uid, gid: 0, groups: vec![0, group] };
        verify_within(&user(65_535, 65_535), ids).unwrap();
        verify_within(&user(70_000, 0), None).unwrap();
        assert!(verify_within(&user(65_536, 0), ids).unwrap_err().contains("65536 is not among"));
        assert!(verify_within(&user(0, 70_000), ids).unwrap_err().contains("70000"));
    }

    #[test]
    fn a_number_needs_no_entry_and_a_name_does() {
        let user = resolve(&Security::default(), "4000", &accounts()).unwrap();
        assert_eq!(user, User { uid: 4000, gid: 0, groups: vec![0] });
        assert!(resolve(&Security::default(), "nobody", &accounts()).unwrap_err().contains("nobody"));
    }
}
