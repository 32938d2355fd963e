//! Format numbers of a data directory: what this program reads, what is there, and `mainstay check-data`.
//!
//! `formats.json` says which formats have been written into the directory and by which version; records say theirs themselves
//! (`mainstay_files::Format`). Every start compares both with what this program reads before it uses or changes anything, and is
//! refused if something is newer. The file also covers what bears no number of its own: certificates and images.
//! A kind of record that this program does not know is no reason to refuse: what must not be ignored raises the number of the list itself.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use mainstay_files::{Durability, Format, NewerFormat, PRIVATE_FILE, write_atomic};
use mainstay_store::embedded;
use serde::{Deserialize, Serialize};

use crate::{cli::CheckDataOptions, exit::Exit, machine, readiness::ProcessReport};

/// Of the list itself.
const LIST: Format = Format::new("the list of formats", 1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FormatList {
    /// The newest that was ever written here, by kind of record.
    formats: BTreeMap<String, u32>,
}

fn known() -> Vec<Format> {
    let server = [
        ProcessReport::FORMAT,
        embedded::FORMAT,
        mainstay_server::storage::format::FORMAT,
        mainstay_server::pki::FORMAT,
    ];
    mainstay_agent::formats::formats().into_iter().chain(server).collect()
}

fn list_file(data_dir: &Path) -> PathBuf {
    data_dir.join("formats.json")
}

/// Refuses a data directory that a later version has written to. Changes nothing, and may run beside the process that uses it.
pub fn check(data_dir: &Path) -> Result<(), Exit> {
    let refused = |error: anyhow::Error| Exit::Refused(error.context(format!("--data-dir {}", data_dir.display())));
    let (found, written_by) = read_list(data_dir).map_err(|error| refused(error.into()))?;
    compare(&found, written_by.as_deref(), &known()).map_err(|newer| refused(newer.into()))?;
    embedded::check_readable(&data_dir.join("store/store.db")).map_err(|error| refused(error.into()))?;
    mainstay_agent::formats::check_formats(&machine::directory_settings(data_dir))
        .map_err(|error| refused(error.into()))
}

fn read_list(data_dir: &Path) -> io::Result<(FormatList, Option<String>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Writer {
        written_by: Option<String>,
    }
    let file = list_file(data_dir);
    LIST.check_file(&file)?;
    let text = match fs::read(&file) {
        // From before there were numbers, or nothing is there yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        text => text?,
    };
    let writer = serde_json::from_slice::<Writer>(&text).ok().and_then(|writer| writer.written_by);
    let list = LIST.decode(&text).unwrap_or_else(|error| {
        tracing::warn!(file = %file.display(), %error, "the list of formats cannot be read; the records say theirs themselves");
        FormatList::default()
    });
    Ok((list, writer))
}

fn compare(found: &FormatList, written_by: Option<&str>, known: &[Format]) -> Result<(), NewerFormat> {
    known.iter().try_for_each(|format| {
        let number = found.formats.get(format.name).copied().unwrap_or(1);
        format.check_number(number, written_by.map(str::to_owned))
    })
}

/// Records what this program writes from now on. A full disk does not keep it from starting.
pub fn record(data_dir: &Path) {
    let write = || -> io::Result<()> {
        let (found, written_by) = read_list(data_dir)?;
        let list = raised(&found, &known());
        if list == found && written_by.as_deref() == Some(mainstay_files::VERSION) {
            return Ok(());
        }
        write_atomic(&list_file(data_dir), &LIST.encode(&list)?, PRIVATE_FILE, Durability::Durable)
    };
    if let Err(error) = write() {
        tracing::warn!(file = %list_file(data_dir).display(), %error, "cannot record which formats are used here");
    }
}

/// Numbers only rise: what was written once may still be there.
fn raised(found: &FormatList, known: &[Format]) -> FormatList {
    let mut list = found.clone();
    for format in known {
        let number = list.formats.entry(format.name.to_owned()).or_default();
        *number = (*number).max(format.number);
    }
    list
}

/// `mainstay check-data`: for `mainstay upgrade`, which runs it from the program that is to take over.
pub fn run(options: &CheckDataOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    if let Err(error) = fs::read_dir(&data_dir) {
        return Err(Exit::Failed(anyhow!(error).context(format!("read --data-dir {}", data_dir.display()))));
    }
    check(&data_dir)?;
    println!("Mainstay {} reads everything in {}.", mainstay_files::VERSION, data_dir.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use mainstay_testing::format_fixture;

    use super::*;

    fn refusal(data_dir: &Path) -> String {
        match check(data_dir) {
            Err(Exit::Refused(error)) => mainstay_errors::error_chain(error.as_ref()),
            Err(_) => panic!("another failure"),
            Ok(()) => panic!("accepted"),
        }
    }

    #[test]
    fn what_this_version_writes_is_what_the_first_wrote() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/format-1/formats.json");
        let list: FormatList = LIST.decode(&fs::read(fixture).unwrap()).unwrap();
        format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/formats.json", &LIST.encode(&list).unwrap());
        let known = known();
        let is_known = |name: &str| known.iter().any(|format| format.name == name);
        assert!(list.formats.keys().all(|name| is_known(name)), "what was written once is read for ever");
    }

    #[test]
    fn numbers_rise_and_a_kind_that_is_unknown_stays_listed() {
        let found = FormatList { formats: BTreeMap::from([("a".to_owned(), 3), ("c".to_owned(), 9)]) };
        let known = [Format::new("a", 2), Format::new("b", 1)];
        let raised: Vec<_> = raised(&found, &known).formats.into_iter().collect();
        assert_eq!(raised, [("a".to_owned(), 3), ("b".to_owned(), 1), ("c".to_owned(), 9)]);
        let newer = compare(&found, Some("9.0.0"), &known).unwrap_err();
        assert_eq!((newer.name.as_str(), newer.found, newer.known), ("a", 3, 2));
    }

    #[test]
    fn a_newer_list_or_record_is_refused_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path()).is_ok(), "an empty directory is nobody's");
        record(dir.path());
        assert!(check(dir.path()).is_ok());
        let sandbox = dir.path().join("runtime/sandboxes/s/sandbox.json");
        fs::create_dir_all(sandbox.parent().unwrap()).unwrap();
        let newer = r#"{"format":4,"writtenBy":"9.9.9","everything":"new"}"#;
        fs::write(&sandbox, newer).unwrap();
        let text = refusal(dir.path());
        assert!(text.contains("sandbox.json") && text.contains("use Mainstay 9.9.9"), "{text}");
        assert_eq!(fs::read_to_string(&sandbox).unwrap(), newer);
        fs::remove_file(&sandbox).unwrap();
        let list = r#"{"format":1,"writtenBy":"8.0.0","formats":{"the checkpoint of a pod":2}}"#;
        fs::write(list_file(dir.path()), list).unwrap();
        let text = refusal(dir.path());
        assert!(text.contains("the checkpoint of a pod has format 2") && text.contains("Mainstay 8.0.0"), "{text}");
        fs::write(list_file(dir.path()), r#"{"format":2}"#).unwrap();
        assert!(refusal(dir.path()).contains("the list of formats has format 2"));
    }
}
