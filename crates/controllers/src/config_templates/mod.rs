//! ConfigTemplates ([`mainstay_api::config_template`]): renders them when their inputs change, and brings each version to its consumers.
//!
//! * [`input_index`]: which templates read an object, so that a change renders only those; [`quiet_period`]: several changes are one
//! * [`inputs`]: objects of the cluster as templates see them; [`service_values`]: Services, each made once per change
//! * [`renderer`]: where templates are rendered; [`render_cache`]: the last results
//! * [`consumers`]: the pods that read the output, how far each has come, and whether it is well; [`candidates`]: the pods that may be such
//! * [`machines`]: the machines that have the output as a file
//! * [`plan`]: what to do next (pure): validate, move consumers in waves, accept, return to the last good version
//! * [`versions`]: the output and the immutable copies of its versions; [`copy_index`]: which copies a template has; [`output_cache`]: what
//!   outputs hold
//! * [`notify`]: tells programs in pods
//! * [`report`]: the status; [`status_pace`]: how often it says how far a rollout has come
//!
//! Nothing stores a step: the status has the last good version and the one on its way, a pod's annotation has the version it was given. The output
//! holds the last good version, so that a pod that starts has it. A consumer that is moved reads a copy meanwhile.

mod candidates;
mod consumers;
mod copy_index;
mod input_index;
mod inputs;
mod machines;
pub mod notify;
mod output_cache;
mod plan;
mod quiet_period;
mod render_cache;
pub mod renderer;
mod report;
mod service_values;
mod status_pace;
mod versions;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use mainstay_api::config_template::{ConfigTemplate, MAX_DELAY_SECONDS, OutputKind, QUIET_SECONDS};

use self::{
    candidates::CandidateIndex,
    consumers::PodConsumers,
    copy_index::CopyIndex,
    input_index::{InputIndex, Source},
    notify::ConsumerNotifier,
    output_cache::OutputCache,
    plan::{Action, Outcome, Rendered, World},
    quiet_period::QuietPeriods,
    render_cache::{RenderCache, TemplateVersion},
    renderer::{LocalRenderer, TemplateRenderer},
    report::Report,
    service_values::ServiceValues,
    status_pace::StatusPace,
};
use crate::{
    runtime::{
        ApiError, Cache, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, WorkQueue,
        context::resync_every, discovery::ServerResource, metadata_watch::MetadataEvent, object_writes,
        recorder::EventSubject, version_of,
    },
    services::slice_index::service_of,
};

/// How often all templates are looked at even if nothing changes.
const RESYNC: Duration = Duration::from_secs(300);
/// A Service may have a thousand readers, and each of them waits for several writes: beside each other these share syncs of the disk.
const CONCURRENT_RECONCILES: usize = 32;

pub struct ConfigTemplateController {
    context: Arc<Context>,
    quiet: Arc<QuietPeriods>,
    last_results: Arc<RenderCache>,
    services: Arc<ServiceValues>,
    candidates: Arc<CandidateIndex>,
    outputs: Arc<OutputCache>,
    copies: Arc<CopyIndex>,
    status_pace: Arc<StatusPace>,
    queue: Arc<WorkQueue<ObjectKey>>,
    notifier: Arc<dyn ConsumerNotifier>,
    renderer: Arc<dyn TemplateRenderer>,
}

