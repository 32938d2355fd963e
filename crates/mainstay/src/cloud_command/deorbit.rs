//! `mainstay cloud deorbit`: removes what any Kubernetes cluster has in a cloud, and prints a receipt.
//!
//! What happens goes to stderr, the receipt to stdout. Ends with 0 when nothing remains, 1 when something does (the receipt names it), 2 when it could not be
//! found out: the cluster or the cloud does not answer.

use std::io::IsTerminal;

use anyhow::{Context, anyhow};
use clap::{Args, error::ErrorKind};
use mainstay_api::cloud::teardown_receipt::{ReceiptItem, ReceiptStatus};
use mainstay_cloud::deorbit::{
    laptop::{LaptopDeorbit, Progress},
    plan::{Action, DeorbitEnd, DeorbitPlan},
};
use mainstay_controllers::runtime::Clock;
use serde_json::json;

use super::CloudCommandOptions;
use crate::{exit::Exit, terminal::printable};

#[derive(Debug, Args)]
pub struct DeorbitOptions {
    /// What the cluster's controllers call it in the cloud, where they name load balancers and volumes after it
    #[arg(long, value_name = "NAME", default_value = "")]
    cluster_name: String,

    /// Only show what there is and what would be done first
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(options: &CloudCommandOptions, deorbit: &DeorbitOptions) -> Result<(), Exit> {
    if options.kubeconfig.is_none() {
        let message = "--kubeconfig FILE is needed: it says which cluster loses its volumes and load balancers\n";
        return Err(Exit::Usage(clap::Error::raw(ErrorKind::MissingRequiredArgument, message)));
    }
    let cloud = options.session()?;
    let client = options.connect().await?;
    let cluster_name = deorbit.cluster_name.clone();
    let laptop = LaptopDeorbit { client, cloud, cluster_name, clock: Clock::default(), haste: 1 };
    if deorbit.dry_run {
        let plan = laptop.dry_run().await.context("look at what there is")?;
        print_plan(&plan, options.json);
        return Ok(());
    }
    let mut display = ProgressDisplay::new();
    let result = laptop.run(|progress| display.show(&progress)).await;
    display.end();
    let (end, status) = result.context("look at what there is")?;
    print_receipt(&status, options.json);
    match end {
        DeorbitEnd::Complete if status.items.iter().all(|item| item.gone.is_some()) => Ok(()),
        DeorbitEnd::Complete => Err(Exit::Code(1)),
        DeorbitEnd::SelfDestruct(_) => {
            Err(Exit::Failed(anyhow!("gave up ({}); the receipt is incomplete", end.text())))
        }
    }
}

/// What would be done first, and everything that was found.
fn print_plan(plan: &DeorbitPlan, as_json: bool) {
    let steps: Vec<String> = plan.actions.iter().map(describe_action).collect();
    if as_json {
        println!("{:#}", json!({ "steps": steps, "items": plan.status.items }));
        return;
    }
    if steps.is_empty() && plan.status.items.is_empty() {
        println!("The cluster has nothing in the cloud.");
        return;
    }
    steps.iter().for_each(|step| println!("would {step}"));
    plan.status.items.iter().for_each(|item| println!("{}", describe_item(item)));
}

fn print_receipt(status: &ReceiptStatus, as_json: bool) {
    if as_json {
        println!("{:#}", json!(status));
        return;
    }
    status.items.iter().for_each(|item| println!("{}", describe_item(item)));
    let remaining = status.items.iter().filter(|item| item.gone.is_none()).count();
    println!("{}: {} removed, {remaining} remain.", status.result, status.items.len() - remaining);
}

fn describe_action(action: &Action) -> String {
    let words = match action {
        Action::DeleteSnapshot(id) => format!("delete volume snapshot {id}"),
        Action::DeleteClaim(id) => format!("delete persistent volume claim {id}"),
        Action::DeleteService(id) => format!("delete service {id}"),
        Action::ScaleDown(id) => format!("scale stateful set {id} to 0"),
        Action::DeletePod(id) => format!("delete pod {id}, which holds a claim"),
        Action::DeleteInCloud { resource, id } => format!("delete {resource:?} {id} in the cloud"),
    };
    printable(&words)
}

fn describe_item(item: &ReceiptItem) -> String {
    let name = if item.name.is_empty() { String::new() } else { format!(" ({})", item.name) };
    let what = format!("{:?} {}{name}", item.resource, item.id);
    printable(&match &item.gone {
        Some(time) => format!("{what}: {} and gone since {}", item.action, time.0),
        None => format!("{what}: {}, remains: {}", item.action, item.message),
    })
}

/// A line per event on stderr and, on a terminal, a last line with how much is left.
struct ProgressDisplay {
    is_terminal: bool,
    has_line: bool,
}

impl ProgressDisplay {
    fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), has_line: false }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Acting(action) => self.print(&describe_action(action)),
            Progress::Notice(notice) => self.print(&printable(&notice.message)),
            Progress::Trouble(why) => self.print(&printable(&format!("{why}; trying again"))),
            Progress::Look(plan) if self.is_terminal => {
                let left: Vec<&ReceiptItem> = plan.status.items.iter().filter(|item| item.gone.is_none()).collect();
                let first = left.first().map(|item| format!(", {:?} {}", item.resource, item.id)).unwrap_or_default();
                let (all, stage) = (plan.status.items.len(), &plan.status.stage);
                eprint!("\r\x1b[K{} of {all} gone{} {stage}", all - left.len(), printable(&first));
                self.has_line = true;
            }
            Progress::Look(_) => {}
        }
    }

    fn print(&mut self, line: &str) {
        self.end();
        eprintln!("{line}");
    }

    /// Takes the last line away.
    fn end(&mut self) {
        if std::mem::take(&mut self.has_line) {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use mainstay_api::cloud::cloud_resource::ResourceType;

    use super::*;

    #[test]
    fn items_say_what_became_of_them() {
        let mut item = ReceiptItem {
            resource: ResourceType::Volume,
            id: "v1".to_owned(),
            name: "pvc-1".to_owned(),
            action: "DeletedByOwner".to_owned(),
            message: "the cloud still has it: deleting".to_owned(),
            ..ReceiptItem::default()
        };
        assert_eq!(
            describe_item(&item),
            "Volume v1 (pvc-1): DeletedByOwner, remains: the cloud still has it: deleting"
        );
        item.gone = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(describe_item(&item), "Volume v1 (pvc-1): DeletedByOwner and gone since 2026-01-01T00:00:00Z");
    }
}
