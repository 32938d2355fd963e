//! Follows the Machine of this node, for the version that is wanted, and writes the part of its status that is the node's own.

use std::time::Duration;

use futures::StreamExt;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::machine::{Machine, MachineStatus, STATUS_OF_NODE};
use mainstay_errors::error_chain;
use mainstay_machines::steps::DesiredVersion;
use mainstay_watch::{Event, Watch};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::watch_backoff::{ApiRetries, watch_fields};

/// Tells what is wanted whenever that changes. A Machine that is gone changes nothing: nobody said otherwise.
pub async fn follow(machines: Api<Machine>, node_name: &str, desired: &watch::Sender<Option<DesiredVersion>>) {
    let mut news = Watch::<Machine>::new(machines, watch_fields(format!("metadata.name={node_name}")));
    let mut warned = false;
    while let Some(event) = news.next().await {
        match event {
            Ok(Event::Apply(machine) | Event::InitApply(machine)) => {
                let wanted = DesiredVersion { version: machine.spec.version, drain: machine.spec.drain };
                desired.send_if_modified(|before| before.replace(wanted.clone()).as_ref() != Some(&wanted));
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

/// Writes what is to be reported, the newest only, until it is written.
pub async fn write_reports(
    machines: Api<Machine>,
    node_name: &str,
    mut reports: watch::Receiver<Option<MachineStatus>>,
) {
    let mut retries = ApiRetries::new(Duration::from_millis(200), Duration::from_secs(10));
    loop {
        let report = reports.borrow_and_update().clone();
        if let Some(report) = report {
            let patch = Patch::Merge(json!({ "status": own_fields(&report) }));
            if let Err(error) = machines.patch_status(node_name, &PatchParams::default(), &patch).await {
                let wait = retries.record_failure();
                tracing::debug!(error = error_chain(&error), retry_in = ?wait, "cannot report the state of this machine; will retry");
                tokio::time::sleep(wait).await;
                continue;
            }
            retries.reset();
        }
        if reports.changed().await.is_err() {
            return;
        }
    }
}

/// All of them, so that what is no longer true is taken away.
fn own_fields(report: &MachineStatus) -> Map<String, Value> {
    let all = serde_json::to_value(report).unwrap_or_default();
    STATUS_OF_NODE.iter().map(|field| ((*field).to_owned(), all[*field].clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_takes_away_what_is_no_longer_true() {
        let fields = own_fields(&MachineStatus { version: Some(Default::default()), ..MachineStatus::default() });
        assert_eq!(
            Value::Object(fields),
            json!({"provisioned": null, "configured": null, "validated": null, "version": {}})
        );
    }
}
