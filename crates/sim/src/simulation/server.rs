//! One server process: the real API over its link to the store, leader election, controllers and scheduler.
//!
//! While it is frozen its electors are not polled, so that it does not notice that its terms are over; what the tasks of its terms have
//! decided waits at the link, and goes out the moment it goes on, before anybody has looked at a clock.

use std::sync::Arc;

use kube::Client;
use mainstay_api::registry::Registry as Kinds;
use mainstay_controllers::{Clients, Settings as ControllerSettings};
use mainstay_leader::{LeaderElectionConfig, LeaderTerm, run_while_leading};
use mainstay_scheduler::{Handle, Metrics, Settings as SchedulerSettings, metrics::Registry};
use mainstay_server::{
    api::Api,
    client,
    fence::Fence,
    handler::Handler,
    settings::{PodSecurityLevel, PodSecuritySettings, Settings},
};
use mainstay_store::Revision;
use tokio_util::sync::CancellationToken;

use super::{
    server_clock::OnServer,
    store::{Freezable, LinkState, StoreLink},
};

pub struct ServerProcess {
    pub handler: Arc<Handler>,
    pub link: Arc<StoreLink>,
    stop: CancellationToken,
}

impl ServerProcess {
    /// Starts one that takes part in the election as `identity`.
    pub fn start(link: Arc<StoreLink>, identity: &str, is_fenced: bool) -> Self {
        let (stop, number) = (CancellationToken::new(), link.server);
        let any = PodSecurityLevel::Privileged;
        let pod_security = PodSecuritySettings { enforce: any, warn: any, audit: any };
        let api = Api::new(Kinds::builtin(), link.clone(), Settings { pod_security, ..Settings::default() });
        let handler = Arc::new(Handler::new(api, stop.clone()));
        let config = |lease: &str| LeaderElectionConfig::new(lease, identity);
        // As the real server: what is written holds during the term alone.
        let client_of = move |handler: &Arc<Handler>, part: &str, term: &LeaderTerm| {
            let fence = Fence::new(&term.namespace, &term.name, Revision(term.version), term.ended.clone());
            match is_fenced {
                true => client::internal_fenced(handler.clone(), part, fence),
                false => client::internal(handler.clone(), part),
            }
        };
        let run_controllers = {
            let handler = handler.clone();
            move |term: LeaderTerm| {
                let clients = Clients::from(client_of(&handler, "controllers", &term));
                OnServer::with_tasks(
                    number,
                    mainstay_controllers::run(clients, ControllerSettings::default(), term.stop),
                )
            }
        };
        let elector = client::internal(handler.clone(), "elector");
        let lease = config("mainstay-controllers");
        let controllers = run_while_leading(elector.clone(), lease, stop.clone(), run_controllers);
        tokio::spawn(OnServer::new(number, Freezable::new(&link, controllers)));
        let run_scheduler = {
            let (handler, metrics) = (handler.clone(), Metrics::register(&mut Registry::default()));
            move |term: LeaderTerm| {
                let (client, settings) = (client_of(&handler, "scheduler", &term), SchedulerSettings::default());
                let work = mainstay_scheduler::run(client, settings, metrics.clone(), Handle::default(), term.stop);
                OnServer::with_tasks(number, work)
            }
        };
        let scheduler = run_while_leading(elector, config("mainstay-scheduler"), stop.clone(), run_scheduler);
        tokio::spawn(OnServer::new(number, Freezable::new(&link, scheduler)));
        Self { handler, link, stop }
    }

    pub fn client(&self, name: &str) -> Client {
        client::internal(self.handler.clone(), name)
    }

    /// As `kill -9`: nothing of it reaches the store any more.
    pub fn kill(&self) {
        self.link.set(LinkState::Dead);
        self.stop.cancel();
    }

    /// As SIGTERM: gives its Leases back.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}
