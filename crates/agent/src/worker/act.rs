//! Executes planned actions. Nothing is decided here, and every action may be repeated.

use std::{
    any::Any,
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{core::v1::Pod, node::v1::RuntimeClass};
use kube::{Api, api::DeleteParams};
use mainstay_errors::error_chain;
use mainstay_runtime::{
    ContainerId, ContainerStatus, PodUid, RuntimeError, SandboxStatus, idmap::UserNamespace, images::Image,
    observed::ContainerStats, spec::Resources,
};
use tokio_util::sync::CancellationToken;

use super::{
    WorkerContext,
    image::{self, ImageRequest},
    plan::{Action, StopWhy},
    report,
    retry_state::FailureKind,
    world::{GRACE, IDENTITY, RESOURCES},
};
use crate::{
    container_lists::find_container, devices::DeviceError, events::EventType, hook::HookTarget, pods::Source, spec,
    volumes::PrepareError,
};

/// The least a container gets after its preStop hook has used up the pod's grace.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// Whom an action is about, as of when it was decided.
#[derive(Clone)]
pub struct Subject {
    /// Unknown for pods that nobody wants any more and nobody remembers.
    pub pod: Option<Arc<Pod>>,
    pub source: Option<Source>,
    pub sandbox: Option<SandboxStatus>,
    /// Cancelled when a start is to be given up, because the pod ends.
    pub give_up: CancellationToken,
}

#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

impl Failure {
    /// A fault in our own code. What was under way is tried again like anything that failed.
    pub fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::other(format!("internal error: {}", text.unwrap_or("panic")))
    }

    fn of_devices(error: &DeviceError) -> Self {
        Self { kind: FailureKind::Devices, message: error_chain(error) }
    }

    fn other(error: impl std::fmt::Display) -> Self {
        Self { kind: FailureKind::Other, message: error.to_string() }
    }
}

type ActionResult = Result<(), Failure>;

pub async fn act(
    context: &WorkerContext,
    uid: &mainstay_runtime::PodUid,
    on: &Subject,
    action: Action,
) -> ActionResult {
    match action {
        Action::PrepareVolumes => prepare_volumes(context, on).await,
        Action::CreateSandbox { attempt } => create_sandbox(context, on, attempt).await,
        Action::PullImage { container } => pull_image(context, on, &container).await.map(drop),
        Action::Start { container, attempt } => start(context, on, &container, attempt).await,
        Action::Stop { container, id, grace, why } => stop(context, on, &container, &id, grace, &why).await,
        Action::Resize { container, id } => resize(context, on, &container, &id).await,
        Action::Remove { ids } => {
            for id in ids {
                gone(context.runtime.remove_container(&id).await)?;
            }
            Ok(())
        }
        Action::RemoveSandboxes { ids, why } => {
            for id in ids {
                tracing::info!(sandbox = %id, why, "remove sandbox");
                gone(context.runtime.remove_sandbox(&id).await)?;
            }
            Ok(())
        }
        Action::ReleaseVolumes => {
            context.devices.unprepare(uid).await.map_err(|error| Failure::of_devices(&error))?;
            context.volumes.release(uid).await.map_err(Failure::other)
        }
        Action::RequestRestart => {
            if let Some(pod) = &on.pod {
                context.healer.request_restart(pod).await;
            }
            Ok(())
        }
        Action::RequestTurn => {
            if let Some(pod) = &on.pod {
                context.turns.request(pod).await;
            }
            Ok(())
        }
        Action::RemoveFromApi => remove_from_api(context, on).await,
        Action::Move { why } => move_away(context, on, &why).await,
    }
}

