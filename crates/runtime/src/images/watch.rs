//! Watches the image store for images that appear or disappear, also by another process.

use std::{path::Path, time::Duration};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use tokio::sync::watch;

use super::files::Files;

/// How soon a change is noticed where the kernel does not tell.
const POLL: Duration = Duration::from_secs(2);

/// Counts changes for as long as someone listens. Needs a tokio runtime.
pub fn follow(files: Files) -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    let reported = events(files.root());
    tokio::spawn(async move {
        match reported {
            Ok(mut events) => loop {
                tokio::select! {
                    event = events.next() => match event {
                        Some(Ok(event)) if event.name.as_deref() == Some("index.json".as_ref()) => {
                            sender.send_modify(|count| *count += 1);
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => break,
                    },
                    () = sender.closed() => return,
                }
            },
            Err(error) => tracing::warn!(%error, "cannot watch the image store; looking every 2 s instead"),
        }
        let mut observed = files.signature();
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = sender.closed() => return,
            }
            let now = files.signature();
            if now != observed {
                observed = now;
                sender.send_modify(|count| *count += 1);
            }
        }
    });
    receiver
}

fn events(root: &Path) -> std::io::Result<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init()?;
    inotify.watches().add(root, WatchMask::MOVED_TO)?;
    inotify.into_event_stream([0; 1024])
}
