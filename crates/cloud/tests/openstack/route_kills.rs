//! The controller of routes is killed at every call of a run in which a Node comes and goes: the router, the port and the ledger hold exactly what the API says.
//!
//! One run without faults enumerates the calls. For each of them two more follow: killed before the service is asked, and killed after it did the work and
//! before anybody heard. `MAINSTAY_KILL_STRIDE=1` kills at all of them, otherwise at every third.

use mainstay_cloud::openstack::Session;
use mainstay_testing::until;

use crate::{
    fault_proxy::{FaultProxy, KillPoint},
    harness::{TestProject, config},
    routes::{Fixture, pair},
};

struct Run {
    proxy: FaultProxy,
    fixture: Fixture,
}

impl Run {
    async fn start(project: &TestProject) -> Self {
        let proxy = FaultProxy::start().await;
        let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
        let session = Session::new(config(&yaml)).unwrap();
        Self { fixture: Fixture::over(project.clone(), session).await, proxy }
    }

    /// Reconciles; if the kill comes first, drops the reconcile where it is and goes on with another controller.
    async fn sync(&mut self) {
        if !self.proxy.was_killed() {
            tokio::select! {
                () = self.proxy.killed() => {}
                result = self.fixture.sync() => return result.unwrap(),
            }
            self.fixture.restart();
        }
        let fixture = &self.fixture;
        until("a reconcile that succeeds", async || fixture.sync().await.is_ok()).await;
    }

    /// Node `n` comes and goes; each state is looked at twice.
    async fn add_and_remove_node(&mut self, n: u8, point: Option<KillPoint>) {
        let (range, port) = self.fixture.add_node(n).await;
        for look in ["first", "second"] {
            self.sync().await;
            let routes = self.fixture.routes().await;
            assert_eq!(routes, [pair(&range, &format!("10.180.1.{n}"))], "{look} look with the Node, {point:?}");
            assert_eq!(self.fixture.allowed(&port).await, [range.as_str()], "{look} look with the Node, {point:?}");
            assert_eq!(self.fixture.entries().await, 2, "{look} look with the Node, {point:?}");
        }
        self.fixture.delete_node(n).await;
        for look in ["first", "second"] {
            self.sync().await;
            assert_eq!(self.fixture.routes().await, [], "{look} look without the Node, {point:?}");
            assert_eq!(self.fixture.allowed(&port).await, [""; 0], "{look} look without the Node, {point:?}");
            assert_eq!(self.fixture.entries().await, 0, "{look} look without the Node, {point:?}");
        }
    }
}

#[tokio::test]
async fn killed_at_any_call_routes_are_those_of_the_nodes() {
    let project = TestProject::create("route-kills").await;
    let mut run = Run::start(&project).await;
    run.add_and_remove_node(10, None).await;
    let calls = run.proxy.calls().len();
    let stride = std::env::var("MAINSTAY_KILL_STRIDE").map_or(3, |text| text.parse().expect("a number"));
    let points =
        (0..calls).step_by(stride).flat_map(|call| [false, true].map(|after_work| KillPoint { call, after_work }));
    let (mut runs, mut kills) = (0, 0);
    for (point, n) in points.zip(11..) {
        let mut run = Run::start(&project).await;
        run.proxy.kill_at(point);
        run.add_and_remove_node(n, Some(point)).await;
        runs += 1;
        kills += usize::from(run.proxy.was_killed());
    }
    println!("{calls} calls, {runs} runs, {kills} kills, 0 leaks");
    assert_eq!(kills, runs, "every call of the first run is reached in each");
}