fn gone(result: Result<(), RuntimeError>) -> ActionResult {
    match result {
        Err(error) if !error.is_not_found() => Err(Failure::other(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn pod(on: &Subject) -> Result<&Arc<Pod>, Failure> {
    on.pod.as_ref().ok_or_else(|| Failure::other("the pod is not known any more"))
}

async fn prepare_volumes(context: &WorkerContext, on: &Subject) -> ActionResult {
    let pod = pod(on)?;
    for (volume, source) in context.volumes.missing_images(pod) {
        let reference = source.reference.as_deref().unwrap_or_default();
        let policy = source.pull_policy.as_deref().unwrap_or("IfNotPresent");
        let request = ImageRequest { container: None, reference, policy };
        let Some(resolved) = on.give_up.run_until_cancelled(image::resolve(context, pod, &request)).await else {
            return Err(Failure::other("given up, because the pod ends"));
        };
        resolved.map_err(|no| Failure { kind: no.kind, message: format!("volume {volume:?}: {}", no.message) })?;
    }
    context.volumes.prepare(pod).await.map_err(|error| match error {
        // The worker says so if it takes long.
        PrepareError::Pending { .. } => Failure { kind: FailureKind::PendingVolume, message: error.to_string() },
        PrepareError::Failed(error) => {
            let text = error_chain(&error);
            context.events.pod(pod, EventType::Warning, "FailedMount", text.clone());
            Failure::other(text)
        }
    })?;
    prepare_devices(context, on, pod).await
}

/// The devices of the pod's claims.
async fn prepare_devices(context: &WorkerContext, on: &Subject, pod: &Pod) -> ActionResult {
    let Some(prepared) = on.give_up.run_until_cancelled(context.devices.prepare(pod)).await else {
        return Err(Failure::other("given up, because the pod ends"));
    };
    prepared.map_err(|error| {
        let text = format!("Failed to prepare dynamic resources: {}", error_chain(&error));
        context.events.pod(pod, EventType::Warning, "FailedPrepareDynamicResources", text);
        Failure::of_devices(&error)
    })
}

async fn create_sandbox(context: &WorkerContext, on: &Subject, attempt: u32) -> ActionResult {
    let pod = pod(on)?;
    let fail = |why: String| {
        let text = format!("Failed to create pod sandbox: {why}");
        context.events.pod(pod, EventType::Warning, "FailedCreatePodSandBox", text);
        Failure::other(why)
    };
    let mut spec = context.specs.sandbox(pod, attempt).map_err(|error| fail(error_chain(&error)))?;
    spec.users = user_namespace(context, pod).await.map_err(|error| fail(error_chain(&error)))?;
    spec.runtime_handler = runtime_handler(context, pod).await.map_err(&fail)?;
    context.runtime.create_sandbox(&spec).await.map_err(|error| fail(error_chain(&error)))?;
    Ok(())
}

/// `hostUsers: false`: the pod's block of ids.
async fn user_namespace(context: &WorkerContext, pod: &Pod) -> Result<Option<UserNamespace>, RuntimeError> {
    if pod.spec.as_ref().and_then(|spec| spec.host_users) != Some(false) {
        return Ok(None);
    }
    let mut live: BTreeSet<PodUid> = context.pods.active_pods().into_iter().map(|(uid, _)| uid).collect();
    live.extend(context.runtime.observe(None).await?.sandboxes.into_iter().map(|sandbox| sandbox.pod.uid));
    let users = context.user_ids.allocate(&spec::pod_ref(pod).uid, &live);
    users.map(Some).map_err(|error| RuntimeError::failed("allocate user ids for hostUsers: false", error))
}

/// What the pod's RuntimeClass names; the runtime itself says whether it has it.
async fn runtime_handler(context: &WorkerContext, pod: &Pod) -> Result<String, String> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
    if class.is_empty() {
        return Ok(String::new());
    }
    let classes: Api<RuntimeClass> = Api::all(context.client.clone());
    match classes.get_opt(class).await {
        Ok(Some(found)) => Ok(found.handler),
        Ok(None) => Err(format!("failed to get sandbox runtime: RuntimeClass {class:?} not found")),
        Err(error) => Err(format!("failed to get RuntimeClass {class:?}: {}", error_chain(&error))),
    }
}

async fn pull_image(context: &WorkerContext, on: &Subject, name: &str) -> Result<Image, Failure> {
    let pod = pod(on)?;
    let container = find_container(pod, name).ok_or_else(|| Failure::other("no such container in the pod"))?;
    let request = ImageRequest {
        container: Some(name),
        reference: container.image.as_deref().unwrap_or_default(),
        policy: container.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
    };
    // Other pods may wait for the same image: what was fetched so far is not lost.
    let Some(resolved) = on.give_up.run_until_cancelled(image::resolve(context, pod, &request)).await else {
        return Err(Failure::other("given up, because the pod ends"));
    };
    resolved.map_err(|no| Failure { kind: no.kind, message: no.message })
}

async fn start(context: &WorkerContext, on: &Subject, name: &str, attempt: u32) -> ActionResult {
    let pod = pod(on)?;
    let container = find_container(pod, name).ok_or_else(|| Failure::other("no such container in the pod"))?;
    let sandbox = on.sandbox.as_ref().ok_or_else(|| Failure::other("the pod has no sandbox"))?;
    let say = |kind, reason, text: String| context.events.container(pod, name, kind, reason, text);
    let failed = |kind: FailureKind, message: String| {
        say(EventType::Warning, "Failed", format!("Error: {message}"));
        Failure { kind, message }
    };

    let image = pull_image(context, on, name).await?;
    let wanted =
        spec::ContainerRequest { pod, name, attempt, image: &image, addresses: &addresses(context, pod, sandbox) };
    let mut made = context.specs.container(&wanted).await.map_err(|e| failed(FailureKind::Config, e.to_string()))?;
    context.devices.apply(pod, &container, &mut made).map_err(|why| failed(FailureKind::Config, why))?;
    made.annotations.insert(IDENTITY.into(), spec::identity(&container));
    let resources = serde_json::to_string(&context.specs.resources(pod, &container)).unwrap_or_default();
    made.annotations.insert(RESOURCES.into(), resources);
    made.annotations.insert(GRACE.into(), grace(pod).as_secs().to_string());

    // A resize that takes a new container changes the pod as a whole, too.
    if attempt > 0
        && let Err(error) = context.runtime.update_sandbox(&sandbox.id, &context.specs.pod_resources(pod)).await
    {
        tracing::warn!(%error, "cannot set the limits of the pod as a whole; those of its containers hold");
    }
    let source = on.source.unwrap_or(Source::Api);
    context.fence.cover(pod, source, &sandbox.id).await.map_err(Failure::other)?;
    remove_fenced(context, pod, name, attempt).await?;
    let created = context.runtime.create_container(&sandbox.id, &made).await;
    let id = created.map_err(|error| failed(FailureKind::Create, error.to_string()))?;
    say(EventType::Normal, "Created", format!("Created container: {name}"));
    // An image may have taken long, or the process may have been frozen.
    if !context.fence.permits_start(pod, source) {
        gone(context.runtime.remove_container(&id).await)?;
        return Err(Failure::other("this node has no contact with the cluster, which may run the pod elsewhere"));
    }
    match context.runtime.start_container(&id).await {
        Ok(()) => say(EventType::Normal, "Started", format!("Started container {name}")),
        // It counts as one that ran and ended: seen as such at the next look.
        Err(error @ RuntimeError::Start { .. }) => {
            say(EventType::Warning, "Failed", format!("Error: {error}"));
            return Ok(());
        }
        Err(error) => return Err(failed(FailureKind::Run, error.to_string())),
    }
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
    if let Some(hook) = hook {
        let at =
            HookTarget { pod, container: name, id: &id, address: addresses(context, pod, sandbox).first().copied() };
        // A hook may take as long as the pod lives, and no longer.
        let hooked = on.give_up.run_until_cancelled(context.hooks.run(at, hook, None)).await;
        if let Some(Err(error)) = hooked {
            say(EventType::Warning, "FailedPostStartHook", format!("PostStartHook failed: {error}"));
            say(EventType::Normal, "Killing", format!("FailedPostStartHook: Container {name} will be killed"));
            gone(context.runtime.stop_container(&id, grace(pod)).await)?;
        }
    }
    Ok(())
}

/// What was stopped for lack of contact makes way for the container that takes its place.
async fn remove_fenced(context: &WorkerContext, pod: &Pod, name: &str, attempt: u32) -> ActionResult {
    let observed = context.runtime.observe(Some(&spec::pod_ref(pod).uid)).await.map_err(Failure::other)?;
    let is_in_the_way = |c: &&ContainerStatus| c.name == name && c.attempt == attempt && c.state.was_fenced();
    match observed.containers.iter().find(is_in_the_way) {
        Some(fenced) => gone(context.runtime.remove_container(&fenced.id).await),
        None => Ok(()),
    }
}

fn grace(pod: &Pod) -> Duration {
    pod.spec.as_ref().map(super::view::grace).unwrap_or_default()
}

fn addresses(context: &WorkerContext, pod: &Pod, sandbox: &SandboxStatus) -> Vec<IpAddr> {
    let host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if host { context.settings.addresses.clone() } else { sandbox.addresses.clone() }
}

async fn stop(
    context: &WorkerContext,
    on: &Subject,
    name: &str,
    id: &ContainerId,
    grace: Duration,
    why: &StopWhy,
) -> ActionResult {
    let since = Instant::now();
    if let Some(pod) = &on.pod {
        let text = match why {
            StopWhy::PodEnds => format!("Stopping container {name}"),
            StopWhy::Changed => format!("Container {name} definition changed, will be restarted"),
            StopWhy::Unhealthy(probe) => {
                format!("Container {name} failed {} probe, will be restarted", probe.name().to_lowercase())
            }
            StopWhy::Resized => format!("Container {name} resize requires restart"),
            StopWhy::PodRecreated(why) => format!("Stopping container {name}: {why}"),
            StopWhy::AllRestart { cause } => {
                format!("Stopping container {name}: container {cause} ended, and all containers are restarted")
            }
            StopWhy::Lost => format!("Container {name} cannot be tracked any more, will be restarted"),
        };
        context.events.container(pod, name, EventType::Normal, "Killing", text);
    }
    let mut left = grace;
    if let Some(pod) = &on.pod
        && !grace.is_zero()
        && !matches!(why, StopWhy::AllRestart { .. })
        && let Some(container) = find_container(pod, name)
        && let Some(hook) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref())
    {
        let address = on.sandbox.as_ref().and_then(|sandbox| addresses(context, pod, sandbox).first().copied());
        let at = HookTarget { pod, container: name, id, address };
        if let Err(error) = context.hooks.run(at, hook, Some(grace)).await {
            let text = format!("PreStopHook failed: {error}");
            context.events.container(pod, name, EventType::Warning, "FailedPreStopHook", text);
        }
        left = grace.saturating_sub(since.elapsed()).max(LAST_GRACE);
    }
    gone(context.runtime.stop_container(id, left).await)
}

async fn resize(context: &WorkerContext, on: &Subject, name: &str, id: &ContainerId) -> ActionResult {
    let pod = pod(on)?;
    let container = find_container(pod, name).ok_or_else(|| Failure::other("no such container in the pod"))?;
    let whole = context.specs.pod_resources(pod);
    let resize_pod = async || match &on.sandbox {
        Some(sandbox) => context.runtime.update_sandbox(&sandbox.id, &whole).await,
        None => Ok(()),
    };
    let limits = context.specs.resources(pod, &container);
    let resized = async {
        check_memory_usage(context, on, name, &limits).await?;
        // More is given to the pod before its container. The kernel may refuse to give the pod less than its container
        // still has (cpu in cgroups of version 1): then the container comes first.
        let before = resize_pod().await;
        match (context.runtime.update_container(id, &limits).await, before) {
            (Ok(()), Err(_)) => resize_pod().await,
            (resized, _) => resized,
        }
    };
    resized.await.map_err(|error| {
        context.events.container(pod, name, EventType::Warning, "ResizeError", error.to_string());
        Failure::other(error)
    })?;
    context.events.container(pod, name, EventType::Normal, "Resized", format!("Resized container {name} in place"));
    Ok(())
}

/// Refuses a memory limit below what the container uses: with cgroups of version 2 the kernel would kill it for that.
async fn check_memory_usage(
    context: &WorkerContext,
    on: &Subject,
    name: &str,
    limits: &Resources,
) -> Result<(), RuntimeError> {
    let Some(limit) = limits.memory_limit.and_then(|limit| u64::try_from(limit).ok()) else { return Ok(()) };
    let uid = on.pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref()).unwrap_or_default();
    let is_own = |stats: &ContainerStats| {
        !stats.ended && stats.name == name && stats.pod.as_ref().is_some_and(|pod| pod.uid.0 == uid)
    };
    let stats = context.runtime.stats().await?;
    match stats.iter().find(|stats| is_own(stats)).map(|stats| stats.working_set) {
        Some(used) if used > limit => Err(RuntimeError::Invalid {
            why: format!("attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Nothing is left here: the API may forget the pod.
async fn remove_from_api(context: &WorkerContext, on: &Subject) -> ActionResult {
    let (Some(pod), Some(Source::Api)) = (&on.pod, on.source) else { return Ok(()) };
    let (Some(name), Some(namespace)) = (&pod.metadata.name, &pod.metadata.namespace) else { return Ok(()) };
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let uid = pod.metadata.uid.clone();
    let delete =
        DeleteParams::default().grace_period(0).preconditions(kube::api::Preconditions { uid, resource_version: None });
    match api.delete(name, &delete).await {
        Ok(_) => Ok(()),
        Err(error) if report::is_moot(&error) => Ok(()),
        Err(error) => Err(Failure::other(error)),
    }
}

async fn move_away(context: &WorkerContext, on: &Subject, why: &str) -> ActionResult {
    let pod = pod(on)?;
    let (Some(name), Some(namespace)) = (&pod.metadata.name, &pod.metadata.namespace) else { return Ok(()) };
    tracing::info!(pod = name, why, "delete a pod, so that its owner creates another on a different node");
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let uid = pod.metadata.uid.clone();
    let delete = DeleteParams::default().preconditions(kube::api::Preconditions { uid, resource_version: None });
    match api.delete(name, &delete).await {
        Ok(_) => Ok(()),
        Err(error) if report::is_moot(&error) => Ok(()),
        Err(error) => Err(Failure::other(error)),
    }
}
