//! `mainstay restore FILE`.

use anyhow::anyhow;
use mainstay_store::embedded::{self, Existing, RestoreError};

use crate::{
    cli::RestoreOptions,
    exit::Exit,
    store_dir::{self, LinkedStore},
};

pub fn run(options: &RestoreOptions) -> Result<(), Exit> {
    let place = store_dir::prepare(&options.data.path(), options.place.store_dir.as_deref(), LinkedStore::Optional)?;
    let dir = &place.directory;
    let existing = if options.force { Existing::Replace } else { Existing::Refuse };
    match embedded::restore(&options.file, dir, existing) {
        Ok(summary) => {
            place.remember()?;
            println!(
                "Restored {} objects from {} into {}; revisions go on at {}.",
                summary.keys,
                options.file.display(),
                dir.display(),
                summary.revision
            );
            Ok(())
        }
        Err(error @ RestoreError::HoldsData { .. }) => {
            Err(Exit::Refused(anyhow!(error).context("pass --force to replace it (the old store is set aside)")))
        }
        Err(error) => Err(Exit::Refused(anyhow!(error))),
    }
}
