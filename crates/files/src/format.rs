//! Format numbers of what lies on disk: every record says which format it has and which version of Mainstay wrote it.
//!
//! A record is a JSON object; `format` and `writtenBy` are its first two fields. A program reads every format up to its own number
//! (one without a number is from before there were any, and is format 1) and refuses a newer one with an error that
//! names the version that wrote it. Who gets that error must leave the record as it is: an unknown record is no missing one.
//!
//! What each version writes is kept as fixtures (`testdata/format-N`) that all later ones must read. Fields may be
//! added within a format if older programs may ignore them; anything else takes a new number, which is read for one
//! version before it is written, so that the last step of an upgrade can be taken back.

use std::{fs, io, path::Path};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error as _},
};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A kind of record, and the newest format of it that this program reads; it is the one it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// For people, as in "the record of a sandbox".
    pub name: &'static str,
    pub number: u32,
}

/// Written by a program that knows more than this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} has format {found}, and Mainstay {VERSION} reads formats up to {known}: use {} (nothing was changed)",
    Reader(written_by.as_deref())
)]
pub struct NewerFormat {
    pub name: String,
    pub found: u32,
    pub known: u32,
    pub written_by: Option<String>,
}

struct Reader<'a>(Option<&'a str>);

impl std::fmt::Display for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(version) => write!(f, "Mainstay {version}, which wrote it, or a later version"),
            None => f.write_str("the version that wrote it, or a later one"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error(transparent)]
    Newer(#[from] NewerFormat),
    #[error(transparent)]
    Content(#[from] serde_json::Error),
}

impl From<FormatError> for io::Error {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Newer(newer) => io::Error::new(io::ErrorKind::Unsupported, newer),
            FormatError::Content(error) => error.into(),
        }
    }
}

/// Whether reading failed because the record has a newer format.
pub fn is_newer(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NewerFormat>())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a, T> {
    format: u32,
    written_by: &'static str,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Stamp {
    format: Option<u32>,
    written_by: Option<String>,
}

impl Format {
    pub const fn new(name: &'static str, number: u32) -> Self {
        Self { name, number }
    }

    /// A content that is a JSON object, with the number of this format in it.
    pub fn encode<T: Serialize>(self, content: &T) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Record { format: self.number, written_by: VERSION, content })
    }

    /// The number alone, as the first line of a file that has one record per line.
    pub fn encode_line(self) -> String {
        format!("{{\"format\":{},\"writtenBy\":\"{VERSION}\"}}\n", self.number)
    }

    pub fn decode<T: DeserializeOwned>(self, record: &[u8]) -> Result<T, FormatError> {
        self.check(record)?;
        // Text, and not bytes, is what objects of the API are decoded from: one decoder for each type is enough.
        let text = str::from_utf8(record).map_err(serde_json::Error::custom)?;
        Ok(serde_json::from_str(text)?)
    }

    /// Refuses a record of a newer format. One that is damaged or has no number passes: its reader knows what to do about it.
    pub fn check(self, record: &[u8]) -> Result<(), NewerFormat> {
        let stamp: Stamp = serde_json::from_slice(record).unwrap_or_default();
        self.check_number(stamp.format.unwrap_or(1), stamp.written_by)
    }

    /// Refuses a file whose record, or first line, has a newer format. One that is missing passes.
    pub fn check_file(self, path: &Path) -> io::Result<()> {
        let record = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            record => record?,
        };
        let newer =
            self.check(&record).and_then(|()| self.check(record.split(|byte| *byte == b'\n').next().unwrap_or(&[])));
        newer.map_err(|newer| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                NewerFormat { name: format!("{}: {}", path.display(), newer.name), ..newer },
            )
        })
    }

    pub fn check_number(self, found: u32, written_by: Option<String>) -> Result<(), NewerFormat> {
        if found <= self.number {
            return Ok(());
        }
        Err(NewerFormat { name: self.name.to_owned(), found, known: self.number, written_by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Content {
        name: String,
    }

    const FORMAT: Format = Format::new("the record of a test", 2);

    #[test]
    fn a_record_is_read_as_it_was_written_and_so_is_an_older_one() {
        let content = Content { name: "a".to_owned() };
        let record = FORMAT.encode(&content).unwrap();
        assert!(record.starts_with(br#"{"format":2,"writtenBy":""#), "{}", String::from_utf8_lossy(&record));
        assert_eq!(FORMAT.decode::<Content>(&record).unwrap(), content);
        for older in [r#"{"name":"a"}"#, r#"{"format":1,"name":"a"}"#] {
            assert_eq!(FORMAT.decode::<Content>(older.as_bytes()).unwrap(), content);
        }
    }

    #[test]
    fn a_newer_one_is_refused_with_the_version_that_reads_it() {
        let record = br#"{"format":3,"writtenBy":"7.1.0","shape":[]}"#;
        let error: io::Error = FORMAT.decode::<Content>(record).unwrap_err().into();
        assert!(is_newer(&error));
        let text = error.to_string();
        assert!(text.starts_with("the record of a test has format 3, and Mainstay "), "{text}");
        assert!(text.contains("reads formats up to 2: use Mainstay 7.1.0"), "{text}");
        let line = b"{\"format\":3}\n{}\n".split(|byte| *byte == b'\n').next().unwrap();
        assert!(FORMAT.check(line).is_err());
        assert!(FORMAT.check(FORMAT.encode_line().as_bytes()).is_ok());
    }

    #[test]
    fn what_is_damaged_is_not_newer() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("record");
        FORMAT.check_file(&file).unwrap();
        for damaged in [&b""[..], b"{", b"[]", br#"{"format":"x"}"#] {
            assert!(FORMAT.check(damaged).is_ok());
            let error: io::Error = FORMAT.decode::<Content>(damaged).unwrap_err().into();
            assert!(!is_newer(&error));
            fs::write(&file, damaged).unwrap();
            FORMAT.check_file(&file).unwrap();
        }
        fs::write(&file, b"{\"format\":3}\n{}\n").unwrap();
        let error = FORMAT.check_file(&file).unwrap_err();
        assert!(is_newer(&error) && error.to_string().starts_with(file.to_str().unwrap()), "{error}");
    }
}
