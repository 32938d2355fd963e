//! Files of variables that another container wrote into an emptyDir (`fileKeyRef`).
//!
//! The format is a subset of the shell's: `NAME='value'` on a line of its own, everything between the quotes taken
//! literally, newlines included; comments and blank lines between. [`read`] opens a file as containers of the pod see
//! it, so that no link leads out of the volume; [`parse`] decides from its text alone. No error shows a value.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};

/// More than the kernel would hand to a program.
const LARGEST: u64 = 1 << 20;

const BLANKS: [char; 2] = [' ', '\t'];

/// Names a file within a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvFile {
    pub volume: String,
    pub path: String,
}

/// What [`read`] found, by file.
pub type EnvFiles = BTreeMap<EnvFile, Option<String>>;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("it is not a regular file")]
    NotAFile,
    #[error("it is larger than {LARGEST} bytes")]
    TooLarge,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("invalid environment variable format at line {0}: missing '='")]
    NoAssignment(usize),
    #[error("invalid environment variable format at line {0}: empty variable name")]
    NoName(usize),
    #[error("invalid environment variable format at line {0}: whitespace before '=' is not allowed")]
    BlankBeforeAssignment(usize),
    #[error("invalid environment variable format at line {0}: value must be enclosed in single quotes")]
    Unquoted(usize),
    #[error("invalid environment variable format at line {0}: unexpected content after closing quote")]
    ContentAfterQuote(usize),
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
    #[error("invalid environment variable format starting at line {0}: value contains a NUL byte")]
    Nul(usize),
}

/// The text of a file in a volume; `None` if there is none. The volume's root is where links begin and end.
pub fn read(volume: &Path, within: &Path) -> Result<Option<String>, ReadError> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    let root = openat2(AT_FDCWD, volume, how).map_err(io::Error::from)?;
    // Non-blocking, since nobody might ever write to a named pipe.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = match openat2(&root, within, how) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        opened => File::from(opened.map_err(io::Error::from)?),
    };
    if !file.metadata()?.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(ReadError::TooLarge);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The value of `key`, the first of that name; `None` if the file has none. What follows it is not looked at.
pub fn parse(text: &str, key: &str) -> Result<Option<String>, ParseError> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, assigned) = line.split_once('=').ok_or(ParseError::NoAssignment(number))?;
        if name.trim_end_matches(BLANKS).is_empty() {
            return Err(ParseError::NoName(number));
        }
        if name.ends_with(BLANKS) {
            return Err(ParseError::BlankBeforeAssignment(number));
        }
        let value = if assigned.starts_with(BLANKS) {
            // As in a shell: the assignment ends at the blank.
            String::new()
        } else {
            let quoted = assigned.strip_prefix('\'').ok_or(ParseError::Unquoted(number))?;
            quoted_value(quoted, number, &mut lines)?
        };
        if name == key {
            return if value.contains('\0') { Err(ParseError::Nul(number)) } else { Ok(Some(value)) };
        }
    }
    Ok(None)
}

/// Everything up to the closing quote, which may be on a later line.
fn quoted_value<'a>(
    first: &'a str,
    begin: usize,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<String, ParseError> {
    let (mut value, mut number, mut rest) = (String::new(), begin, first);
    loop {
        if let Some((end, after)) = rest.split_once('\'') {
            value.push_str(end);
            let after = after.trim_start_matches(BLANKS);
            return match after.is_empty() || after.starts_with('#') {
                true => Ok(value),
                false => Err(ParseError::ContentAfterQuote(number)),
            };
        }
        value.push_str(rest);
        value.push('\n');
        (number, rest) = lines.next().ok_or(ParseError::Unclosed(begin))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_taken_literally() {
        let text = "# comment\n\n  A='one'\n\tB='two # not $(A) \\n' # comment\nC='line\n  next\n'\nD= 'gone'\nE=''\n\
                    A='second'\nÄ.b-c='odd'\r\nF='x'";
        for (key, expected) in [
            ("A", Some("one")),
            ("B", Some("two # not $(A) \\n")),
            ("C", Some("line\n  next\n")),
            ("D", Some("")),
            ("E", Some("")),
            ("Ä.b-c", Some("odd")),
            ("F", Some("x")),
            ("G", None),
            ("next", None),
        ] {
            assert_eq!(parse(text, key), Ok(expected.map(str::to_owned)), "{key}");
        }
        assert_eq!(parse("", "A"), Ok(None));
    }

    #[test]
    fn what_is_not_in_the_format_is_refused_by_its_line() {
        for (text, expected) in [
            ("A", ParseError::NoAssignment(1)),
            ("B='1'\n  ='x'", ParseError::NoName(2)),
            ("A ='x'", ParseError::BlankBeforeAssignment(1)),
            ("A=x", ParseError::Unquoted(1)),
            ("A=", ParseError::Unquoted(1)),
            ("A=\"x\"", ParseError::Unquoted(1)),
            ("A='x'y", ParseError::ContentAfterQuote(1)),
            ("B='1\n2'3\n", ParseError::ContentAfterQuote(2)),
            ("B='1'\nA='x\n\n", ParseError::Unclosed(2)),
            ("A='\0'", ParseError::Nul(1)),
        ] {
            assert_eq!(parse(text, "A"), Err(expected), "{text:?}");
        }
        assert_eq!(parse("A='x'\nnonsense", "A"), Ok(Some("x".to_owned())), "later lines are not looked at");
    }

    #[test]
    fn a_file_is_read_within_its_volume_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (volume, outside) = (directory.path().join("volume"), directory.path().join("outside"));
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(&outside, "A='host'").unwrap();
        std::fs::write(volume.join("env"), "A='own'").unwrap();
        std::os::unix::fs::symlink("../outside", volume.join("up")).unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("absolute")).unwrap();
        std::os::unix::fs::symlink("/env", volume.join("root")).unwrap();
        std::os::unix::fs::symlink("loop", volume.join("loop")).unwrap();
        let text = |path: &str| read(&volume, Path::new(path));
        assert_eq!(text("env").unwrap().as_deref(), Some("A='own'"));
        assert_eq!(text("root").unwrap().as_deref(), Some("A='own'"), "a link's root is the volume");
        for path in ["none", "env/below", "up", "absolute"] {
            assert!(text(path).unwrap().is_none(), "{path}");
        }
        assert!(text("loop").is_err());
        assert!(matches!(text("."), Err(ReadError::NotAFile)));
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(text("pipe"), Err(ReadError::NotAFile)));
        File::create(volume.join("large")).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(matches!(text("large"), Err(ReadError::TooLarge)));
    }
}
