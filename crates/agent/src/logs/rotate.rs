//! Log rotation: removes rotated log files beyond the allowed number and age.

use std::{io, path::Path, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use mainstay_runtime::{ContainerStatus, Runtime, spec::LogLimit};
use tokio_util::sync::CancellationToken;

use super::path;

/// How often old files are looked for.
const LOOK: Duration = Duration::from_secs(10);
/// Files set aside are kept no longer.
const KEEP: SignedDuration = SignedDuration::from_hours(7 * 24);

pub struct Rotation {
    pub runtime: Arc<dyn Runtime>,
    pub limit: LogLimit,
}

impl Rotation {
    pub async fn run(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            match self.runtime.observe(None).await {
                Ok(observed) => {
                    for container in &observed.containers {
                        self.container(container);
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot look at logs"),
            }
        }
    }

    fn container(&self, container: &ContainerStatus) {
        let log = &container.log_path;
        if log.as_os_str().is_empty() {
            return;
        }
        if let Err(error) = clean(log, &self.limit, Timestamp::now()) {
            tracing::warn!(%error, log = %log.display(), uid = %container.pod.uid, "cannot remove old log files");
        }
    }
}

/// Removes files set aside that are too many or too old.
pub fn clean(log: &Path, limit: &LogLimit, now: Timestamp) -> io::Result<()> {
    let files = path::set_aside(log)?;
    let surplus = files.len().saturating_sub(limit.files.saturating_sub(1) as usize);
    for (index, file) in files.iter().enumerate() {
        let modified = || std::fs::metadata(file)?.modified();
        let old =
            || modified().ok().and_then(|m| Timestamp::try_from(m).ok()).is_some_and(|m| now.duration_since(m) > KEEP);
        if index < surplus || old() {
            mainstay_files::remove_file_if_exists(file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_files_go_by_number_and_by_age() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("0.log");
        let now = Timestamp::now();
        let aside: Vec<_> = (0..7).map(|n| path::aside(&log, now + SignedDuration::from_secs(n))).collect();
        for file in aside.iter().chain([&log]) {
            std::fs::write(file, "").unwrap();
        }
        clean(&log, &LogLimit::default(), now).unwrap();
        assert_eq!(path::set_aside(&log).unwrap(), aside[3..]);
        clean(&log, &LogLimit::default(), now + KEEP + SignedDuration::from_secs(60)).unwrap();
        assert_eq!(path::set_aside(&log).unwrap(), Vec::<std::path::PathBuf>::new());
        assert!(log.exists());
    }
}
