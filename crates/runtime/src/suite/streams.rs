//! Commands in containers, and streams into them.

use std::{sync::Arc, time::Duration};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::{
    RuntimeError,
    observed::ContainerId,
    session::{Attach, Exec, Session},
    suite::{
        Bench,
        bench::{BOX, Pod, code, eventually},
    },
};

pub(super) fn shell(script: &str) -> Exec {
    let command = [BOX, "sh", "-c", script].map(str::to_owned).to_vec();
    Exec { command, stdin: true, stdout: true, stderr: true, tty: false }
}

async fn sleeping(b: &Arc<Bench>) -> (Pod, ContainerId) {
    let pod = b.pod().await;
    let id = pod.start(pod.sleeper("c")).await;
    (pod, id)
}

/// Everything that comes, and the code.
pub(super) async fn finish(session: Session) -> (String, String, i32) {
    let Session { stdin, stdout, stderr, resize, exit } = session;
    drop(stdin);
    let read = async |stream: Option<crate::session::Output>| {
        let mut text = Vec::new();
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut text).await.expect("read a stream to its end");
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    let (out, err, code) = tokio::join!(read(stdout), read(stderr), exit);
    drop(resize);
    (out, err, code.expect("it ends with a code"))
}

pub async fn exec_answers_output_and_code(b: Arc<Bench>) {
    let (pod, id) = sleeping(&b).await;
    let output = pod.exec(&id, "echo out; echo err >&2; exit 5").await;
    assert_eq!((output.exit_code, &*output.stdout, &*output.stderr), (5, &b"out\n"[..], &b"err\n"[..]));
    assert_eq!(pod.exec(&id, "true").await.exit_code, 0);
    assert_eq!(pod.exec(&id, "kill -9 $$").await.exit_code, 137);
}

pub async fn exec_keeps_no_more_than_its_limit(b: Arc<Bench>) {
    let (_pod, id) = sleeping(&b).await;
    let command = [BOX, "seq", "1", "100000"].map(str::to_owned);
    let output = b.runtime.exec(&id, &command, Some(Duration::from_secs(60)), 1000).await.expect("exec");
    assert_eq!((output.exit_code, output.stdout.len()), (0, 1000));
    assert!(output.stdout.starts_with(b"1\n2\n3\n"), "the first bytes are kept");
}

