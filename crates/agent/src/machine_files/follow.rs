//! Follows the MachineFiles that name this node.

use std::{collections::BTreeMap, sync::Arc};

use futures::StreamExt;
use kube::Api;
use mainstay_api::machine_file::MachineFile;
use mainstay_errors::error_chain;
use mainstay_watch::{Event, Watch};
use tokio::sync::watch;

use super::WantedFiles;
use crate::watch_backoff::watch_fields;

/// Tells which files there are to be whenever that changes, from the first complete list on. A server that stops answering changes nothing.
pub async fn follow(files: Api<MachineFile>, node_name: &str, wanted: &watch::Sender<WantedFiles>) {
    let mut news = Watch::<MachineFile>::new(files, watch_fields(format!("spec.nodeName={node_name}")));
    let (mut listed, mut warned) = (BTreeMap::new(), false);
    while let Some(event) = news.next().await {
        match event {
            Ok(Event::Init) => listed = BTreeMap::new(),
            Ok(Event::InitApply(file)) => {
                listed.insert(key(&file), Arc::new(file));
            }
            Ok(Event::InitDone) => {
                warned = false;
                let list = std::mem::take(&mut listed);
                wanted.send_if_modified(|known| known.replace(list.clone()).as_ref() != Some(&list));
            }
            Ok(Event::Apply(file)) => wanted.send_modify(|known| {
                known.get_or_insert_default().insert(key(&file), Arc::new(file));
            }),
            Ok(Event::Delete(file)) => wanted.send_modify(|known| {
                known.get_or_insert_default().remove(&key(&file));
            }),
            Err(error) if !std::mem::replace(&mut warned, true) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot watch the files of this machine; they stay as they are until it can"
                );
            }
            Err(error) => tracing::debug!(error = error_chain(&error), "still cannot watch the files of this machine"),
        }
    }
}

fn key(file: &MachineFile) -> String {
    format!("{}/{}", file.namespace(), file.name())
}
