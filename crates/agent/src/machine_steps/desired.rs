//! Follows the Machine of this node, for the version that is wanted, and writes the part of its status that is the node's own.

use std::time::Duration;

use futures::StreamExt;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::machine::{Machine, MachineStatus, STATUS_OF_NODE};
use mainstay_errors::error_chain;
use mainstay_machines::{
    status_patch::{state_patch, version_patch},
    steps::DesiredVersion,
};
use mainstay_watch::{Event, Watch};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::watch_backoff::{ApiRetries, watch_fields};

/// The part of a status that is the node's own, as a merge patch has it.
pub type OwnFields = Map<String, Value>;

/// Tells what is wanted, and what the API says of this machine, whenever that changes. A Machine that is gone changes nothing: nobody said
/// otherwise.
pub async fn follow(
    machines: Api<Machine>,
    node_name: &str,
    desired: &watch::Sender<Option<DesiredVersion>>,
    stored: &watch::Sender<Option<OwnFields>>,
) {
    let mut news = Watch::<Machine>::new(machines, watch_fields(format!("metadata.name={node_name}")));
    let mut warned = false;
    while let Some(event) = news.next().await {
        match event {
            Ok(Event::Apply(machine) | Event::InitApply(machine)) => {
                let wanted = DesiredVersion { version: machine.spec.version, drain: machine.spec.drain };
                desired.send_if_modified(|before| before.replace(wanted.clone()).as_ref() != Some(&wanted));
                let own = own_fields(&machine.status.unwrap_or_default());
                stored.send_if_modified(|before| before.replace(own.clone()).as_ref() != Some(&own));
            }
            Ok(Event::Init | Event::Delete(_)) => {}
            Ok(Event::InitDone) => warned = false,
            Err(error) if !std::mem::replace(&mut warned, true) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot watch the Machine of this node; will retry until it can"
                );
            }
            Err(error) => tracing::debug!(error = error_chain(&error), "still cannot watch the Machine of this node"),
        }
    }
}

/// Writes what is to be reported, the newest only, until it is written, and again if the API says something else: the Machine was deleted and made
/// anew, or the API's store was restored.
pub async fn write_reports(
    machines: Api<Machine>,
    node_name: &str,
    mut reports: watch::Receiver<Option<MachineStatus>>,
    mut stored: watch::Receiver<Option<OwnFields>>,
) {
    let mut retries = ApiRetries::new(Duration::from_millis(200), Duration::from_secs(10));
    let (mut written, mut shown): (Option<OwnFields>, Option<OwnFields>) = (None, None);
    loop {
        let report = reports.borrow_and_update().as_ref().map(own_fields);
        let is_lost = stored.borrow_and_update().as_ref().is_some_and(|stored| shown.as_ref() != Some(stored));
        if let Some(report) = report.filter(|report| is_lost || written.as_ref() != Some(report)) {
            let patch = Patch::Merge(json!({ "status": report }));
            match machines.patch_status(node_name, &PatchParams::default(), &patch).await {
                Ok(machine) => {
                    (written, shown) = (Some(report), machine.status.as_ref().map(own_fields));
                    retries.reset();
                }
                Err(error) => {
                    let wait = retries.record_failure();
                    tracing::debug!(error = error_chain(&error), retry_in = ?wait, "cannot report the state of this machine; will retry");
                    tokio::time::sleep(wait).await;
                    continue;
                }
            }
        }
        let changed = tokio::select! {
            changed = reports.changed() => changed,
            changed = stored.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// All of them, so that what is no longer true is taken away.
fn own_fields(report: &MachineStatus) -> OwnFields {
    let value = |field: &str| match field {
        "provisioned" => state_patch(report.provisioned.as_ref()),
        "configured" => state_patch(report.configured.as_ref()),
        "validated" => state_patch(report.validated.as_ref()),
        _ => version_patch(report.version.as_ref()),
    };
    STATUS_OF_NODE.iter().map(|field| ((*field).to_owned(), value(field))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_takes_away_what_is_no_longer_true() {
        let fields = own_fields(&MachineStatus { version: Some(Default::default()), ..MachineStatus::default() });
        assert_eq!(
            Value::Object(fields),
            json!({
                "provisioned": null, "configured": null, "validated": null,
                "version": {"running": null, "runningSince": null, "wanted": null},
            })
        );
    }
}
