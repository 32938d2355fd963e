//! `/logs/`: the machine's own log files below `/var/log`, as upstream's kubelet serves them.
//!
//! Files are opened beneath the directory by the kernel's own rule: neither `..` nor a link leads out of it. Only regular
//! files and directories are served, so nobody can make the agent wait on a pipe.

use std::{
    io::{self, Read},
    os::fd::AsRawFd,
    path::{Component, Path},
};

use bytes::Bytes;
use http::StatusCode;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::response::{self, HandlerResult, RequestError};

const DIRECTORY: &str = "/var/log";
const CHUNK: usize = 64 << 10;

enum OpenedLog {
    File(std::fs::File),
    /// Names of what is in it; those of directories end in a slash.
    Directory(Vec<String>),
}

pub async fn serve_host_logs(path: &str) -> HandlerResult {
    let relative = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || open(Path::new(DIRECTORY), Path::new(&relative))).await;
    match opened.map_err(|error| RequestError::internal(error.to_string()))? {
        Ok(OpenedLog::Directory(names)) => {
            Ok(response::typed(StatusCode::OK, "text/html; charset=utf-8", index(&names)))
        }
        Ok(OpenedLog::File(file)) => {
            let (to, from) = mpsc::channel(4);
            tokio::task::spawn_blocking(move || copy(file, &to));
            Ok(response::stream("text/plain; charset=utf-8", ReceiverStream::new(from)))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(RequestError::new(StatusCode::FORBIDDEN, "403 Forbidden"))
        }
        Err(_) => Err(RequestError::not_found("404 page not found")),
    }
}

fn open(directory: &Path, relative: &Path) -> io::Result<OpenedLog> {
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    if !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let root = openat2(AT_FDCWD, directory, OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC))?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let opened = openat2(&root, relative, how).map_err(|errno| match errno {
        Errno::EXDEV | Errno::ELOOP => io::Error::from(io::ErrorKind::NotFound),
        errno => errno.into(),
    })?;
    let file = std::fs::File::from(opened);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(OpenedLog::File(file));
    }
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let entries = std::fs::read_dir(format!("/proc/self/fd/{}", file.as_raw_fd()))?.flatten();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            format!("{}{}", entry.file_name().to_string_lossy(), if is_directory { "/" } else { "" })
        })
        .collect();
    names.sort();
    Ok(OpenedLog::Directory(names))
}

/// As Go's file server lists a directory.
fn index(names: &[String]) -> String {
    let escape =
        |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let link = |name: &String| {
        let target = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
        format!("<a href=\"{}\">{}</a>\n", target.replace("%2F", "/").replace("%2E", "."), escape(name))
    };
    format!("<pre>\n{}</pre>\n", names.iter().map(link).collect::<String>())
}

fn copy(mut file: std::fs::File, to: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut chunk = vec![0; CHUNK];
        let piece = match file.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => {
                chunk.truncate(length);
                Ok(Bytes::from(chunk))
            }
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if to.blocking_send(piece).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beneath_the_directory_are_served_and_nothing_leads_out_of_it() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "x").unwrap();
        let logs = tempfile::tempdir().unwrap();
        std::fs::create_dir(logs.path().join("pods")).unwrap();
        std::fs::write(logs.path().join("pods/a.log"), "hello").unwrap();
        std::os::unix::fs::symlink("pods/a.log", logs.path().join("inside")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), logs.path().join("out")).unwrap();
        nix::unistd::mkfifo(&logs.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let read = |path: &str| match open(logs.path(), Path::new(path)) {
            Ok(OpenedLog::File(mut file)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                text
            }
            Ok(OpenedLog::Directory(names)) => index(&names),
            Err(error) => error.kind().to_string(),
        };
        assert_eq!((read("pods/a.log"), read("inside")), ("hello".to_owned(), "hello".to_owned()));
        assert!(read("").contains("<a href=\"pods/\">pods/</a>\n"), "{}", read(""));
        for path in ["out", "../secret", "pods/../../etc/passwd", "/etc/passwd", "pipe", "none"] {
            assert_eq!(read(path), io::ErrorKind::NotFound.to_string(), "{path}");
        }
    }
}