pub fn controller(
    context: &Arc<Context>,
    notifier: Option<Arc<dyn ConsumerNotifier>>,
    renderer: Option<Arc<dyn TemplateRenderer>>,
) -> Runnable {
    let queue = context.queue::<ConfigTemplateController>();
    let wakes = Arc::new(Wakes {
        queue: queue.clone(),
        index: InputIndex::default(),
        quiet: Arc::default(),
        last_results: Arc::default(),
        services: Arc::default(),
        candidates: Arc::default(),
        outputs: Arc::default(),
        copies: Arc::default(),
        status_pace: Arc::default(),
        clock: context.clock.clone(),
    });
    wakes.follow(context);
    let resync = resync_every(RESYNC, {
        let (queue, templates) = (queue.clone(), context.config_templates.clone());
        let (candidates, outputs) = (wakes.candidates.clone(), wakes.outputs.clone());
        move || {
            candidates.clear();
            outputs.clear();
            templates.all().iter().for_each(|own| queue.add(ObjectKey::from_meta(&own.metadata)));
        }
    });
    let notifier = notifier.unwrap_or_else(|| Arc::new(notify::ApiNotifier::new(context.client.clone())));
    let renderer = renderer.unwrap_or_else(|| Arc::new(LocalRenderer));
    let (quiet, last_results) = (wakes.quiet.clone(), wakes.last_results.clone());
    let (copies, files) = (wakes.copies.clone(), context.machine_files.clone());
    let (machines, templates) = (context.machine_caches.machines.clone(), context.config_templates.clone());
    let controller = ConfigTemplateController {
        context: context.clone(),
        quiet,
        last_results,
        services: wakes.services.clone(),
        candidates: wakes.candidates.clone(),
        outputs: wakes.outputs.clone(),
        copies: copies.clone(),
        status_pace: wakes.status_pace.clone(),
        queue: queue.clone(),
        notifier,
        renderer,
    };
    let limits = Limits { concurrent_reconciles: CONCURRENT_RECONCILES, ..Limits::default() };
    context.runnable(Arc::new(controller), queue, limits).alongside(resync).after(async move {
        // Without them every template would seem to be gone, every machine to have neither file nor version, and every version no copy.
        templates.synced().await;
        files.synced().await;
        machines.synced().await;
        copies.synced().await;
    })
}

/// What wakes a template: changes of itself, of its inputs (after they were quiet), of its consumers and of its output.
struct Wakes {
    queue: Arc<WorkQueue<ObjectKey>>,
    index: InputIndex,
    quiet: Arc<QuietPeriods>,
    last_results: Arc<RenderCache>,
    services: Arc<ServiceValues>,
    candidates: Arc<CandidateIndex>,
    outputs: Arc<OutputCache>,
    copies: Arc<CopyIndex>,
    status_pace: Arc<StatusPace>,
    clock: crate::runtime::Clock,
}

