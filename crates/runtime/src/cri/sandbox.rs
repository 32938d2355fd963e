//! Creates, updates and removes pod sandboxes of a CRI runtime, and the cgroups above them.

use std::{io, path::Path};

use super::{
    Inner,
    call::{ACTION_TIMEOUT, CallContext, with_deadline, with_timeout},
    config, label, proto,
};
use crate::{
    cgroup::Cgroup,
    error::RuntimeError,
    observed::SandboxId,
    port::Result,
    spec::{Resources, SandboxSpec},
};

impl Inner {
    pub(super) async fn create_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId> {
        let of_pod = self.client.sandboxes(label::selector(&self.settings.instance, Some(&spec.pod.uid))).await?;
        for there in of_pod.into_iter().filter(|s| attempt(s) == spec.attempt) {
            let id = SandboxId(there.id);
            if there.state == proto::PodSandboxState::SandboxReady as i32 {
                return Ok(id);
            }
            // Its name is taken as long as it is there.
            self.remove_sandbox(&id).await?;
        }
        if spec.users.is_some() {
            config::verify_sandbox(spec, &self.client.status().await?)?;
        }
        let _making = self.making.read().await;
        let cgroup = config::cgroup(&self.settings.instance, spec);
        let resources = spec.resources.clone();
        on_cgroup("make the pod's cgroup", cgroup.clone(), move |group| {
            group.create()?;
            group.limit(&resources)
        })
        .await?;
        let config = config::sandbox(&self.settings.instance, spec);
        let request = with_deadline(
            ACTION_TIMEOUT,
            proto::RunPodSandboxRequest { config: Some(config), runtime_handler: spec.runtime_handler.clone() },
        );
        let context = CallContext { doing: "create a sandbox", what: "sandbox", id: &spec.pod.uid.0 };
        match with_timeout(ACTION_TIMEOUT, context, self.client.runtime().run_pod_sandbox(request)).await {
            Ok(made) => Ok(SandboxId(made.pod_sandbox_id)),
            Err(error) => {
                self.clear_failed(spec, cgroup).await;
                Err(error)
            }
        }
    }

