//! The cluster's timings as this node last knew them, for a start while no server answers.

use std::{collections::BTreeMap, fs, path::Path};

use mainstay_api::node_loss::Timing;
use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};

/// What a server has just said, else what one said last, else the stock ones. `directory` is the agent's.
pub fn last_known_timing(directory: &Path, said: Option<Timing>) -> Timing {
    let file = directory.join("timing.json");
    let Some(timing) = said else {
        let kept: Option<BTreeMap<String, String>> =
            fs::read(file).ok().and_then(|content| serde_json::from_slice(&content).ok());
        let kept = kept.map(|kept| Timing::from_settings(&kept)).filter(|timing| timing.check().is_ok());
        return kept.unwrap_or_default();
    };
    let settings: BTreeMap<&str, String> =
        timing.to_settings().into_iter().map(|(_, key, value)| (key, value)).collect();
    let written = create_private_dir(directory)
        .and_then(|_| write_atomic(&file, &serde_json::to_vec(&settings)?, PRIVATE_FILE, Durability::Durable));
    if let Err(error) = written {
        tracing::warn!(file = %file.display(), %error, "cannot keep the cluster's timings for a start without a server");
    }
    timing
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timings_are_those_of_the_cluster_then_the_last_known_then_stock() {
        let directory = tempfile::tempdir().unwrap();
        let known = |said| last_known_timing(directory.path(), said);
        assert_eq!(known(None), Timing::default());
        let slower = Timing {
            heartbeat: Duration::from_secs(3),
            fence_after: Duration::from_secs(9),
            unknown_after: Duration::from_secs(12),
            toleration: Duration::from_secs(60),
        };
        assert_eq!(known(Some(slower)), slower);
        assert_eq!(known(None), slower);
        fs::write(directory.path().join("timing.json"), "{").unwrap();
        assert_eq!(known(None), Timing::default());
    }
}
