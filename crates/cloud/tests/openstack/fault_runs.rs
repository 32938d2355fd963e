//! A run that creates, attaches and tears down while calls fail in all the ways in which services fail: it ends as one without faults does.

use serde_json::{Value, json};

use crate::{
    attachments::create_server,
    fault_proxy::{Effect, Fault, summary},
    harness::TestProject,
    kills::Run,
    volumes::start_binder,
};

/// Between one fault and the next, so many calls are let through.
const CALLS_BETWEEN: usize = 3;
const ROUNDS: usize = 2;

fn effects() -> Vec<Effect> {
    let status = |code, retry_after| Effect::Status { code, retry_after };
    vec![
        status(500, None),
        Effect::CloseAfterWork,
        status(429, Some(1)),
        Effect::Truncate,
        status(401, None),
        Effect::HangAfterWork,
        status(503, None),
        Effect::Close,
        Effect::CutOff,
        status(409, None),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_fail_in_every_way_leave_nothing_behind() {
    let project = TestProject::create("fault-runs").await;
    let server = create_server(&project, "node-1").await;
    let mut run = Run::start(&project, &server).await;
    let binder = start_binder(&run.api);
    let effects = effects();
    for number in 0..effects.len() * ROUNDS {
        let effect = effects[number % effects.len()].clone();
        run.proxy.inject(Fault::new("", 1, effect).after(CALLS_BETWEEN * (number + 1)));
    }
    run.create_and_tear_down().await;
    assert_eq!(run.proxy.pending_faults(), 0, "all faults came: {:?}", summary(&run.proxy.calls()));
    for look in ["first", "second"] {
        assert_eq!(run.leftovers().await, [] as [&str; 0], "{look} look");
    }
    println!("{} calls, {} faults, 0 leaks", run.proxy.calls().len(), effects.len() * ROUNDS);
    binder.cancel();
    project.session.compute().delete_server(&server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_are_down_for_a_while_delay_a_run_and_leave_nothing_behind() {
    let project = TestProject::create("outages").await;
    let server = create_server(&project, "node-1").await;
    let mut run = Run::start(&project, &server).await;
    let binder = start_binder(&run.api);
    // Each service in turn: more calls than one reconcile makes with all its attempts.
    for (line, skip) in [("/volumes", 0), ("/lbaas/", 2), ("/servers/", 1), ("/floatingips", 1)] {
        run.proxy.inject(Fault::new(line, 12, Effect::Status { code: 503, retry_after: None }).after(skip));
    }
    run.create_and_tear_down().await;
    assert_eq!(run.proxy.pending_faults(), 0, "all were down: {:?}", summary(&run.proxy.calls()));
    assert_eq!(run.leftovers().await, [] as [&str; 0]);
    binder.cancel();
    project.session.compute().delete_server(&server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_reads_and_states_that_hang_delay_a_run_and_leave_nothing_behind() {
    let project = TestProject::create("hanging-states").await;
    let server = create_server(&project, "node-1").await;
    let mut run = Run::start(&project, &server).await;
    let binder = start_binder(&run.api);
    let volume = |status: fn(&mut Value)| Effect::Change(status);
    for fault in [
        // A load balancer that is being changed, by whomever, and refuses everything meanwhile.
        Fault::new(
            "GET /v2/lbaas/loadbalancers/",
            4,
            Effect::Change(|body| body["loadbalancer"]["provisioning_status"] = json!("PENDING_UPDATE")),
        )
        .after(3),
        Fault::new("POST /v2/lbaas/", 1, Effect::Status { code: 409, retry_after: None }).after(2),
        // A volume that takes its time to come, and to go.
        Fault::new("GET /v3/", 2, volume(|body| body["volume"]["status"] = json!("creating"))).after(2),
        // What was true a while ago.
        Fault::new("GET /v2/lbaas/listeners", 2, Effect::Stale).after(2),
        Fault::new("GET /v2.0/floatingips/", 2, Effect::Stale).after(1),
        Fault::new("GET /v2.1/servers/", 2, Effect::Stale).after(2),
    ] {
        run.proxy.inject(fault);
    }
    run.create_and_tear_down().await;
    for look in ["first", "second"] {
        assert_eq!(run.leftovers().await, [] as [&str; 0], "{look} look: {:?}", summary(&run.proxy.calls()));
    }
    binder.cancel();
    project.session.compute().delete_server(&server).await.unwrap();
}
