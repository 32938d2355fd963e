//! Where the logs of containers lie: `<log directory>/<namespace>_<name>_<uid>/<container>/<attempt>.log`,
//! as other tools that collect logs expect them. A file that is full is set aside as `<attempt>.log.<time>`.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The directory of all containers of a pod. Namespaces and names hold no underscore, so it is unambiguous.
pub fn pod_directory(logs: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    logs.join(format!("{namespace}_{name}_{uid}"))
}

/// Whose directory this is: namespace, name, uid.
pub fn pod_of(directory: &Path) -> Option<(&str, &str, &str)> {
    let mut parts = directory.file_name()?.to_str()?.splitn(3, '_');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// The log of one run of a container, the whole path.
pub fn container_log(pod_directory: &Path, container: &str, attempt: u32) -> PathBuf {
    pod_directory.join(container).join(format!("{attempt}.log"))
}

/// Which run of its container wrote this file, be it the current one or one set aside.
pub fn attempt_of(log: &Path) -> Option<u32> {
    log.file_name()?.to_str()?.split_once(".log")?.0.parse().ok()
}

/// The name under which a full log file is set aside; names sort as their times do.
pub fn aside(log: &Path, time: jiff::Timestamp) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{}", time.strftime("%Y%m%d-%H%M%S-%9f")));
    PathBuf::from(name)
}

/// The files that hold one log, oldest first, the current one last. The current one need not exist.
pub fn files(log: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = set_aside(log)?;
    files.push(log.to_owned());
    Ok(files)
}

/// The files of a log that were set aside, oldest first.
pub fn set_aside(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let suffix =
            entry.file_name().to_str().and_then(|n| n.strip_prefix(name)?.strip_prefix('.').map(str::to_owned));
        if suffix.is_some_and(|s| s.starts_with(|c: char| c.is_ascii_digit())) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_parsed_from_the_path_of_its_log() {
        let directory = pod_directory(Path::new("/logs"), "default", "web-0", "1234-5678");
        assert_eq!(directory, Path::new("/logs/default_web-0_1234-5678"));
        assert_eq!(pod_of(&directory), Some(("default", "web-0", "1234-5678")));
        let log = container_log(&directory, "nginx", 3);
        assert_eq!(log, Path::new("/logs/default_web-0_1234-5678/nginx/3.log"));
        assert_eq!(attempt_of(&log), Some(3));
        assert_eq!(attempt_of(&aside(&log, jiff::Timestamp::UNIX_EPOCH)), Some(3));
    }

    #[test]
    fn files_set_aside_come_in_the_order_of_their_times() {
        let directory = tempfile::tempdir().unwrap();
        let log = container_log(directory.path(), "c", 1);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let time = |seconds| jiff::Timestamp::from_second(seconds).unwrap();
        let (old, new) = (aside(&log, time(1_700_000_000)), aside(&log, time(1_700_000_001)));
        for file in [&new, &old, &log, &container_log(directory.path(), "c", 11), &log.with_extension("log.tmp")] {
            std::fs::write(file, "").unwrap();
        }
        assert_eq!(files(&log).unwrap(), [old, new, log]);
    }
}
