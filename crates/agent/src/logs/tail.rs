//! Finds where the last N lines of a log begin, reading from its end.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::line::{HEAD, Line};

const BLOCK: usize = 64 * 1024;

/// The file, as an index into `files`, and the place in it where the last `wanted` lines begin. A line in pieces
/// counts once.
pub fn start(files: &[PathBuf], wanted: u64) -> io::Result<(usize, u64)> {
    let Some(newest) = files.len().checked_sub(1) else { return Ok((0, 0)) };
    if wanted == 0 {
        return Ok((newest, length(&files[newest])?));
    }
    // Lines that end behind the place looked at.
    let mut observed = 0;
    for (index, path) in files.iter().enumerate().rev() {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if let Some(offset) = last_lines(&file, &mut observed, wanted)? {
            return Ok((index, offset));
        }
    }
    Ok((0, 0))
}

fn length(path: &Path) -> io::Result<u64> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn last_lines(file: &File, observed: &mut u64, wanted: u64) -> io::Result<Option<u64>> {
    let mut block = vec![0; BLOCK];
    let mut end = file.metadata()?.len();
    // Behind the last line: what comes after the last newline is not written to its end.
    let mut behind = None;
    while end > 0 {
        let begin = end.saturating_sub(BLOCK as u64);
        let piece = &mut block[..(end - begin) as usize];
        file.read_exact_at(piece, begin)?;
        for at in (0..piece.len()).rev().filter(|at| piece[*at] == b'\n') {
            let place = begin + at as u64 + 1;
            if let Some(next) = behind.replace(place)
                && reached(file, place, next, observed, wanted)?
            {
                return Ok(Some(next));
            }
        }
        end = begin;
    }
    match behind {
        Some(next) if reached(file, 0, next, observed, wanted)? => Ok(Some(next)),
        _ => Ok(None),
    }
}

/// Counts the line from `place` up to `next`; whether it is one more than wanted.
fn reached(file: &File, place: u64, next: u64, observed: &mut u64, wanted: u64) -> io::Result<bool> {
    let mut head = [0; HEAD];
    let length = HEAD.min((next - place) as usize);
    file.read_exact_at(&mut head[..length], place)?;
    let partial = Line::parse(&head[..length]).is_some_and(|line| line.partial);
    // A line whose last piece is still to come counts by its newest piece.
    if !partial || *observed == 0 {
        *observed += 1;
    }
    Ok(!partial && *observed > wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(directory: &Path, name: &str, lines: &[&str]) -> PathBuf {
        let path = directory.join(name);
        let text: String = lines.iter().map(|l| format!("2024-01-01T00:00:00Z stdout {l}\n")).collect();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn rest(files: &[PathBuf], wanted: u64) -> Vec<String> {
        let (index, offset) = start(files, wanted).unwrap();
        let mut text = String::new();
        for (i, file) in files.iter().enumerate().skip(index) {
            let whole = std::fs::read_to_string(file).unwrap_or_default();
            text += &whole[if i == index { offset as usize } else { 0 }..];
        }
        text.lines().map(|l| l.split_once("stdout ").unwrap().1.to_owned()).collect()
    }

    #[test]
    fn the_last_lines_are_found_across_files() {
        let directory = tempfile::tempdir().unwrap();
        let files = [
            lines(directory.path(), "a", &["F 1", "F 2"]),
            lines(directory.path(), "b", &["F 3"]),
            lines(directory.path(), "c", &[]),
        ];
        assert_eq!(rest(&files, 0), Vec::<String>::new());
        assert_eq!(rest(&files, 1), ["F 3"]);
        assert_eq!(rest(&files, 2), ["F 2", "F 3"]);
        assert_eq!(rest(&files, 3), ["F 1", "F 2", "F 3"]);
        assert_eq!(rest(&files, 30), ["F 1", "F 2", "F 3"]);
    }

    #[test]
    fn a_line_in_pieces_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let files = [lines(directory.path(), "a", &["F 1", "P 2", "P 2", "F 2", "P 3"])];
        assert_eq!(rest(&files, 1), ["P 3"]);
        assert_eq!(rest(&files, 2), ["P 2", "P 2", "F 2", "P 3"]);
        assert_eq!(rest(&files, 3), ["F 1", "P 2", "P 2", "F 2", "P 3"]);
    }

    #[test]
    fn long_files_are_read_from_their_end() {
        let directory = tempfile::tempdir().unwrap();
        let many: Vec<String> = (0..20_000).map(|n| format!("F {n}")).collect();
        let files = [lines(directory.path(), "a", &many.iter().map(String::as_str).collect::<Vec<_>>())];
        assert_eq!(rest(&files, 2), ["F 19998", "F 19999"]);
        assert_eq!(rest(&files, 5000).first().unwrap(), "F 15000");
        assert_eq!(rest(&files, 20_000).first().unwrap(), "F 0");
    }
}
