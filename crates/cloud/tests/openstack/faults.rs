//! The client through a proxy that injects faults.

use std::{sync::Arc, time::Duration};

use mainstay_cloud::openstack::{CallCounter, Session, block_storage::NewVolume, session::Deadlines};
use serde_json::json;

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{DEADLINES, TestProject, config},
};

struct Fixture {
    project: TestProject,
    proxy: FaultProxy,
    session: Session,
    calls: Arc<CallCounter>,
}

async fn fixture(test: &str, deadlines: Deadlines) -> Fixture {
    let project = TestProject::create(test).await;
    let proxy = FaultProxy::start().await;
    let calls = Arc::<CallCounter>::default();
    let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
    let session = Session::with(config(&yaml), deadlines, calls.clone()).unwrap();
    session.project_id().await.expect("log in through the proxy");
    Fixture { project, proxy, session, calls }
}

fn volume() -> NewVolume {
    NewVolume { name: "v".into(), size: 1, metadata: [("t".to_owned(), "1".to_owned())].into(), ..NewVolume::default() }
}

#[tokio::test]
async fn reads_survive_errors_broken_connections_cut_answers_and_expired_tokens() {
    let Fixture { proxy, session, calls, .. } = fixture("reads", DEADLINES).await;
    let effects = [
        Effect::Status { code: 500, retry_after: None },
        Effect::Status { code: 503, retry_after: None },
        Effect::Close,
        Effect::Truncate,
        Effect::CutOff,
        Effect::Status { code: 401, retry_after: None },
    ];
    for (number, effect) in effects.into_iter().enumerate() {
        proxy.inject(Fault::new("/volumes/detail", 1, effect));
        assert_eq!(session.block_storage().list_volumes().await.unwrap(), [], "fault {number}");
    }
    assert_eq!(calls.count("log in"), 2, "a new token after the 401");
}

#[tokio::test]
async fn retry_after_is_honoured_also_for_creates() {
    let Fixture { proxy, session, .. } = fixture("busy", DEADLINES).await;
    proxy.inject(Fault::new("POST ", 1, Effect::Status { code: 429, retry_after: Some(2) }));
    let began = std::time::Instant::now();
    session.block_storage().create_volume(&volume()).await.expect("created after the pause");
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(proxy.calls().iter().filter(|line| line.starts_with("POST ") && line.ends_with("/volumes")).count(), 2);
}

#[tokio::test]
async fn a_create_without_an_answer_is_not_repeated_and_can_be_found() {
    let short = Deadlines { attempt: Duration::from_secs(8), call: Duration::from_secs(30) };
    let Fixture { proxy, session, project, .. } = fixture("unknown", short).await;
    for effect in [Effect::HangAfterWork, Effect::CloseAfterWork, Effect::Truncate] {
        proxy.inject(Fault::new("POST ", 1, effect));
        let before = project.session.block_storage().list_volumes_by_metadata("t", "1").await.unwrap().len();
        let error = session.block_storage().create_volume(&volume()).await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
        let after = project.session.block_storage().list_volumes_by_metadata("t", "1").await.unwrap().len();
        assert_eq!(after, before + 1, "created once: {error}");
    }
}

#[tokio::test]
async fn a_delete_that_was_done_without_an_answer_counts_as_done() {
    let Fixture { proxy, session, project, .. } = fixture("deletes", DEADLINES).await;
    let port =
        mainstay_cloud::openstack::network::NewPort { network_id: project.network.clone(), ..Default::default() };
    let port = session.network().create_port(&port).await.unwrap();
    proxy.inject(Fault::new("DELETE ", 1, Effect::CloseAfterWork));
    session.network().delete_port(&port.id).await.expect("gone is gone");
    assert_eq!(session.network().show_port(&port.id).await.unwrap(), None);
}

#[tokio::test]
async fn a_service_that_is_down_fails_within_the_deadline_and_is_transient() {
    let short = Deadlines { attempt: Duration::from_secs(2), call: Duration::from_secs(4) };
    let Fixture { proxy, session, .. } = fixture("down", short).await;
    proxy.inject(Fault::new("/volumes", usize::MAX, Effect::Status { code: 503, retry_after: None }));
    let error = session.block_storage().list_volumes().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(error.to_string().split(" (").next(), Some("block-storage: list volumes"));
    proxy.clear();
    session.block_storage().list_volumes().await.expect("it is back");
}

#[tokio::test]
async fn conflicts_and_stale_revisions_are_not_retried() {
    let Fixture { proxy, session, .. } = fixture("conflict", DEADLINES).await;
    for code in [409, 412] {
        proxy.inject(Fault::new("GET /v2.0/ports", 1, Effect::Status { code, retry_after: None }));
        let before = proxy.calls().len();
        assert!(session.network().list_ports(&Default::default()).await.unwrap_err().is_conflict());
        assert_eq!(proxy.calls().len(), before + 1);
    }
}

#[tokio::test]
async fn the_proxy_shows_what_is_stale_or_stuck() {
    let Fixture { proxy, session, .. } = fixture("stuck", DEADLINES).await;
    assert_eq!(session.block_storage().list_volumes().await.unwrap().len(), 0);
    let created = session.block_storage().create_volume(&volume()).await.unwrap();
    proxy.inject(Fault::new("/volumes/detail", 1, Effect::Stale));
    assert_eq!(session.block_storage().list_volumes().await.unwrap().len(), 0, "as it was before");
    assert_eq!(session.block_storage().list_volumes().await.unwrap().len(), 1);
    proxy.inject(Fault::new("GET /v3/", 1, Effect::Change(|body| body["volume"]["status"] = json!("deleting"))));
    let shown = session.block_storage().show_volume(&created.id).await.unwrap().unwrap();
    assert_eq!(shown.status, "deleting");
}
