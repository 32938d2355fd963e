//! The directory `services.d`: which of its files are trusted, and what they define.
//!
//! Definitions name programs that the agent runs as root, so a file counts only if it is a regular file of root (or of whoever the agent
//! runs as), in a directory of theirs, and nobody else may write either. A file with a mistake keeps what it said before the mistake,
//! and no other file is concerned.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

use super::definition::{DefinitionError, ServiceDefinition, parse_definitions};

const LARGEST_FILE: u64 = 256 << 10;
const MOST_FILES: usize = 512;
/// Instances of services on one machine; each is an object of the API.
pub const MOST_SERVICES: usize = 256;

/// Why a file does not count.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    #[error("is not trusted: {0}")]
    Untrusted(&'static str),
    #[error("cannot be read: {0}")]
    Read(io::Error),
}

/// What the directory holds: by file name.
pub type Scan = BTreeMap<String, Result<Vec<ServiceDefinition>, FileError>>;

/// Reads all files of the directory whose names end in `.json`. An error is about the directory itself.
pub fn scan(directory: &Path) -> Result<Scan, FileError> {
    let opened = File::options().read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(directory);
    check_trust(&opened.map_err(FileError::Read)?.metadata().map_err(FileError::Read)?, "the directory")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(FileError::Read)? {
        let name = entry.map_err(FileError::Read)?.file_name();
        names.extend(name.into_string().ok().filter(|name| name.ends_with(".json") && !name.starts_with('.')));
    }
    names.sort();
    if names.len() > MOST_FILES {
        tracing::warn!(directory = %directory.display(), files = names.len(), most = MOST_FILES, "too many service files; the last ones are not read");
        names.truncate(MOST_FILES);
    }
    Ok(names.into_iter().map(|name| (name.clone(), read_file(&directory.join(name)))).collect())
}

fn read_file(path: &Path) -> Result<Vec<ServiceDefinition>, FileError> {
    // Neither a link to somebody else's file nor a pipe that is never written.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            return Err(FileError::Untrusted("it is a symbolic link"));
        }
        file => file.map_err(FileError::Read)?,
    };
    let meta = file.metadata().map_err(FileError::Read)?;
    if !meta.is_file() {
        return Err(FileError::Untrusted("it is no regular file"));
    }
    check_trust(&meta, "it")?;
    let mut text = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut text).map_err(FileError::Read)?;
    if text.len() as u64 > LARGEST_FILE {
        let problem = format!("must have at most {LARGEST_FILE} bytes");
        return Err(DefinitionError { field: "file".to_owned(), problem }.into());
    }
    Ok(parse_definitions(&text)?)
}

fn check_trust(meta: &fs::Metadata, what: &'static str) -> Result<(), FileError> {
    let is_directory = what != "it";
    if meta.uid() != 0 && meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(FileError::Untrusted(if is_directory {
            "the directory belongs to another user than root"
        } else {
            "it belongs to another user than root"
        }));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(FileError::Untrusted(if is_directory {
            "the directory may be written by its group or others"
        } else {
            "it may be written by its group or others"
        }));
    }
    Ok(())
}

/// What all files define, and what is wrong with them.
#[derive(Default)]
pub struct ServiceFiles {
    files: BTreeMap<String, FileState>,
}

#[derive(Default)]
struct FileState {
    definitions: Vec<ServiceDefinition>,
    problem: Option<String>,
}

/// A definition and the file it is from.
pub type Defined = (String, ServiceDefinition);

impl ServiceFiles {
    /// Takes in what the directory holds now. Returns the files that are wrong in another way than before, and how.
    pub fn update(&mut self, scan: Scan) -> Vec<(String, String)> {
        let mut complaints = Vec::new();
        self.files.retain(|name, _| scan.contains_key(name));
        for (name, read) in scan {
            let file = self.files.entry(name.clone()).or_default();
            let problem = match read {
                Ok(definitions) => {
                    file.definitions = definitions;
                    None
                }
                // Whoever may write it now may also have written what it said before.
                Err(error @ FileError::Untrusted(_)) => {
                    file.definitions.clear();
                    Some(error.to_string())
                }
                Err(error) if file.definitions.is_empty() => Some(error.to_string()),
                Err(error) => Some(format!("{error} (what it said before still holds)")),
            };
            if let Some(problem) = problem.as_ref().filter(|_| problem != file.problem) {
                complaints.push((name, problem.clone()));
            }
            file.problem = problem;
        }
        complaints
    }

    /// All instances by id; of two with one id the one of the first file counts. And what is wrong, by file.
    pub fn definitions(&self) -> (BTreeMap<String, Defined>, BTreeMap<String, String>) {
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        let mut all = BTreeMap::<String, Defined>::new();
        for (name, file) in &self.files {
            problems.extend(file.problem.clone().map(|problem| (name.clone(), problem)));
            for definition in &file.definitions {
                let id = &definition.id;
                if let Some((first, _)) = all.get(id) {
                    problems.entry(name.clone()).or_insert(format!("id: {id:?} is already that of {first}"));
                } else if all.len() == MOST_SERVICES {
                    problems.entry(name.clone()).or_insert(format!("at most {MOST_SERVICES} services are published"));
                } else {
                    all.insert(id.clone(), (name.clone(), definition.clone()));
                }
            }
        }
        (all, problems)
    }
}

