//! A run that creates, attaches and tears down while calls fail in all the ways in which services fail: it ends as one without faults does.

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
