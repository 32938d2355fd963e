//! Shims of unique pods stop them when the time in the fence file is up, whether or not there is an agent.

use std::time::Duration;

use mainstay_runtime::{
    FenceSupport, Runtime,
    builtin::paths::fence_file,
    fence::{FENCED, FenceLimit, GRACE, boot_time},
};
use mainstay_testing::until;

use crate::{
    pod::{ended, sandbox, says, shell, start, status},
    subject::Subject,
};

fn set_limit(subject: &Subject, limit: FenceLimit) {
    let run_dir = std::path::Path::new("/run").join(&subject.instance);
    limit.write(&fence_file(&run_dir)).expect("write the limit");
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_pod_ends_when_its_time_is_up_without_an_agent_and_another_pod_runs_on() {
    let subject = Subject::new().await;
    let agent = subject.open().await;
    let (unique, other) = (sandbox(&subject, "unique"), sandbox(&subject, "other"));
    let (unique_id, other_id) =
        (agent.create_sandbox(&unique).await.unwrap(), agent.create_sandbox(&other).await.unwrap());
    let extended = boot_time() + Duration::from_secs(3);
    set_limit(&subject, FenceLimit::Until(boot_time() + Duration::from_secs(1)));
    assert_eq!(agent.fence_sandbox(&unique_id, true).await.unwrap(), FenceSupport::Obeyed);
    set_limit(&subject, FenceLimit::Until(extended));
    // Children of its own, and one that does not listen.
    let script = "trap '' TERM; sleep 1001 & echo up; while :; do sleep 0.1; done";
    let stubborn = start(&agent, &unique_id, &shell(&agent, &unique, "stubborn", script).await).await;
    let polite = start(&agent, &unique_id, &shell(&agent, &unique, "polite", "exec sleep 1000").await).await;
    let ordinary = start(&agent, &other_id, &shell(&agent, &other, "c", "exec sleep 1000").await).await;
    says(&unique.log_directory.join("stubborn/0.log"), "up").await;
    let pids = [&stubborn, &polite].map(|id| id.clone());
    let mut processes = Vec::new();
    for id in &pids {
        processes.push(status(&agent, id).await.unwrap().pid.unwrap());
    }
    drop(agent);

    until("the polite one has ended", async || (!is_alive(processes[1])).then_some(())).await;
    assert!(boot_time() >= extended, "it ran until its time was up, which was extended once");
    until("the stubborn one has ended", async || (!is_alive(processes[0])).then_some(())).await;
    assert!(boot_time() >= extended + GRACE, "it had time to stop by itself");

    let agent = subject.open().await;
    for id in &pids {
        let (_, _, message) = ended(&agent, id).await;
        assert_eq!(message, FENCED);
        assert!(status(&agent, id).await.unwrap().state.was_fenced());
    }
    assert!(status(&agent, &ordinary).await.unwrap().state.is_running());
    assert!(agent.observe(None).await.unwrap().sandboxes.iter().all(|sandbox| sandbox.ready), "only containers ended");
    for id in [&unique_id, &other_id] {
        agent.remove_sandbox(id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_starts_in_a_unique_pod_whose_time_is_up_and_it_starts_when_there_is_time_again() {
    let subject = Subject::new().await;
    let runtime = &subject.runtime;
    let spec = sandbox(&subject, "unique");
    let id = runtime.create_sandbox(&spec).await.unwrap();
    let late = runtime.create_container(&id, &shell(runtime, &spec, "c", "exec sleep 1000").await).await.unwrap();
    assert_eq!(runtime.fence_sandbox(&id, true).await.unwrap(), FenceSupport::Obeyed);
    let refused = runtime.start_container(&late).await.unwrap_err().to_string();
    assert!(refused.contains("no contact"), "no file permits nothing: {refused}");
    set_limit(&subject, FenceLimit::Until(boot_time()));
    assert!(runtime.start_container(&late).await.is_err());
    set_limit(&subject, FenceLimit::Until(boot_time() + Duration::from_secs(3600)));
    runtime.start_container(&late).await.unwrap();

    // A limit that comes closer is obeyed once the shim is told to look.
    set_limit(&subject, FenceLimit::Until(boot_time()));
    runtime.fence_sandbox(&id, true).await.unwrap();
    assert_eq!(ended(runtime, &late).await.2, FENCED);

    // One that is no longer unique runs whatever the file says.
    runtime.fence_sandbox(&id, false).await.unwrap();
    let free = start(runtime, &id, &shell(runtime, &spec, "free", "exec sleep 1000").await).await;
    assert!(status(runtime, &free).await.unwrap().state.is_running());
}
