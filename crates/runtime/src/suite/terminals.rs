//! Terminals: of commands and of containers.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::{
    session::{Attach, TerminalSize},
    suite::{
        Bench,
        streams::{finish, shell},
    },
};

pub async fn a_terminal_is_one(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    let mut exec = shell("test -t 0 && test -t 1 && test -t 2 && echo it is; exit 9");
    (exec.tty, exec.stderr) = (true, false);
    let mut session = b.runtime.open_exec(&id, &exec).await.expect("open");
    let _open = session.stdin.take();
    assert!(session.stderr.is_none(), "a terminal has one stream");
    assert_eq!(finish(session).await, ("it is\r\n".to_owned(), String::new(), 9));
}

pub async fn a_terminal_is_resized(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    let mut exec =
        shell("echo begun; until [ \"$(stty size 2>/dev/null)\" = '33 101' ]; do sleep 0.05; done; echo resized; cat");
    (exec.tty, exec.stderr) = (true, false);
    let mut session = b.runtime.open_exec(&id, &exec).await.expect("open");
    let mut lines = BufReader::new(session.stdout.take().expect("asked for")).lines();
    assert_eq!(lines.next_line().await.expect("read").as_deref(), Some("begun"));
    session.resize.send(TerminalSize { width: 101, height: 33 }).await.expect("resize");
    assert_eq!(lines.next_line().await.expect("read").as_deref(), Some("resized"));
    // Ctrl-D ends the input, as on any terminal.
    session.stdin.as_mut().expect("asked for").write_all(&[4]).await.expect("write");
    assert_eq!(session.exit.await.expect("a code"), 0);
}

pub async fn a_container_can_have_a_terminal(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.shell("c", "test -t 0 && test -t 1 && echo it is; read l; echo got $l; sleep 1; exit 5");
    (spec.tty, spec.stdin) = (true, true);
    let id = pod.start(spec).await;
    pod.says("c", "it is").await;
    let attach = Attach { tty: true, stdin: true, stdout: true, stderr: false };
    let mut session = b.runtime.attach(&id, &attach).await.expect("attach");
    session.stdin.as_mut().expect("asked for").write_all(b"words\n").await.expect("write");
    let mut out = String::new();
    let mut stdout = session.stdout.take().expect("asked for");
    stdout.read_to_string(&mut out).await.expect("read to the end");
    assert!(out.contains("got words"), "{out:?}");
    assert_eq!(session.exit.await.expect("a code"), 5);
    pod.says("c", "got words").await;
}
