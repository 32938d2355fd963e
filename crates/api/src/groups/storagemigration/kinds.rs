//! `storagemigration.k8s.io/v1`.

use k8s_openapi::api::storagemigration::v1::StorageVersionMigration;

use super::{rules::StorageVersionMigrationRules, table};
use crate::{descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<StorageVersionMigration>()
            .rules::<StorageVersionMigrationRules>()
            .columns(&table::STORAGE_VERSION_MIGRATIONS)
            .status(),
    ]
}
