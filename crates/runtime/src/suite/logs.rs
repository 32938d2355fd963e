//! Log files: format, completeness, rotation.

use std::{fs, sync::Arc};

use crate::{
    spec::LogLimit,
    suite::{
        Bench,
        bench::{eventually, log, text},
    },
};

pub async fn lines_have_the_usual_format(b: Arc<Bench>) {
    let pod = b.pod().await;
    let before = jiff::Timestamp::now();
    pod.run(pod.shell("c", "echo to out; echo to err >&2; echo; echo '  spaces  kept '")).await;
    let after = jiff::Timestamp::now();
    let lines =
        eventually("four lines are there", async || Some(log(&pod.log_path("c", 0))).filter(|lines| lines.len() == 4))
            .await;
    let mut observed: Vec<_> = lines.iter().map(|l| (l.stream.as_str(), l.full, l.text.as_str())).collect();
    observed.sort();
    let expected = [
        ("stderr", true, "to err"),
        ("stdout", true, ""),
        ("stdout", true, "  spaces  kept "),
        ("stdout", true, "to out"),
    ];
    assert_eq!(observed, expected);
    assert!(lines.iter().all(|line| before <= line.time && line.time <= after), "{before} {lines:?} {after}");
    let raw = fs::read_to_string(pod.log_path("c", 0)).expect("read the log");
    let stamp = raw.split(' ').next().expect("a time comes first");
    assert!(stamp.contains('.') && stamp.len() >= "2024-01-01T00:00:00.000000000Z".len() - 3, "nanoseconds: {stamp}");
}

pub async fn long_lines_come_in_parts(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.run(pod.shell("c", "head -c 100000 /dev/zero | tr '\\0' x; echo; echo after")).await;
    let lines = eventually("the last line is there", async || {
        Some(log(&pod.log_path("c", 0))).filter(|lines| lines.last().is_some_and(|l| l.text == "after"))
    })
    .await;
    assert!(lines.len() > 2 && !lines[0].full, "in parts: {} lines", lines.len());
    assert!(lines.iter().all(|line| line.text.len() <= 32 << 10), "none is huge");
    assert_eq!(text(&pod.log_path("c", 0)), format!("{}\nafter\n", "x".repeat(100_000)));
}

pub async fn a_last_line_without_end_is_kept(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.run(pod.shell("c", "echo whole; printf half")).await;
    pod.says("c", "half").await;
    assert_eq!(text(&pod.log_path("c", 0)).trim_end(), "whole\nhalf");
}

pub async fn a_reopened_log_goes_on_in_a_new_file(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done")).await;
    pod.says("c", "line 3\n").await;
    let (path, aside) = (pod.log_path("c", 0), pod.log_path("c", 0).with_extension("aside"));
    fs::rename(&path, &aside).expect("move the log");
    b.runtime.reopen_log(&id).await.expect("reopen");
    eventually("the new file has lines", async || (log(&path).len() >= 3).then_some(())).await;
    b.runtime.stop_container(&id, std::time::Duration::ZERO).await.expect("stop");
    let all: Vec<_> = (text(&aside) + &text(&path)).lines().map(str::to_owned).collect();
    let expected: Vec<_> = (1..=all.len()).map(|i| format!("line {i}")).collect();
    assert_eq!(all, expected, "nothing is lost or doubled");
}

pub async fn a_flood_is_kept_whole(b: Arc<Bench>) {
    let pod = b.pod().await;
    // It stays: containerd may lose the last of what a container says while it ends.
    let id = pod.start(pod.shell("c", "seq 1 100000; exec sleep 100000")).await;
    eventually("the last line is there", async || {
        log(&pod.log_path("c", 0)).last().is_some_and(|l| l.text == "100000").then_some(())
    })
    .await;
    let lines = log(&pod.log_path("c", 0));
    assert_eq!(lines.len(), 100_000);
    assert!(lines.iter().zip(1..).all(|(line, n)| line.text == n.to_string()), "in order");
    b.runtime.stop_container(&id, std::time::Duration::ZERO).await.expect("stop");
}

pub async fn a_full_log_is_set_aside(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.shell("c", "i=0; while :; do i=$((i+1)); echo line $i of many that fill the file; done");
    spec.log_limit = LogLimit { bytes: 64 << 10, files: 3 };
    let id = pod.start(spec).await;
    let path = pod.log_path("c", 0);
    let files = || -> Vec<_> {
        let listed = fs::read_dir(path.parent().expect("has a directory")).expect("list the logs");
        listed.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    eventually("three files are there", async || (files().len() >= 3).then_some(())).await;
    b.runtime.stop_container(&id, std::time::Duration::ZERO).await.expect("stop");
    let names = files();
    assert!(names.iter().all(|name| name.starts_with("0.log")), "{names:?}");
    assert!(names.len() <= 4, "old ones are removed: {names:?}");
}
