//! Where the embedded store lies: `store` in the data directory, or a directory of its own (`--store-dir`).
//!
//! A store elsewhere is linked to from `store` in the data directory once it is there, so that later starts, backups and
//! restores find it without the flag. A link whose target holds no store is refused: its file system is probably not
//! mounted, and an empty cluster would start in its place.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use mainstay_files::create_private_dir;

use crate::exit::Exit;

/// The file by which a directory is known to hold a store.
const DATABASE: &str = "store.db";

/// A store's directory that may be used, and the link that is still to be made.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreLocation {
    pub directory: PathBuf,
    link: Option<PathBuf>,
}

/// Whether the directory may lack a store that the data directory links to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkedStore {
    /// Somebody starts: it has to be there.
    Required,
    /// It is about to be restored.
    Optional,
}

/// Without looking: for reading what is there.
pub fn locate(data_dir: &Path, named: Option<&Path>) -> PathBuf {
    named.map_or_else(|| data_dir.join("store"), Path::to_owned)
}

/// The directory to open, private and not at odds with where the data directory had its store before.
pub fn prepare(data_dir: &Path, named: Option<&Path>, linked: LinkedStore) -> Result<StoreLocation, Exit> {
    let place = plan(data_dir, named, linked)?;
    let shown = place.directory.display().to_string();
    create_private_dir(&place.directory).with_context(|| format!("create the store's directory {shown}"))?;
    Ok(place)
}

impl StoreLocation {
    /// Makes later commands find the store. For once it is there.
    pub fn remember(&self) -> Result<(), Exit> {
        let Some(link) = &self.link else { return Ok(()) };
        let made = symlink(&self.directory, link);
        made.with_context(|| format!("link {} to --store-dir {}", link.display(), self.directory.display()))?;
        Ok(())
    }
}

fn plan(data_dir: &Path, named: Option<&Path>, linked: LinkedStore) -> Result<StoreLocation, Exit> {
    let usual = data_dir.join("store");
    let target = fs::read_link(&usual).ok();
    if let Some(target) = target.as_ref().filter(|_| linked == LinkedStore::Required && !usual.join(DATABASE).exists())
    {
        return Err(Exit::Refused(anyhow!(
            "the store of --data-dir {} is at {}, which holds none: mount its file system, restore a backup, or remove the link {}",
            data_dir.display(),
            target.display(),
            usual.display()
        )));
    }
    let Some(named) = named else { return Ok(StoreLocation { directory: usual, link: None }) };
    let directory = std::path::absolute(named).with_context(|| format!("--store-dir {}", named.display()))?;
    let same =
        |other: &Path| matches!((fs::canonicalize(&directory), fs::canonicalize(other)), (Ok(a), Ok(b)) if a == b);
    if same(&usual) || target.as_ref() == Some(&directory) {
        return Ok(StoreLocation { directory, link: None });
    }
    match fs::symlink_metadata(&usual) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // An empty one may go.
        Ok(found) if found.is_dir() && fs::remove_dir(&usual).is_ok() => {}
        _ => {
            return Err(Exit::Refused(anyhow!(
                "--store-dir {}: --data-dir {} has its store at {}; stop the server, move that directory to the new place, and start again",
                directory.display(),
                data_dir.display(),
                target.unwrap_or(usual).display()
            )));
        }
    }
    Ok(StoreLocation { directory, link: Some(usual) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refusal(result: Result<StoreLocation, Exit>) -> String {
        match result {
            Err(Exit::Refused(error)) => error.to_string(),
            Err(_) => panic!("not refused but failed"),
            Ok(place) => panic!("{place:?}"),
        }
    }

    fn prepared(data: &Path, named: Option<&Path>) -> StoreLocation {
        match prepare(data, named, LinkedStore::Required) {
            Ok(place) => place,
            Err(Exit::Refused(error) | Exit::Failed(error)) => panic!("{error:#}"),
            Err(Exit::Usage(error)) => panic!("{error}"),
            Err(Exit::Code(code)) => panic!("{code}"),
        }
    }

    #[test]
    fn a_store_elsewhere_is_private_and_found_without_the_flag() {
        let (data, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (data, elsewhere) = (data.path(), disk.path().join("store"));
        let place = prepared(data, Some(&elsewhere));
        assert_eq!(place.directory, elsewhere);
        assert_eq!(fs::metadata(&elsewhere).unwrap().permissions().mode() & 0o7777, 0o700);
        fs::write(elsewhere.join(DATABASE), "").unwrap();
        assert!(place.remember().is_ok());
        assert_eq!(fs::canonicalize(locate(data, None)).unwrap(), fs::canonicalize(&elsewhere).unwrap());
        assert_eq!(prepared(data, None).link, None);
        assert_eq!(prepared(data, Some(&elsewhere)).link, None, "naming it again is no change");
    }

    #[test]
    fn two_stores_of_one_data_directory_are_refused() {
        let (data, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(data.path().join("store")).unwrap();
        assert!(prepared(data.path(), Some(disk.path())).link.is_some(), "an empty directory is no store");
        fs::create_dir(data.path().join("store")).unwrap();
        fs::write(data.path().join("store").join(DATABASE), "").unwrap();
        let why = refusal(prepare(data.path(), Some(disk.path()), LinkedStore::Required));
        assert!(why.contains("--store-dir") && why.contains("move that directory"), "{why}");
        assert_eq!(prepared(data.path(), Some(&data.path().join("store"))).link, None);
    }

    #[test]
    fn a_link_to_a_file_system_that_is_not_mounted_does_not_start_an_empty_cluster() {
        let (data, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(disk.path(), data.path().join("store")).unwrap();
        for named in [None, Some(disk.path())] {
            let why = refusal(prepare(data.path(), named, LinkedStore::Required));
            assert!(why.contains("mount its file system") && why.contains(disk.path().to_str().unwrap()), "{why}");
        }
        assert!(prepare(data.path(), None, LinkedStore::Optional).is_ok());
    }
}