/// Where the definitions of a machine are: `<data-dir>/services.d`. `agent_directory` is `<data-dir>/agent`.
pub fn definitions_directory(agent_directory: &Path) -> PathBuf {
    agent_directory.parent().unwrap_or(agent_directory).join("services.d")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        directory
    }

    fn write(directory: &Path, name: &str, text: &str, mode: u32) {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn ids(files: &ServiceFiles) -> Vec<String> {
        files.definitions().0.into_keys().collect()
    }

    #[test]
    fn files_that_others_may_write_are_not_trusted() {
        let directory = directory();
        let path = directory.path();
        write(path, "good.json", r#"{"name": "good"}"#, 0o644);
        write(path, "group.json", r#"{"name": "group"}"#, 0o664);
        write(path, "all.json", r#"{"name": "all"}"#, 0o646);
        write(path, "notes.txt", "{", 0o644);
        write(path, ".hidden.json", "{", 0o644);
        symlink(path.join("good.json"), path.join("link.json")).unwrap();
        fs::create_dir(path.join("dir.json")).unwrap();
        nix::unistd::mkfifo(&path.join("pipe.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let found = scan(path).unwrap();
        let of = |name: &str| found[name].as_ref().map(Vec::len).map_err(ToString::to_string);
        assert_eq!(of("good.json"), Ok(1));
        assert_eq!(of("group.json"), Err("is not trusted: it may be written by its group or others".to_owned()));
        assert_eq!(of("all.json"), Err("is not trusted: it may be written by its group or others".to_owned()));
        assert_eq!(of("link.json"), Err("is not trusted: it is a symbolic link".to_owned()));
        assert_eq!(of("dir.json"), Err("is not trusted: it is no regular file".to_owned()));
        assert_eq!(of("pipe.json"), Err("is not trusted: it is no regular file".to_owned()));
        assert_eq!(found.len(), 6);
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(scan(path).unwrap_err().to_string().contains("the directory may be written"));
    }

    #[test]
    fn a_file_of_another_user_is_not_trusted() {
        let directory = directory();
        write(directory.path(), "x.json", r#"{"name": "x"}"#, 0o644);
        if std::os::unix::fs::chown(directory.path().join("x.json"), Some(65_534), None).is_err() {
            return; // only root gives files away
        }
        let error = scan(directory.path()).unwrap()["x.json"].as_ref().unwrap_err().to_string();
        assert_eq!(error, "is not trusted: it belongs to another user than root");
    }

    #[test]
    fn a_mistake_keeps_what_was_there_and_concerns_no_other_file() {
        let (directory, mut files) = (directory(), ServiceFiles::default());
        let path = directory.path();
        write(path, "a.json", r#"{"name": "a"}"#, 0o600);
        write(path, "b.json", r#"{"name": "b"}"#, 0o600);
        assert_eq!(files.update(scan(path).unwrap()), []);
        write(path, "a.json", r#"{"name": "a", "port": 99999}"#, 0o600);
        let wrong = "port: must be a number from 1 to 65535 (what it said before still holds)".to_owned();
        assert_eq!(files.update(scan(path).unwrap()), [("a.json".to_owned(), wrong)]);
        assert_eq!(files.update(scan(path).unwrap()), [], "said once");
        assert_eq!(ids(&files), ["a", "b"]);
        fs::set_permissions(path.join("a.json"), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(files.update(scan(path).unwrap()).len(), 1);
        assert_eq!(ids(&files), ["b"], "whoever wrote it");
        fs::remove_file(path.join("a.json")).unwrap();
        files.update(scan(path).unwrap());
        assert!(files.definitions().1.is_empty());
    }

    #[test]
    fn of_two_instances_with_one_id_the_first_counts() {
        let (directory, mut files) = (directory(), ServiceFiles::default());
        write(directory.path(), "1.json", r#"{"name": "a", "port": 1}"#, 0o600);
        write(directory.path(), "2.json", r#"{"services": [{"name": "a", "port": 2}, {"name": "c"}]}"#, 0o600);
        files.update(scan(directory.path()).unwrap());
        let (all, problems) = files.definitions();
        assert_eq!((all["a"].1.port, all.len()), (Some(1), 2));
        assert_eq!(problems["2.json"], "id: \"a\" is already that of 1.json");
    }

    #[test]
    fn a_file_that_never_ends_is_not_read_to_its_end() {
        let directory = directory();
        write(directory.path(), "huge.json", "", 0o600);
        let file = File::options().write(true).open(directory.path().join("huge.json")).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = scan(directory.path()).unwrap()["huge.json"].as_ref().unwrap_err().to_string();
        assert!(error.starts_with("file: must have at most"), "{error}");
    }
}