impl Wakes {
    /// Handlers outlive no leader term: they keep neither caches nor controller alive.
    fn follow(self: &Arc<Self>, context: &Arc<Context>) {
        let own = self.clone();
        context.config_templates.on_change(move |change| {
            if change.before.map(TemplateVersion::new) != change.after.map(TemplateVersion::new) {
                own.index.set(change.key, change.after);
                own.outputs.forget(change.key);
            }
            if change.after.is_none() {
                own.candidates.forget(change.key);
                own.status_pace.forget(change.key);
                own.quiet.forget(change.key);
                own.last_results.forget(change.key);
            }
            own.queue.add(change.key.clone());
        });
        let (own, weak) = (self.clone(), Arc::downgrade(context));
        context.caches.slices.on_change(move |change| {
            let Some(context) = weak.upgrade() else { return };
            // A slice may have belonged to another Service before.
            let services = [change.before, change.after].into_iter().flatten().filter_map(service_of);
            for service in services.collect::<BTreeSet<ObjectKey>>() {
                own.services.forget(&service);
                let labels = context.caches.services.get(&service).map(|service| service.labels()).unwrap_or_default();
                own.inputs_changed(own.index.readers_of_service(&service, &[&labels]));
            }
        });
        let own = self.clone();
        context.caches.services.on_change(move |change| {
            own.services.forget(change.key);
            let labels =
                [change.before, change.after].map(|service| service.map(|own| own.labels()).unwrap_or_default());
            own.inputs_changed(own.index.readers_of_service(change.key, &[&labels[0], &labels[1]]));
        });
        let own = self.clone();
        context.caches.nodes.on_change(move |change| {
            if change.before.map(inputs::node_value) != change.after.map(inputs::node_value) {
                own.inputs_changed(own.index.readers(&Source::Nodes));
            }
        });
        let own = self.clone();
        context.machine_caches.machines.on_change(move |change| {
            if change.before.map(inputs::machine_value) != change.after.map(inputs::machine_value) {
                own.inputs_changed(own.index.readers(&Source::Nodes));
            }
        });
        let own = self.clone();
        context.caches.nodes.on_change(move |change| {
            if machines::differs(change.before, change.after) {
                own.index.with_machines().into_iter().for_each(|template| own.queue.add(template));
            }
        });
        let own = self.clone();
        context.machine_files.on_change(move |change| {
            if let Some(file) = change.latest() {
                own.queue.add(machines::template_key(file));
            }
        });
        let own = self.clone();
        context.metadata.on_event(move |resource, event| own.object_changed(resource, event));
        let (own, weak) = (self.clone(), Arc::downgrade(context));
        context.caches.pods.on_change(move |change| {
            let Some((context, pod)) = weak.upgrade().zip(change.latest()) else { return };
            let labels =
                [change.before, change.after].into_iter().flatten().filter_map(|pod| pod.metadata.labels.as_ref());
            let named = consumers::named_templates(pod);
            for key in own.index.templates_of_pod(&change.key.namespace, labels, named) {
                // One that is named and gone may have left the pod with a version.
                let template = context.config_templates.get(&key);
                if template.is_none_or(|template| consumers::concerns(&context.caches, &template, pod)) {
                    own.candidates.add(&key, change.key);
                    own.queue.add(key);
                }
            }
            for source in consumers::copied_sources(&change.key.namespace, pod) {
                own.index.writers(&source).iter().for_each(|template| own.candidates.add(template, change.key));
            }
        });
    }

    /// A ConfigMap or Secret is an input, an output, or nothing to us.
    fn object_changed(&self, resource: &ServerResource, event: &MetadataEvent) {
        let kind = if resource.is_named("", "configmaps") {
            OutputKind::ConfigMap
        } else if resource.is_named("", "secrets") {
            OutputKind::Secret
        } else {
            return;
        };
        self.copies.take_event(kind, event);
        if matches!(event, MetadataEvent::ListEnded) {
            self.outputs.clear(); // some may be gone
        }
        let (MetadataEvent::Applied(meta) | MetadataEvent::Deleted(meta)) = event else { return };
        let version = matches!(event, MetadataEvent::Applied(_)).then(|| version_of(meta));
        let source = match kind {
            OutputKind::ConfigMap => Source::ConfigMap(ObjectKey::from_meta(meta)),
            OutputKind::Secret => Source::Secret(ObjectKey::from_meta(meta)),
        };
        self.inputs_changed(self.index.readers(&source));
        for template in self.index.writers(&source) {
            self.outputs.changed(&template, version);
            self.queue.add(template);
        }
    }

    fn inputs_changed(&self, readers: Vec<ObjectKey>) {
        for template in readers {
            self.quiet.touch(&template, self.clock.now());
            self.queue.add(template);
        }
    }
}

fn seconds(value: Option<i32>, default: i32) -> SignedDuration {
    SignedDuration::from_secs(value.unwrap_or(default).into())
}

