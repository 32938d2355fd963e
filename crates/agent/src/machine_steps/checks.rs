//! The checks of a machine: executable files of a directory, in the order of their names, as `run-parts` has them.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// More are not run.
const MOST_CHECKS: usize = 256;

/// Files whose names have letters, digits, `-` and `_` alone, so that backups of editors and packages are left out.
pub fn list_checks(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut checks = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_named = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.chars().all(inside));
        let is_program = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if is_named && is_program {
            checks.push(path);
        }
    }
    if checks.len() > MOST_CHECKS {
        let why = format!("{} has {} checks; at most {MOST_CHECKS} are run", directory.display(), checks.len());
        return Err(io::Error::other(why));
    }
    checks.sort();
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_programs_with_plain_names_in_their_order() {
        let directory = tempfile::tempdir().unwrap();
        for (name, mode) in [("20-net", 0o755), ("10-disk", 0o700), ("readme", 0o644), ("30.bak", 0o755), ("x~", 0o755)]
        {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(directory.path().join("dir")).unwrap();
        let names = list_checks(directory.path()).unwrap();
        let expected = ["10-disk", "20-net"].map(|name| directory.path().join(name));
        assert_eq!(names, expected);
        assert!(list_checks(&directory.path().join("missing")).is_err());
    }
}
