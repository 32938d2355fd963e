//! What to do about one file of this machine, from what is wanted, what is recorded and what is there. Pure.

use std::path::Path;

use mainstay_api::machine_file::reason;

use super::{
    record::{FileRecord, FileRecords, digest},
    replace::{Access, LocationState},
};

/// A file as it is to be.
pub struct WantedContent<'a> {
    pub path: &'a Path,
    pub content: &'a [u8],
    pub access: Access,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as wanted, and everybody was told.
    Current,
    /// It is as wanted; the command on a change has not run.
    Announce,
    Write,
    Refuse(Refusal),
}

/// Why a file is not as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`reason`].
    pub reason: &'static str,
    pub message: String,
}

pub fn judge(wanted: &WantedContent<'_>, record: Option<&FileRecord>, found: &LocationState) -> Verdict {
    let refuse = |message: String| Verdict::Refuse(Refusal { reason: reason::CONFLICT, message });
    let path = wanted.path.display();
    let own = record.filter(|record| record.path == wanted.path);
    match found {
        LocationState::Nothing => Verdict::Write,
        LocationState::Other => refuse(format!("{path} exists and is no file that was written here; it is left alone")),
        // The same content is ours to take, whoever wrote it.
        LocationState::File { content, access } if content == wanted.content => match own {
            _ if *access != wanted.access => Verdict::Write,
            Some(record) if record.announced && record.has_written(content) => Verdict::Current,
            Some(_) | None => Verdict::Announce,
        },
        LocationState::File { content, .. } if own.is_some_and(|own| own.has_written(content)) => Verdict::Write,
        LocationState::File { .. } => refuse(format!("{path} was made or changed by somebody else; it is left alone")),
    }
}

/// The record of another MachineFile that has this path.
pub fn rival<'r>(records: &'r FileRecords, key: &str, path: &Path) -> Option<&'r str> {
    let mut others = records.files.iter().filter(|(other, record)| *other != key && record.path == path);
    others.next().map(|(other, _)| other.as_str())
}

/// Whether a file that nobody asks for any longer may be removed: only what was written here.
pub fn may_remove(record: &FileRecord, found: &LocationState) -> bool {
    matches!(found, LocationState::File { content, .. } if record.digests.contains(&digest(content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: Access = Access { mode: 0o600, owner: 0, group: 0 };

    fn file(content: &str, mode: u32) -> LocationState {
        LocationState::File { content: content.into(), access: Access { mode, ..ACCESS } }
    }

    fn record(contents: &[&str], announced: bool) -> FileRecord {
        let digests = contents.iter().map(|content| digest(content.as_bytes())).collect();
        FileRecord { path: "/etc/app".into(), digests, announced, ..FileRecord::default() }
    }

    fn judged(record: Option<&FileRecord>, found: &LocationState) -> Verdict {
        judge(&WantedContent { path: Path::new("/etc/app"), content: b"new", access: ACCESS }, record, found)
    }

    fn reason_of(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Refuse(refusal) => refusal.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_missing_or_ours_is_written_and_what_is_not_ours_is_left_alone() {
        let old = record(&["old"], true);
        assert_eq!(judged(None, &LocationState::Nothing), Verdict::Write);
        assert_eq!(judged(Some(&old), &LocationState::Nothing), Verdict::Write, "somebody removed it");
        assert_eq!(judged(Some(&old), &file("old", 0o600)), Verdict::Write);
        assert_eq!(reason_of(judged(Some(&old), &file("edited", 0o600))), reason::CONFLICT);
        assert_eq!(reason_of(judged(None, &file("theirs", 0o600))), reason::CONFLICT);
        assert_eq!(reason_of(judged(Some(&old), &LocationState::Other)), reason::CONFLICT);
        let elsewhere = FileRecord { path: "/etc/other".into(), ..record(&["old"], true) };
        assert_eq!(reason_of(judged(Some(&elsewhere), &file("old", 0o600))), reason::CONFLICT, "of another path");
    }

    #[test]
    fn an_agent_that_was_killed_goes_on_where_it_was() {
        let killed = record(&["old", "new"], false);
        assert_eq!(judged(Some(&killed), &file("old", 0o600)), Verdict::Write, "before the file had its name");
        assert_eq!(judged(Some(&killed), &file("new", 0o600)), Verdict::Announce, "before the command ran");
        assert_eq!(judged(Some(&record(&["new"], true)), &file("new", 0o600)), Verdict::Current);
        assert_eq!(judged(Some(&record(&["new"], true)), &file("new", 0o644)), Verdict::Write, "with another mode");
    }

    #[test]
    fn one_path_has_one_owner_and_only_what_was_written_here_is_removed() {
        let records = FileRecords { files: [("shop/a".to_owned(), record(&["old"], true))].into() };
        assert_eq!(rival(&records, "shop/b", Path::new("/etc/app")), Some("shop/a"));
        assert_eq!(rival(&records, "shop/a", Path::new("/etc/app")), None);
        assert_eq!(rival(&records, "shop/b", Path::new("/etc/other")), None);
        assert!(may_remove(&record(&["old"], true), &file("old", 0o644)));
        for found in [file("edited", 0o600), LocationState::Nothing, LocationState::Other] {
            assert!(!may_remove(&record(&["old"], true), &found));
        }
    }
}