impl Controller for ConfigTemplateController {
    const NAME: &'static str = "config_template";
    /// Consumers are told beside each other; the plan says how many at a time.
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = Outcome;
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(template) = self.context.config_templates.get(key) else {
            return Ok(World::after_deletion(consumers::left_behind(&self.context.caches, &self.copies, key)));
        };
        if template.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let spec = &template.spec;
        let (quiet, longest) =
            (seconds(spec.quiet_seconds, QUIET_SECONDS), seconds(spec.max_delay_seconds, MAX_DELAY_SECONDS));
        let due = self.quiet.take(key, quiet, longest, self.context.clock.now());
        if let Err(at) = due {
            return Ok(Some(World::wait_for_quiet(template, at)));
        }
        let read = inputs::read(&self.context, &self.services, &template).await;
        let inputs = match read {
            Ok(inputs) => inputs,
            Err(error) => {
                self.quiet.touch(key, Timestamp::MIN); // what was taken has not been looked at
                return Err(error);
            }
        };
        let rendered = match self.last_results.get(key, &template, &inputs) {
            Some(rendered) => rendered,
            None => {
                let rendered = Rendered::render(&*self.renderer, &template, inputs).await;
                self.last_results.set(key, &template, &rendered);
                rendered
            }
        };
        let output = versions::read(&self.context.client, &self.copies, &self.outputs, &template).await?;
        let caches = &self.context.caches;
        let machines = machines::observe(&self.context, &template);
        let former_files = machines::observe_former(&self.context, &template, &machines);
        let PodConsumers { mut consumers, former, mut read_copies } =
            consumers::observe(caches, &self.candidates, &template);
        consumers.extend(machines);
        read_copies.extend(machines::read_copies(&self.context, &template));
        Ok(Some(World {
            quiet_until: None,
            rendered: Some(rendered),
            output,
            consumers,
            former,
            former_files,
            read_copies,
            template,
            left_behind: Vec::new(),
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<Outcome, ApiError> {
        let context = &self.context;
        match action {
            Action::WriteOutput { output, owner, content } => {
                versions::write_output(&context.client, &self.outputs, key, &output, &owner, content).await
            }
            Action::MakeCopy(copy) => {
                versions::make_copy(&context.client, &self.copies, &self.outputs, key, copy).await
            }
            Action::DeleteCopy { kind, name, uid } => {
                versions::delete_copy(&context.client, &self.copies, &key.namespace, kind, &name, &uid).await
            }
            Action::Validate(request) => notify::validate(&*self.notifier, &key.namespace, request).await,
            Action::SetConsumer(change) => consumers::write(context, key, change).await,
            Action::Notify { change, how } => {
                let step = notify::notify(&*self.notifier, &key.namespace, &how).await?;
                consumers::write(context, key, change.finished(step, context.clock.now())).await
            }
            Action::Release { former, output } => consumers::release(context, key, former, &output).await,
            Action::Forget(left) => consumers::forget(context, key, left).await,
            Action::SetFile(change) => machines::write(context, key, change).await,
            Action::DeleteFile(former) => machines::delete(context, &key.namespace, &former).await,
            Action::Evict { pod, uid } => notify::evict(context, &key.namespace, &pod, &uid).await,
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, outcomes: &Outcomes<Outcome>) -> Result<(), ApiError> {
        let Some(template) = self.context.config_templates.get(key) else { return Ok(()) };
        if report.is_interim && outcomes.iter().all(Result::is_ok) {
            return Ok(()); // the next look, at once, says more
        }
        let now = self.context.clock.now();
        let (status, events) = report.finish(&template, outcomes, now);
        if template.status.as_ref() != Some(&status) {
            if let Err(wait) = self.status_pace.may_write(key, template.status.as_ref(), &status, now) {
                self.queue.add_after(key.clone(), wait);
                return Ok(());
            }
            let cache: &Cache<ConfigTemplate> = &self.context.config_templates;
            object_writes::write_status(&self.context.client, cache, key, &status).await?;
        }
        for event in events {
            self.context.events.record(&Subject(&template), event);
        }
        Ok(())
    }
}

/// A template that events are about.
struct Subject<'a>(&'a ConfigTemplate);

impl EventSubject for Subject<'_> {
    fn involved_object(&self) -> ObjectReference {
        let meta = &self.0.metadata;
        ObjectReference {
            api_version: Some(self.0.api_version.clone()),
            kind: Some(self.0.kind.clone()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: None,
        }
    }

    fn component(&self) -> &'static str {
        "config-template-controller"
    }
}