    /// What a failed attempt left, as far as the runtime can be asked: the rest is seen as not ready later.
    async fn clear_failed(&self, spec: &SandboxSpec, cgroup: String) {
        let labels = label::selector(&self.settings.instance, Some(&spec.pod.uid));
        let Ok(left) = self.client.sandboxes(labels).await else { return };
        for sandbox in left.into_iter().filter(|s| attempt(s) == spec.attempt) {
            let id = SandboxId(sandbox.id);
            let removed = async {
                self.client.stop_sandbox(&id).await?;
                self.client.remove_sandbox(&id).await
            };
            if let Err(error) = removed.await {
                tracing::warn!(%id, %error, "cannot remove a sandbox that failed to start");
                return;
            }
        }
        let path = cgroup.clone();
        let remove = move |group: Cgroup<'static>| {
            group.remove()?;
            remove_others(&path)
        };
        if let Err(error) = on_cgroup("remove a pod's cgroup", cgroup, remove).await {
            tracing::warn!(%error, "cannot remove the cgroup of a failed sandbox");
        }
    }

    pub(super) async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        let spec = match self.sandbox_spec(id).await {
            Err(RuntimeError::NotFound { .. }) => return Ok(()),
            spec => spec?,
        };
        gone_is_fine(self.client.stop_sandbox(id).await)?;
        // Before the record goes: whoever finds the sandbox can still find its cgroup.
        let cgroup = config::cgroup(&self.settings.instance, &spec);
        let path = cgroup.clone();
        on_cgroup("remove the pod's cgroup", cgroup.clone(), move |group| {
            group.kill_all(std::time::Duration::from_secs(5));
            group.remove()?;
            remove_others(&path)
        })
        .await?;
        gone_is_fine(self.client.remove_sandbox(id).await)?;
        if let Ok(_nobody) = self.making.try_write() {
            remove_empty_above(&cgroup);
        }
        Ok(())
    }

    pub(super) async fn update_sandbox(&self, id: &SandboxId, resources: &Resources) -> Result<()> {
        let spec = self.sandbox_spec(id).await?;
        let resources = resources.clone();
        let cgroup = config::cgroup(&self.settings.instance, &spec);
        on_cgroup("change the pod's limits", cgroup, move |group| group.limit(&resources)).await
    }

    pub(super) async fn sandbox_spec(&self, id: &SandboxId) -> Result<SandboxSpec> {
        let filter = proto::PodSandboxFilter { id: id.0.clone(), ..Default::default() };
        let request = proto::ListPodSandboxRequest { filter: Some(filter) };
        let context = CallContext { doing: "look for a sandbox", what: "sandbox", id: &id.0 };
        let found = with_timeout(super::call::QUERY_TIMEOUT, context, self.client.runtime().list_pod_sandbox(request))
            .await?
            .items;
        let spec = found.iter().find(|s| s.id == id.0).and_then(|s| label::sandbox_spec(&s.annotations));
        spec.ok_or_else(|| RuntimeError::NotFound { what: "sandbox", id: id.0.clone() })
    }

    /// Removes cgroups of pods that have no sandbox: an agent ended between making the one and the other.
    pub(super) async fn sweep_cgroups(&self) -> Result<()> {
        let _nobody = self.making.write().await;
        let sandboxes = self.client.sandboxes(label::selector(&self.settings.instance, None)).await?;
        let live: Vec<String> = sandboxes
            .iter()
            .filter_map(|s| label::sandbox_spec(&s.annotations))
            .map(|spec| config::cgroup(&self.settings.instance, &spec))
            .collect();
        let instance = self.settings.instance.clone();
        let swept = tokio::task::spawn_blocking(move || {
            for path in pod_cgroups(&instance).into_iter().filter(|path| !live.contains(path)) {
                match Cgroup::new(&path).remove().and_then(|()| remove_others(&path)) {
                    Ok(()) => tracing::info!(path, "removed a cgroup left behind"),
                    Err(error) => tracing::warn!(path, %error, "cannot remove a cgroup that was left behind"),
                }
            }
        });
        swept.await.map_err(|error| RuntimeError::failed("remove cgroups left behind", error))
    }
}

fn attempt(sandbox: &proto::PodSandbox) -> u32 {
    sandbox.metadata.as_ref().map_or(0, |m| m.attempt)
}

fn gone_is_fine<T>(answer: Result<T>) -> Result<()> {
    match answer {
        Ok(_) | Err(RuntimeError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn on_cgroup(
    doing: &'static str,
    path: String,
    act: impl FnOnce(Cgroup<'static>) -> io::Result<()> + Send + 'static,
) -> Result<()> {
    let acted = tokio::task::spawn_blocking(move || act(Cgroup::new(path))).await;
    acted.map_err(|error| RuntimeError::failed(doing, error))?.map_err(|error| RuntimeError::failed(doing, error))
}

fn remove_empty_above(cgroup: &str) {
    for above in Path::new(cgroup).ancestors().skip(1).filter(|path| path.parent().is_some()) {
        Cgroup::new(above).remove_if_empty();
        for directory in others(above) {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Low-level runtimes make the same path in hierarchies that limit nothing, and remove only their own part of it.
fn remove_others(cgroup: &str) -> io::Result<()> {
    for directory in others(Path::new(cgroup)) {
        match std::fs::remove_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn others(cgroup: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    let below = cgroup.strip_prefix("/").unwrap_or(cgroup);
    ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"].map(|root| Path::new(root).join(below)).into_iter()
}

/// `/instance/…/pod<uid>` of all pods that have a cgroup in some hierarchy.
fn pod_cgroups(instance: &str) -> Vec<String> {
    fn walk(directory: &Path, depth: u32, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().starts_with("pod") {
                found.push(entry.path());
            } else if depth > 0 {
                walk(&entry.path(), depth - 1, found);
            }
        }
    }
    let mut paths = Vec::new();
    for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
        let mut found = Vec::new();
        walk(&Path::new(root).join(instance), 2, &mut found);
        let below = found.iter().filter_map(|path| path.strip_prefix(root).ok());
        paths.extend(below.map(|path| format!("/{}", path.display())));
    }
    paths.sort();
    paths.dedup();
    paths
}
