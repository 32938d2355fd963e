//! Rotates container logs, which a CRI runtime only writes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use super::{Inner, label, proto};
use crate::{observed::ContainerId, spec::LogLimit};

impl Inner {
    pub(super) async fn rotate_logs(&self, containers: &[proto::Container]) {
        for container in containers.iter().filter(|c| c.state() == proto::ContainerState::ContainerRunning) {
            let Some(limit) = label::log_limit(&container.annotations) else { continue };
            let Ok(details) = self.details(container).await else { continue };
            let path = PathBuf::from(details.status.log_path);
            let full = tokio::fs::metadata(&path).await.is_ok_and(|file| file.len() > limit.bytes);
            if !full {
                continue;
            }
            if let Err(error) = self.rotate(&ContainerId(container.id.clone()), &path, limit).await {
                tracing::warn!(path = %path.display(), error, "cannot rotate a container log");
            }
        }
    }

    async fn rotate(&self, id: &ContainerId, path: &Path, limit: LogLimit) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let aside = rotated_path(path, Timestamp::now());
        tokio::fs::rename(path, &aside).await.map_err(text)?;
        if let Err(error) = self.client.reopen_log(id).await {
            // What is written meanwhile still goes to the file: it gets its name back, and later is another try.
            tokio::fs::rename(&aside, path).await.map_err(text)?;
            return Err(error.to_string());
        }
        for old in files_to_remove(path, &names(path).map_err(text)?, limit.files) {
            tokio::fs::remove_file(old).await.map_err(text)?;
        }
        Ok(())
    }
}

/// Names sort as their times do.
fn rotated_path(path: &Path, now: Timestamp) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(now.strftime(".%Y%m%d-%H%M%S-%9f").to_string());
    name.into()
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The oldest of those set aside, beyond what is kept beside the current one.
fn files_to_remove(path: &Path, names: &[String], files: u32) -> Vec<PathBuf> {
    let prefix = path.file_name().map(|name| format!("{}.", name.to_string_lossy())).unwrap_or_default();
    let mut aside: Vec<&String> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
    aside.sort();
    let keep = files.saturating_sub(1) as usize;
    let old = &aside[..aside.len().saturating_sub(keep)];
    old.iter().map(|name| path.with_file_name(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_parsed_from_the_file_name() {
        let now = "2024-05-06T07:08:09.5Z".parse().expect("a time");
        assert_eq!(rotated_path(Path::new("/l/0.log"), now), Path::new("/l/0.log.20240506-070809-500000000"));
    }

    #[test]
    fn the_oldest_go_and_other_files_stay() {
        let names = ["0.log", "0.log.3", "0.log.1", "0.log.2", "1.log", "1.log.1"].map(str::to_owned);
        let path = Path::new("/l/0.log");
        assert_eq!(files_to_remove(path, &names, 3), [Path::new("/l/0.log.1")]);
        assert_eq!(files_to_remove(path, &names, 1).len(), 3);
        assert!(files_to_remove(path, &names, 9).is_empty());
    }
}
