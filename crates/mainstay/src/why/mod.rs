//! `mainstay why`: where a pod is, or why it is nowhere, and what happened to it so far.
//!
//! Everything told is read from the API: conditions, events and statuses. Nothing is known here that `kubectl` could
//! not show; it is put together so that it answers the question.

mod tell;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{cli::DataDir, exit::Exit};

#[derive(Debug, Args)]
pub struct WhyOptions {
    /// What to explain: `pod/NAME` or just `NAME`, or `deployment/NAME` and the like for all pods of it
    #[arg(value_name = "WHAT", value_parser = What::parse)]
    what: What,

    /// Its namespace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    data: DataDir,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct What {
    kind: Kind,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pod,
    /// Something that keeps pods, by group, kind and plural.
    Keeper(&'static str, &'static str, &'static str),
}

/// What people call the kinds that can be asked about.
const KEEPERS: [(&[&str], Kind); 6] = [
    (&["deployment", "deployments", "deploy"], Kind::Keeper("apps", "Deployment", "deployments")),
    (&["replicaset", "replicasets", "rs"], Kind::Keeper("apps", "ReplicaSet", "replicasets")),
    (&["statefulset", "statefulsets", "sts"], Kind::Keeper("apps", "StatefulSet", "statefulsets")),
    (&["daemonset", "daemonsets", "ds"], Kind::Keeper("apps", "DaemonSet", "daemonsets")),
    (&["job", "jobs"], Kind::Keeper("batch", "Job", "jobs")),
    (&["replicationcontroller", "replicationcontrollers", "rc"], {
        Kind::Keeper("", "ReplicationController", "replicationcontrollers")
    }),
];

impl What {
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        if name.is_empty() || name.contains('/') {
            return Err("write it like pod/NAME or deployment/NAME".to_owned());
        }
        let asked = kind.to_lowercase();
        let kind = if ["pod", "pods", "po"].contains(&asked.as_str()) {
            Kind::Pod
        } else {
            let found = KEEPERS.iter().find(|(names, _)| names.contains(&asked.as_str()));
            found.map(|(_, kind)| *kind).ok_or_else(|| {
                let known: Vec<&str> = KEEPERS.iter().map(|(names, _)| names[0]).collect();
                format!("{kind:?} is not known; there are pod, {}", known.join(", "))
            })?
        };
        Ok(Self { kind, name: name.to_owned() })
    }
}

pub fn run(options: &WhyOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    runtime.block_on(async {
        let client = connect(options).await?;
        let text = match options.what.kind {
            Kind::Pod => explain_pod(&client, options).await?,
            Kind::Keeper(group, kind, plural) => explain_keeper(&client, options, (group, kind, plural)).await?,
        };
        print!("{text}");
        Ok(())
    })
}

async fn connect(options: &WhyOptions) -> anyhow::Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = options.kubeconfig.clone().unwrap_or_else(|| options.data.path().join("admin.kubeconfig"));
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| {
        format!("read {}; name another with --kubeconfig, or the server's --data-dir", path.display())
    })?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

async fn explain_pod(client: &Client, options: &WhyOptions) -> Result<String, Exit> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &options.namespace);
    let name = &options.what.name;
    let Some(pod) = pods.get_opt(name).await.with_context(|| format!("read pod {name}"))? else {
        return Err(Exit::Refused(anyhow!("there is no pod {name:?} in namespace {:?}", options.namespace)));
    };
    let events = events_of(client, &options.namespace, "Pod", name, pod.metadata.uid.as_deref()).await?;
    Ok(tell::pod(&pod, &events, Timestamp::now()))
}

async fn explain_keeper(client: &Client, options: &WhyOptions, kind: (&str, &str, &str)) -> Result<String, Exit> {
    let (group, kind, plural) = kind;
    let resource = ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let (namespace, name) = (&options.namespace, &options.what.name);
    let keepers: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Some(keeper) = keepers.get_opt(name).await.with_context(|| format!("read {kind} {name}"))? else {
        let kind = kind.to_lowercase();
        return Err(Exit::Refused(anyhow!("there is no {kind} {name:?} in namespace {namespace:?}")));
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selected = match tell::selector(&keeper.data) {
        Some(labels) => pods.list(&ListParams::default().labels(&labels)).await.context("list its pods")?.items,
        None => Vec::new(),
    };
    let events = events_of(client, namespace, kind, name, keeper.metadata.uid.as_deref()).await?;
    let now = Timestamp::now();
    let mut text = tell::keeper(kind, &keeper, &selected, &events, now);
    for pod in tell::troubled(&selected) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let events = events_of(client, namespace, "Pod", name, pod.metadata.uid.as_deref()).await?;
        text.push('\n');
        text.push_str(&tell::pod(pod, &events, now));
    }
    Ok(text)
}

async fn events_of(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
    uid: Option<&str>,
) -> anyhow::Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let about = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let mut all = events.list(&ListParams::default().fields(&about)).await.context("list its events")?.items;
    // An earlier object of the same name has a history of its own.
    all.retain(|event| event.involved_object.uid.as_deref().is_none_or(|about| Some(about) == uid));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_about_is_understood_or_refused() {
        let pod = Ok(What { kind: Kind::Pod, name: "web".to_owned() });
        for text in ["web", "pod/web", "po/web", "Pods/web"] {
            assert_eq!(What::parse(text), pod, "{text}");
        }
        let Ok(What { kind: Kind::Keeper("apps", "Deployment", _), .. }) = What::parse("deploy/web") else { panic!() };
        for wrong in ["", "pod/", "pod/a/b", "service/web"] {
            assert!(What::parse(wrong).is_err(), "{wrong}");
        }
    }
}
