//! Reads the termination message of a container that ended, from its file or the end of its log.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use k8s_openapi::api::core::v1::Container;
use mainstay_runtime::{ContainerState, ContainerStatus};

use crate::{logs::line::Line, spec::Specs};

/// Upstream's bounds.
const LONGEST: u64 = 4096;
const LONGEST_LOG: u64 = 2048;
const MOST_LINES: usize = 80;

/// Empty if it wrote none.
pub fn read(specs: &Specs, container: &Container, observed: &ContainerStatus) -> String {
    let ContainerState::Exited { exit_code, .. } = observed.state else { return String::new() };
    let file = specs.termination_log(&observed.pod.uid, &observed.name, observed.attempt);
    let message = read_end(&file, LONGEST).unwrap_or_default();
    if !message.is_empty() || exit_code == 0 {
        return message;
    }
    match container.termination_message_policy.as_deref() {
        Some("FallbackToLogsOnError") => {
            let log = read_end(&observed.log_path, 4 * LONGEST_LOG).unwrap_or_default();
            log_text(&log)
        }
        Some(_) | None => message,
    }
}

fn read_end(path: &Path, most: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > most {
        file.seek(SeekFrom::Start(length - most))?;
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log as the container printed them: a last line without a newline has none here either.
fn log_text(log: &str) -> String {
    let text = |line: &str| {
        let line = Line::parse(line.as_bytes())?;
        let newline = if line.partial { "" } else { "\n" };
        Some(String::from_utf8_lossy(line.text).into_owned() + newline)
    };
    let mut last: Vec<String> = Vec::new();
    let mut room = LONGEST_LOG as usize;
    for line in log.lines().rev().filter_map(text).take(MOST_LINES) {
        let Some(left) = room.checked_sub(line.len()) else { break };
        room = left;
        last.push(line);
    }
    last.reverse();
    last.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_loses_its_prefixes_and_its_beginning() {
        let line = |n: usize| format!("2026-01-01T00:00:00.000000000Z stderr F line {n}\n");
        let log: String = (0..100).map(line).collect();
        let text = log_text(&log);
        assert!(text.starts_with("line 20\n"), "{text}");
        assert!(text.ends_with("line 99\n"), "{text}");
        assert_eq!(log_text(""), "");
        let unfinished = "2026-01-01T00:00:00.000000000Z stdout F one\n2026-01-01T00:00:00.000000000Z stdout P DONE\n";
        assert_eq!(log_text(unfinished), "one\nDONE");
    }
}
