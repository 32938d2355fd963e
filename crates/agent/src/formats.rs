//! Formats of everything that an agent keeps on disk, and the check that this program can read all of it.
//!
//! The check comes before anything of a data directory is used: several parts take what they cannot read for damaged, begin anew and
//! remove it, which must not happen to what a later version wrote.

use std::{fs, io, path::Path};

use mainstay_files::Format;
use mainstay_runtime::builtin;

use crate::{
    devices, heal, host_services, join, leftovers::InstanceRecord, machine_files, machine_steps::record_file, objects,
    services, settings::Settings, sources,
};

/// Of each kind of record the newest format that this program reads.
pub fn formats() -> Vec<Format> {
    let own = [
        sources::checkpoints::FORMAT,
        heal::record::FORMAT,
        services::checkpoint::FORMAT,
        objects::checkpoint::FORMAT,
        mainstay_network::journal::FORMAT,
        InstanceRecord::FORMAT,
        join::FORMAT,
        devices::record::FORMAT,
        record_file::FORMAT,
        machine_files::record::FORMAT,
        host_services::reports::FORMAT,
    ];
    builtin::FORMATS.into_iter().chain(own).collect()
}

/// Fails with the path and what can read it if there is anything of a newer format. Changes nothing.
pub fn check_formats(settings: &Settings) -> io::Result<()> {
    builtin::check_formats(&settings.runtime_directory)?;
    let (directory, run_directory) = (&settings.directory, settings.run_directory());
    check_all(&directory.join("checkpoints"), sources::checkpoints::FORMAT)?;
    check_all(&directory.join("services"), services::checkpoint::FORMAT)?;
    check_all(&devices::record::directory(settings), devices::record::FORMAT)?;
    check_all(&objects::checkpoint_directory(settings), objects::checkpoint::FORMAT)?;
    record_file::FORMAT.check_file(&record_file::path(settings))?;
    machine_files::record::FORMAT.check_file(&machine_files::record::path(settings))?;
    host_services::reports::FORMAT.check_file(&host_services::reports::record_path(directory))?;
    for pod in fs::read_dir(directory.join("pods")).into_iter().flatten().flatten() {
        heal::record::FORMAT.check_file(&pod.path().join("heal.json"))?;
    }
    mainstay_network::journal::FORMAT.check_file(&directory.join("network/addresses.json"))?;
    InstanceRecord::FORMAT.check_file(&run_directory.join("instance.json"))
}

fn check_all(directory: &Path, format: Format) -> io::Result<()> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files
        .filter(|file| file.file_type().is_ok_and(|kind| kind.is_file()))
        .try_for_each(|file| format.check_file(&file.path()))
}
