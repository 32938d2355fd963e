//! Container logs: reads, follows, rotates and removes the files that runtimes write.
//!
//! [`path`] says where logs lie, [`line`] what is in them, [`options`] what a reader asks for; [`tail`]
//! finds where to begin, [`read`] delivers, [`rotate`] throws away.

pub mod line;
pub mod options;
pub mod path;
pub mod read;
pub mod rotate;
mod tail;

pub use options::Options;

/// Removes all logs of a pod that is gone.
pub async fn remove(logs: &std::path::Path, pod: &mainstay_runtime::PodUid) {
    let Ok(mut entries) = tokio::fs::read_dir(logs).await else { return };
    while let Ok(Some(entry)) = entries.next_entry().await {
        let directory = entry.path();
        if path::pod_of(&directory).is_some_and(|(.., uid)| uid == pod.0)
            && let Err(error) = tokio::fs::remove_dir_all(&directory).await
        {
            tracing::warn!(%error, directory = %directory.display(), "cannot remove the logs of a pod that is gone");
        }
    }
}
