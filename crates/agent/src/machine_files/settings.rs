//! Which files of a machine may come from the API, as its own configuration file says.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::machine_steps::CommandLine;

/// One `[[machine-files]]` of the file of `--config`: a directory in and below which templates may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedDirectory {
    pub directory: PathBuf,
    /// Only templates of these namespaces; those of all if there are none.
    pub namespaces: Vec<String>,
    /// Runs once a file has changed.
    pub on_change: Option<CommandLine>,
    pub on_change_timeout: Duration,
}

pub const DEFAULT_ON_CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

impl AllowedDirectory {
    /// The part of a path below this directory.
    fn relative<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.directory).ok().filter(|below| below.components().next().is_some())
    }

    fn is_open_to(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|own| own == namespace)
    }
}

/// The directory that allows a file. If one lies in another, the innermost decides: what is kept for some namespaces there is open to no others.
pub fn find_allowed<'d, 'p>(
    all: &'d [AllowedDirectory],
    namespace: &str,
    path: &'p Path,
) -> Option<(&'d AllowedDirectory, &'p Path)> {
    let around: Vec<_> = all.iter().filter_map(|own| Some((own, own.relative(path)?))).collect();
    let depth = |own: &AllowedDirectory| own.directory.components().count();
    let innermost = around.iter().map(|(own, _)| depth(own)).max()?;
    around.into_iter().find(|(own, _)| depth(own) == innermost && own.is_open_to(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_below_an_allowed_directory_are_allowed_and_the_innermost_counts() {
        let allowed = |directory: &str, namespaces: &[&str]| AllowedDirectory {
            directory: directory.into(),
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            on_change: None,
            on_change_timeout: DEFAULT_ON_CHANGE_TIMEOUT,
        };
        let all = [allowed("/etc/app", &[]), allowed("/etc/app/zones", &["infra"])];
        let find = |namespace: &str, path: &str| {
            let found = find_allowed(&all, namespace, Path::new(path));
            found.map(|(own, below)| (own.directory.clone(), below.to_owned()))
        };
        let expected = |directory: &str, below: &str| Some((directory.into(), below.into()));
        assert_eq!(find("shop", "/etc/app/a.conf"), expected("/etc/app", "a.conf"));
        assert_eq!(find("infra", "/etc/app/zones/a.conf"), expected("/etc/app/zones", "a.conf"));
        assert_eq!(find("shop", "/etc/app/zones/a.conf"), None, "it is kept for others");
        for path in ["/etc/app", "/etc/application", "/etc/shadow", "/", "/etc/ap/p"] {
            assert_eq!(find("infra", path), None, "{path}");
        }
        assert_eq!(find_allowed(&[], "infra", Path::new("/etc/x")), None);
    }
}
