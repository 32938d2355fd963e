//! Which host ids a pod with `hostUsers: false` gets: a block of 65536, from 65536 on, as upstream's kubelet gives them.
//!
//! A block is a file in a directory of the whole machine, named by its number and created exclusively: no two pods have
//! the same one, whichever agent they belong to. It lasts as long as the pod does, restarts of the agent included. After a restart of
//! the machine nothing runs and all blocks are free; volumes hold ids as the pod sees them, so another block is as good.

use std::{
    collections::BTreeSet,
    fs, io,
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use mainstay_runtime::{
    PodUid,
    idmap::{IDS_PER_POD, UserNamespace},
};
use parking_lot::Mutex;

/// Below 65536 are the machine's own ids; the last block holds the ids that mean "nobody" and "none".
const FIRST: u32 = 1;
const LAST: u32 = u32::MAX / IDS_PER_POD - 1;

pub struct UserIds {
    directory: PathBuf,
    instance: String,
    allocating: Mutex<()>,
}

impl UserIds {
    pub fn of_machine(instance: &str) -> Self {
        Self::new(Path::new("/run/mainstay-user-ids"), instance)
    }

    fn new(directory: &Path, instance: &str) -> Self {
        Self { directory: directory.to_owned(), instance: instance.to_owned(), allocating: Mutex::default() }
    }

    /// The pod's block: the one it has, or the first that is free. Blocks of this agent's pods that are not among `live` are given back.
    pub fn allocate(&self, pod: &PodUid, live: &BTreeSet<PodUid>) -> io::Result<UserNamespace> {
        let _alone = self.allocating.lock();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut taken = BTreeSet::new();
        for (block, owner) in self.blocks()? {
            match owner {
                Some(uid) if uid == *pod => return Ok(namespace(block)),
                Some(uid) if !live.contains(&uid) => fs::remove_file(self.file(block))?,
                Some(_) | None => drop(taken.insert(block)),
            }
        }
        for block in (FIRST..=LAST).filter(|block| !taken.contains(block)) {
            match fs::File::create_new(self.file(block)) {
                Ok(mut file) => {
                    file.write_all(format!("{}\n{pod}\n", self.instance).as_bytes())?;
                    return Ok(namespace(block));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // another agent's, just now
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("all blocks of user ids are taken"))
    }

    /// Gives back all blocks of this agent's pods.
    pub fn release_all(&self) -> io::Result<()> {
        for (block, owner) in self.blocks()? {
            if owner.is_some() {
                fs::remove_file(self.file(block))?;
            }
        }
        let _ = fs::remove_dir(&self.directory); // others' may be left
        Ok(())
    }

    /// All blocks that are taken, with the pod if it is this agent's.
    fn blocks(&self) -> io::Result<Vec<(u32, Option<PodUid>)>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut blocks = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            let Some(block) = number else { continue };
            let text = fs::read_to_string(&path).unwrap_or_default();
            let owner = text.split_once('\n').filter(|(instance, _)| *instance == self.instance);
            blocks.push((block, owner.map(|(_, uid)| PodUid(uid.trim().to_owned()))));
        }
        Ok(blocks)
    }

    fn file(&self, block: u32) -> PathBuf {
        self.directory.join(block.to_string())
    }
}

fn namespace(block: u32) -> UserNamespace {
    UserNamespace { host_id: block * IDS_PER_POD, length: IDS_PER_POD }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> PodUid {
        PodUid(name.to_owned())
    }

    #[test]
    fn two_pods_never_share_ids_and_a_pod_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let live: BTreeSet<_> = ["a", "b", "c"].map(uid).into();
        let ids = UserIds::new(dir.path(), "one");
        let a = ids.allocate(&uid("a"), &live).unwrap();
        assert_eq!((a.host_id, a.length), (65_536, 65_536));
        assert_eq!(ids.allocate(&uid("b"), &live).unwrap().host_id, 131_072);
        // Another agent of the same machine, and this one after a restart.
        let other = UserIds::new(dir.path(), "two");
        assert_eq!(other.allocate(&uid("x"), &[uid("x")].into()).unwrap().host_id, 196_608);
        let again = UserIds::new(dir.path(), "one");
        assert_eq!(again.allocate(&uid("a"), &live).unwrap(), a);
        // What is over is given to the next.
        let live: BTreeSet<_> = ["a", "c"].map(uid).into();
        assert_eq!(again.allocate(&uid("c"), &live).unwrap().host_id, 131_072);
        again.release_all().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the other agent's stays");
        other.release_all().unwrap();
        assert!(!dir.path().exists());
    }
}
