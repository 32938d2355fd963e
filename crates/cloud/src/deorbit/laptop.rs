//! Deorbits any Kubernetes cluster, Mainstay or upstream, by a command: the same looks and decisions as for Klusters, and the receipt as a value.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use mainstay_api::cloud::teardown_receipt::ReceiptStatus;
use mainstay_controllers::runtime::Clock;

use super::{
    cloud::DeorbitCloud,
    cluster,
    controller::read_ledger,
    notice::Notice,
    plan::{self, Action, ClusterContact, DeorbitEnd, DeorbitPlan, DeorbitWorld},
};

pub struct LaptopDeorbit<C> {
    pub client: Client,
    pub cloud: C,
    /// What the cluster's controllers call it in the cloud; may be empty.
    pub cluster_name: String,
    pub clock: Clock,
    /// A pause between looks is this many times shorter; 1 but in tests.
    pub haste: u32,
}

/// What happened, as it happens.
pub enum Progress<'a> {
    Acting(&'a Action),
    Notice(&'a Notice),
    /// The receipt after a look.
    Look(&'a DeorbitPlan),
    /// Something that is looked at or tried again.
    Trouble(&'a str),
}

/// The first look failed: nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("the cluster: {0}")]
    Cluster(String),
    #[error("the cloud: {0}")]
    Cloud(String),
}

impl<C: DeorbitCloud> LaptopDeorbit<C> {
    async fn look(&self, began: Timestamp, status: ReceiptStatus) -> DeorbitWorld {
        let contact = cluster::contact(&self.client).await;
        let ledger = match &contact {
            ClusterContact::Reached(_) => read_ledger(&self.client).await,
            ClusterContact::Unavailable(_) | ClusterContact::Refused(_) => Vec::new(),
        };
        let cloud = self.cloud.inventory().await.map_err(|error| mainstay_errors::error_chain(&error));
        DeorbitWorld { began, contact, cloud, ledger, cluster_name: self.cluster_name.clone(), status }
    }

    /// Both the cluster and the cloud have to answer once before anything is deleted.
    async fn first_look(&self, began: Timestamp) -> Result<DeorbitWorld, LookError> {
        let world = self.look(began, ReceiptStatus::default()).await;
        match (&world.contact, &world.cloud) {
            (ClusterContact::Unavailable(why) | ClusterContact::Refused(why), _) => {
                Err(LookError::Cluster(why.clone()))
            }
            (_, Err(why)) => Err(LookError::Cloud(why.clone())),
            (ClusterContact::Reached(_), Ok(_)) => Ok(world),
        }
    }

    /// What would be done first, and what there is.
    pub async fn dry_run(&self) -> Result<DeorbitPlan, LookError> {
        let now = self.clock.now();
        Ok(plan::plan(&self.first_look(now).await?, now))
    }

    /// Runs to the end; the receipt says how it ended.
    pub async fn run(&self, mut report: impl FnMut(Progress<'_>)) -> Result<(DeorbitEnd, ReceiptStatus), LookError> {
        let began = self.clock.now();
        let mut world = self.first_look(began).await?;
        loop {
            let now = self.clock.now();
            let mut plan = plan::plan(&world, now);
            plan.notices.iter().for_each(|notice| report(Progress::Notice(notice)));
            if let Some(why) = &plan.failure {
                report(Progress::Trouble(why));
            }
            self.act(&mut plan, &mut report).await;
            report(Progress::Look(&plan));
            if let Some(end) = plan.end {
                return Ok((end, plan.status));
            }
            let pause = Duration::try_from(plan.next_look.duration_since(now)).unwrap_or_default();
            tokio::time::sleep(pause / self.haste.max(1)).await;
            world = self.look(began, plan.status).await;
        }
    }

    /// Carries out the actions; the first that the cluster refuses ends the round.
    async fn act(&self, plan: &mut DeorbitPlan, report: &mut impl FnMut(Progress<'_>)) {
        for action in std::mem::take(&mut plan.actions) {
            report(Progress::Acting(&action));
            if let Action::DeleteInCloud { resource, id } = &action {
                if let Err(error) = self.cloud.remove(*resource, id).await {
                    let item = plan.status.items.iter_mut().find(|item| item.id == *id);
                    item.into_iter().for_each(|item| item.message = error.message());
                }
                continue;
            }
            let result = cluster::apply(&self.client, &action).await;
            let told = result.as_ref().copied().map_err(mainstay_controllers::runtime::error::message);
            if let Some(notice) = cluster::describe_result(&action, told) {
                report(Progress::Notice(&notice));
            }
            if let Err(error) = result {
                report(Progress::Trouble(&mainstay_errors::error_chain(&error)));
                return;
            }
        }
    }
}