pub async fn exec_is_killed_after_its_timeout(b: Arc<Bench>) {
    let (pod, id) = sleeping(&b).await;
    let command = [BOX, "sh", "-c", "trap '' TERM; echo begun; sleep 161803; echo over"].map(str::to_owned);
    let late = b.runtime.exec(&id, &command, Some(Duration::from_secs(1)), 1 << 20).await.expect_err("too long");
    assert!(matches!(late, RuntimeError::Timeout { .. }), "{late:?}");
    eventually("it is killed", async || {
        let found = pod.exec(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
        (!String::from_utf8_lossy(&found.stdout).contains("echo begun")).then_some(())
    })
    .await;
}

pub async fn exec_of_a_missing_program_fails(b: Arc<Bench>) {
    let (pod, id) = sleeping(&b).await;
    let command = ["/box/no-such-program".to_owned()];
    let failed = b.runtime.exec(&id, &command, Some(Duration::from_secs(60)), 1000).await.expect_err("no such program");
    assert!(matches!(&failed, RuntimeError::Start { why } if why.contains("no-such-program")), "{failed:?}");
    assert!(pod.status(&id).await.expect("is observed").state.is_running(), "the container does not mind");
}

pub async fn exec_in_what_does_not_run_is_refused(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.create(pod.sleeper("c")).await;
    let command = [BOX, "true"].map(str::to_owned);
    b.runtime.exec(&id, &command, Some(Duration::from_secs(60)), 1000).await.expect_err("it does not run yet");
    b.runtime.start_container(&id).await.expect("start");
    b.runtime.stop_container(&id, Duration::ZERO).await.expect("stop");
    b.runtime.exec(&id, &command, Some(Duration::from_secs(60)), 1000).await.expect_err("it runs no more");
    let nobody = ContainerId("0".repeat(64));
    let gone =
        b.runtime.exec(&nobody, &command, Some(Duration::from_secs(60)), 1000).await.expect_err("no such container");
    assert!(gone.is_not_found(), "{gone:?}");
}

pub async fn exec_has_the_containers_environment_and_user(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.sleeper("c");
    spec.env = vec![("MARK".to_owned(), "given".to_owned())];
    spec.working_dir = "/tmp".to_owned();
    spec.security.run_as_user = Some(1000);
    spec.security.run_as_group = Some(2000);
    let id = pod.start(spec).await;
    let output = pod.exec(&id, "echo $MARK; pwd; id -u; id -g; hostname; cat /proc/1/cmdline | tr '\\0' ' '").await;
    let expected = format!("given\n/tmp\n1000\n2000\n{}\n{BOX} sleep 100000 ", pod.spec.hostname);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
}

pub async fn a_session_streams_both_ways(b: Arc<Bench>) {
    let (_pod, id) = sleeping(&b).await;
    let mut session =
        b.runtime.open_exec(&id, &shell("while read l; do echo got $l; done; echo end")).await.expect("open");
    let mut stdin = session.stdin.take().expect("asked for");
    let mut lines = BufReader::new(session.stdout.take().expect("asked for")).lines();
    for word in ["one", "two", "three"] {
        stdin.write_all(format!("{word}\n").as_bytes()).await.expect("write");
        stdin.flush().await.expect("flush");
        assert_eq!(lines.next_line().await.expect("read"), Some(format!("got {word}")));
    }
    stdin.shutdown().await.expect("end of input");
    assert_eq!(lines.next_line().await.expect("read").as_deref(), Some("end"));
    assert_eq!(session.exit.await.expect("a code"), 0);
}

pub async fn a_session_keeps_the_streams_apart(b: Arc<Bench>) {
    let (_pod, id) = sleeping(&b).await;
    let session = b.runtime.open_exec(&id, &shell("echo out; echo err >&2; exit 3")).await.expect("open");
    assert_eq!(finish(session).await, ("out\n".to_owned(), "err\n".to_owned(), 3));
}

pub async fn a_session_ends_with_the_exit_code(b: Arc<Bench>) {
    let (_pod, id) = sleeping(&b).await;
    for expected in [0, 1, 137] {
        let mut exec = shell(&format!("exit {expected}"));
        exec.stdin = false;
        let session = b.runtime.open_exec(&id, &exec).await.expect("open");
        assert!(session.stdin.is_none());
        assert_eq!(finish(session).await.2, expected);
    }
}

pub async fn a_lot_of_output_arrives_whole(b: Arc<Bench>) {
    let (_pod, id) = sleeping(&b).await;
    let session =
        b.runtime.open_exec(&id, &shell("head -c 8000000 /dev/zero | tr '\\0' x; exit 4")).await.expect("open");
    let (out, _, code) = finish(session).await;
    assert_eq!((out.len(), code), (8_000_000, 4));
    assert!(out.bytes().all(|byte| byte == b'x'));
}

pub async fn attach_reaches_the_containers_own_streams(b: Arc<Bench>) {
    let pod = b.pod().await;
    // Not every runtime delivers what is printed with the last breath.
    let mut spec = pod.shell("c", "while read l; do echo got $l; [ $l = end ] && sleep 1 && exit 12; done");
    spec.stdin = true;
    let id = pod.start(spec).await;
    let attach = Attach { stdin: true, stdout: true, stderr: true, tty: false };
    let mut session = b.runtime.attach(&id, &attach).await.expect("attach");
    let mut stdin = session.stdin.take().expect("asked for");
    let mut lines = BufReader::new(session.stdout.take().expect("asked for")).lines();
    stdin.write_all(b"hello\n").await.expect("write");
    assert_eq!(lines.next_line().await.expect("read").as_deref(), Some("got hello"));
    pod.says("c", "got hello").await;
    stdin.write_all(b"end\n").await.expect("write");
    assert_eq!(lines.next_line().await.expect("read").as_deref(), Some("got end"));
    assert_eq!(session.exit.await.expect("a code"), 12);
    assert_eq!(code(&pod.ended(&id).await), 12);
}

pub async fn attach_without_input_sees_output(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("c", "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done")).await;
    let attach = Attach { stdin: false, stdout: true, stderr: true, tty: false };
    let mut sessions = vec![];
    for _ in 0..2 {
        let session = b.runtime.attach(&id, &attach).await.expect("attach");
        sessions.push(session);
    }
    for session in &mut sessions {
        let mut lines = BufReader::new(session.stdout.take().expect("asked for")).lines();
        let line = lines.next_line().await.expect("read").expect("a line comes");
        assert!(line.starts_with("tick "), "{line}");
    }
    drop(sessions);
    assert!(pod.status(&id).await.expect("is observed").state.is_running(), "leaving does not end it");
}

pub async fn standard_input_ends_once_the_first_has_left(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.shell("c", "cat; echo over; exit 2");
    spec.stdin = true;
    spec.stdin_once = true;
    let id = pod.start(spec).await;
    let attach = Attach { stdin: true, stdout: true, stderr: true, tty: false };
    let mut session = b.runtime.attach(&id, &attach).await.expect("attach");
    session.stdin.as_mut().expect("asked for").write_all(b"some words\n").await.expect("write");
    pod.says("c", "some words").await;
    drop(session);
    pod.says("c", "over").await;
    assert_eq!(code(&pod.ended(&id).await), 2);
}

pub async fn a_port_of_the_pod_can_be_reached(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.start(pod.shell("c", "nc -ll -p 7070 -e /box/busybox cat")).await;
    let mut tunnel = eventually("the port opens", async || b.runtime.connect(&pod.id, 7070).await.ok()).await;
    tunnel.write_all(b"there and back\n").await.expect("write");
    let mut answer = [0; 15];
    tunnel.read_exact(&mut answer).await.expect("read");
    assert_eq!(&answer, b"there and back\n");
}

pub async fn a_port_on_which_nobody_listens_is_refused(b: Arc<Bench>) {
    let (pod, _id) = sleeping(&b).await;
    assert!(b.runtime.connect(&pod.id, 7071).await.is_err());
}
