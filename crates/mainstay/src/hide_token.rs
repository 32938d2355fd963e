//! Takes a token off the command line, which every user of the machine can read in `/proc`, into the environment, which only
//! the owner of the process can. The process becomes the same program again for that: its id stays.

use std::{
    ffi::{OsStr, OsString},
    os::unix::{ffi::OsStrExt, process::CommandExt},
    process::Command,
};

const FLAG: &str = "--token";
const VARIABLE: &str = "MAINSTAY_TOKEN";

/// Returns if there is nothing to hide, or if the program cannot be run again: then it goes on as it is.
pub fn hide_token_argument() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let (Some((rest, token)), Ok(program)) = (without_token(&arguments), std::env::current_exe()) else { return };
    let Some((name, rest)) = rest.split_first() else { return };
    let error = Command::new(program).arg0(name).args(rest).env(VARIABLE, token).exec();
    eprintln!("mainstay: {FLAG} stays visible to other users of this machine: {error}");
}

/// The command line of an agent without its token, and the token.
fn without_token(arguments: &[OsString]) -> Option<(Vec<OsString>, OsString)> {
    if arguments.get(1).is_none_or(|command| command != "agent") {
        return None;
    }
    let at = arguments.iter().position(|argument| argument == FLAG || value(argument).is_some())?;
    let (token, end) = match value(&arguments[at]) {
        Some(token) => (token.to_owned(), at + 1),
        None => (arguments.get(at + 1)?.clone(), at + 2),
    };
    let rest: Vec<OsString> = arguments[..at].iter().chain(&arguments[end..]).cloned().collect();
    // Twice is a mistake that the command line is refused for.
    let is_clean = !rest.iter().any(|argument| argument == FLAG || value(argument).is_some());
    is_clean.then_some((rest, token))
}

/// What follows `--token=`.
fn value(argument: &OsStr) -> Option<&OsStr> {
    let rest = argument.as_bytes().strip_prefix(FLAG.as_bytes())?;
    rest.strip_prefix(b"=").map(OsStr::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(line: &str) -> Option<(String, String)> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (rest, token) = without_token(&arguments)?;
        let rest: Vec<&str> = rest.iter().filter_map(|argument| argument.to_str()).collect();
        Some((rest.join(" "), token.into_string().ok()?))
    }

    #[test]
    fn a_token_is_removed_in_both_notations() {
        let expected = Some(("mainstay agent --server s --max-pods 3".to_owned(), "a.b.c".to_owned()));
        assert_eq!(hidden("mainstay agent --server s --token a.b.c --max-pods 3"), expected);
        assert_eq!(hidden("mainstay agent --server s --token=a.b.c --max-pods 3"), expected);
    }

    #[test]
    fn other_command_lines_are_left_alone() {
        for line in [
            "mainstay agent --server s",
            "mainstay agent --server s --token",
            "mainstay agent --token a --token b",
            "mainstay agent --tokens a",
            "mainstay why --token a",
            "mainstay",
        ] {
            assert_eq!(hidden(line), None, "{line}");
        }
    }
}
