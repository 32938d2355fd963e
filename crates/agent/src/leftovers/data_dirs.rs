//! The data directories of all Mainstay instances on this machine. The image `host` shows none of them: they hold Secrets and keys.
//!
//! A running instance is found by its lock ([`locks`]), one that was stopped by the record in its run directory
//! ([`InstanceRecord`]), and the stock directory always. Not found is a stopped instance outside the stock directory that never ran
//! pods, or not since the machine's last start.
//!
//! What a process shows of itself is not trusted, or a container that locks its own `/usr/mainstay.pid` could hide the machine's
//! `/usr`: the locked file must be the one at that path on this machine, and belong to the owner of its directory.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    InstanceRecord,
    locks::{self, Holder, LOCK_FILE},
    names::STOCK_DATA_DIR,
    observe::named_directories,
};

/// Every data directory, and directories elsewhere that it links to.
pub fn find_data_dirs() -> io::Result<Vec<PathBuf>> {
    let mut data_dirs = BTreeSet::from([PathBuf::from(STOCK_DATA_DIR)]);
    data_dirs.extend(locks::find()?.into_iter().filter(is_genuine).map(|holder| holder.data_dir));
    for (instance, _) in named_directories(Path::new("/run"))? {
        data_dirs.extend(InstanceRecord::read(&instance).map(|record| record.data_dir));
    }
    // A directory shown in the place of a link would hide what the link leads to; one that is missing needs no hiding.
    let data_dirs: BTreeSet<PathBuf> =
        data_dirs.iter().filter_map(|data_dir| fs::canonicalize(data_dir).ok()).collect();
    // The root directory would hide everything, and is no data directory.
    let data_dirs: Vec<PathBuf> = data_dirs.into_iter().filter(|data_dir| data_dir.parent().is_some()).collect();
    let linked: Vec<PathBuf> = data_dirs.iter().flat_map(|data_dir| linked_directories(data_dir)).collect();
    Ok(data_dirs.into_iter().chain(linked).collect())
}

/// Whether the lock is on the file that this machine has at that path.
fn is_genuine(holder: &Holder) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino(), found.uid()));
    let (Ok(locked), Ok(at_path)) = (identity(&holder.descriptor), identity(&holder.data_dir.join(LOCK_FILE))) else {
        return false;
    };
    locked == at_path && fs::metadata(&holder.data_dir).is_ok_and(|directory| directory.uid() == locked.2)
}

/// Where symbolic links in a data directory lead: an administrator may have put the store on another disk. Only to what belongs to the
/// same user, so that nobody hides what is not theirs.
fn linked_directories(data_dir: &Path) -> Vec<PathBuf> {
    let Ok(owner) = fs::metadata(data_dir).map(|found| found.uid()) else { return Vec::new() };
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let targets = links.filter_map(|link| fs::canonicalize(link.path()).ok());
    let is_theirs = |target: &PathBuf| fs::metadata(target).is_ok_and(|found| found.is_dir() && found.uid() == owner);
    targets.filter(|target| target.parent().is_some()).filter(is_theirs).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::symlink};

    use super::*;
    use crate::leftovers::Instance;

    #[test]
    fn a_running_instance_is_found_by_its_lock_with_a_store_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (data_dir, store) = (dir.path().canonicalize().unwrap(), tempfile::tempdir().unwrap());
        let store = store.path().canonicalize().unwrap();
        symlink(&store, data_dir.join("store")).unwrap();
        symlink("/no/such", data_dir.join("broken")).unwrap();
        let lock = File::create(data_dir.join(LOCK_FILE)).unwrap();
        lock.lock().unwrap();
        let found = find_data_dirs().unwrap();
        assert!(found.contains(&data_dir) && found.contains(&store), "{found:?}");
        drop(lock);
        assert!(!find_data_dirs().unwrap().contains(&data_dir));
    }

    #[test]
    fn a_stopped_instance_is_found_by_its_record() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().canonicalize().unwrap();
        let link = data_dir.join("moved");
        symlink(&data_dir, &link).unwrap();
        let instance = Instance::of_data_dir(&link);
        InstanceRecord { data_dir: link.clone(), runtime: "builtin".to_owned() }.write(&instance).unwrap();
        let found = find_data_dirs();
        fs::remove_dir_all(instance.run_dir()).unwrap();
        let found = found.unwrap();
        assert!(found.contains(&data_dir), "the directory itself, not a link to it: {found:?}");
        assert!(!found.contains(&link), "{found:?}");
    }

    #[test]
    fn a_process_cannot_claim_a_directory_that_has_no_such_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().canonicalize().unwrap();
        let locked = data_dir.join(LOCK_FILE);
        File::create(&locked).unwrap();
        let holder = |data_dir: &Path| Holder { pid: 1, data_dir: data_dir.to_owned(), descriptor: locked.clone() };
        assert!(is_genuine(&holder(&data_dir)));
        assert!(!is_genuine(&holder(Path::new("/usr"))), "as a container sees its own file");
        std::os::unix::fs::chown(&locked, Some(12345), None).unwrap();
        assert!(!is_genuine(&holder(&data_dir)), "a lock file in a directory of somebody else, such as /var/tmp");
    }

    #[test]
    fn a_link_to_what_belongs_to_another_user_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(12345), None).unwrap();
        symlink("/usr", dir.path().join("store")).unwrap();
        symlink("/", dir.path().join("root")).unwrap();
        assert_eq!(linked_directories(dir.path()), Vec::<PathBuf>::new());
    }
}
