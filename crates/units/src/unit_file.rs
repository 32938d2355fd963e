//! Unit files as systemd and fleet read them: sections of options, each with the line that it came from.

use std::fmt;

/// A unit of more than this is not one that somebody wrote.
const LARGEST: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFile {
    pub options: Vec<UnitOption>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitOption {
    pub section: String,
    pub name: String,
    pub value: String,
    /// Counted from 1; of a value that goes on over several lines, the first.
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("line {line}: {text:?} stands before the first section; begin with a line such as [Unit]")]
    NoSection { line: usize, text: String },
    #[error("line {line}: {text:?} is neither a section in brackets nor NAME=VALUE")]
    NoOption { line: usize, text: String },
    #[error("the file has {size} bytes; at most {LARGEST} are read")]
    TooLarge { size: usize },
}

impl UnitFile {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.len() > LARGEST {
            return Err(ParseError::TooLarge { size: text.len() });
        }
        let (mut options, mut section) = (Vec::new(), None::<String>);
        for (line, text) in logical_lines(text) {
            if let Some(name) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
                section = Some(name.to_owned());
                continue;
            }
            let Some(section) = &section else { return Err(ParseError::NoSection { line, text }) };
            let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
                return Err(ParseError::NoOption { line, text });
            };
            let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
            options.push(UnitOption { section: section.clone(), name, value, line });
        }
        Ok(Self { options })
    }

    /// The values of an option, in order. An empty one takes away those before it, as in systemd.
    pub fn values(&self, section: &str, name: &str) -> Vec<&UnitOption> {
        let mut values = Vec::new();
        for option in self.options.iter().filter(|option| option.section == section && option.name == name) {
            if option.value.is_empty() { values.clear() } else { values.push(option) }
        }
        values
    }

    /// The value that counts of an option that has one.
    pub fn value(&self, section: &str, name: &str) -> Option<&UnitOption> {
        self.values(section, name).pop()
    }
}

/// Lines without comments and blank ones; those that end in a backslash go on in the next.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut open) = (Vec::new(), None::<(usize, String)>);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with(['#', ';']) || (line.is_empty() && open.is_none()) {
            continue;
        }
        let (first, mut whole) = open.take().unwrap_or((index + 1, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => {
                whole.push_str(part.trim_end());
                whole.push(' ');
                open = Some((first, whole));
            }
            None => {
                whole.push_str(line);
                lines.push((first, whole.trim().to_owned()));
            }
        }
    }
    lines.extend(open.map(|(first, whole)| (first, whole.trim().to_owned())));
    lines.retain(|(_, line)| !line.is_empty());
    lines
}

/// As a file that reads as the same options again.
impl fmt::Display for UnitFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = None;
        for option in &self.options {
            if section != Some(&option.section) {
                writeln!(f, "{}[{}]", if section.is_some() { "\n" } else { "" }, option.section)?;
                section = Some(&option.section);
            }
            writeln!(f, "{}={}", option.name, option.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(text: &str) -> Vec<(String, String, String, usize)> {
        let parsed = UnitFile::parse(text).expect("a unit file");
        parsed.options.into_iter().map(|option| (option.section, option.name, option.value, option.line)).collect()
    }

    #[test]
    fn comments_and_continued_lines_are_read_as_systemd_reads_them() {
        let text = "# a comment\n[Unit]\nDescription = web \n\n[Service]\nExecStart=/bin/echo a \\\n; in between\n  b \\\n  c\nExecStart=\n";
        let option = |section: &str, name: &str, value: &str, line| (section.into(), name.into(), value.into(), line);
        assert_eq!(
            options(text),
            [
                option("Unit", "Description", "web", 3),
                option("Service", "ExecStart", "/bin/echo a b c", 6),
                option("Service", "ExecStart", "", 10),
            ]
        );
        assert_eq!(UnitFile::parse(text).unwrap().value("Service", "ExecStart"), None, "an empty value resets");
        assert_eq!(options("[A]\nb=c \\"), [option("A", "b", "c", 2)]);
        assert_eq!(options(""), []);
    }

    #[test]
    fn what_is_no_option_is_named_with_its_line() {
        let error = |text: &str| UnitFile::parse(text).unwrap_err().to_string();
        assert_eq!(error("\nA=b"), "line 2: \"A=b\" stands before the first section; begin with a line such as [Unit]");
        assert!(error("[Unit]\nhello").starts_with("line 2: \"hello\" is neither"));
        assert!(error("[Unit]\n=x").starts_with("line 2"));
        assert!(error(&"x".repeat(LARGEST + 1)).contains("at most 1048576"));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(
            entries in prop::collection::vec(("[A-Z][a-z]{0,4}", "[A-Za-z-]{1,6}", "([!-\\[\\]-~]([ -\\[\\]-~]{0,8}[!-\\[\\]-~])?)?"), 0..12)
        ) {
            let option = |(section, name, value): (String, String, String)| UnitOption { section, name, value, line: 0 };
            let file = UnitFile { options: entries.into_iter().map(option).collect() };
            let mut again = UnitFile::parse(&file.to_string()).unwrap();
            again.options.iter_mut().for_each(|option| option.line = 0);
            prop_assert_eq!(again, file);
        }

        #[test]
        fn no_text_panics(text in "(\\[|\\]|=|\\\\|\n|#|[a-z ]){0,60}") {
            let _ = UnitFile::parse(&text);
        }
    }
}
