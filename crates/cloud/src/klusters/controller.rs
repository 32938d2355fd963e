//! The controller of Klusters: reads what a decision needs, carries actions out, and reports.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ObjectReference, PersistentVolumeClaim, Pod, Secret, Service},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_api::cloud::kluster::{ACCOUNT_LABEL, GROUND_FINALIZER, Kluster, KlusterPhase};
use mainstay_controllers::runtime::{
    ApiError, Cache, Change, Clock, Controller, EventRecorder, Limits, ObjectKey, Outcomes, Plan, Runnable, error,
};
use mainstay_errors::error_chain;
use mainstay_events::EventNote;
use serde_json::{Value, json};

use super::{
    certificates::{CertificatePair, kubeconfig, make_administrator, make_authority, renewal_time},
    control_plane::{self, DIGEST, api_url},
    discovery,
    metrics::KlusterMetrics,
    migrations,
    names::{
        CLOUD_AUTHORITIES, CLOUDS_YAML, KLUSTER_LABEL, KUBECONFIG, cloud_secret, kubeconfig_secret, pki_secret,
        service_name, workload_name,
    },
    objects::{KlusterObjects, Refusal},
    plan::{self, Action, ControlPlane, Discovery, KlusterWorld, Report},
    service_user::{self, UserDriver},
    settings::{KlusterSettings, ServiceType},
};
use crate::{
    bounded_client::bounded_client,
    conditions::set_condition,
    context::{CloudContext, Clouds},
    kluster_kubeconfig::client_config,
    ledger::{Ledger, Removal},
    openstack::{SecretText, Session},
};

const COMPONENT: &str = "kluster-controller";
/// The condition of a Kluster that runs and lacks nothing.
const READY: &str = "Ready";
/// On the Secret of the cloud: the id of the user, once it has its roles.
const USER_ID: &str = "mainstay.dev/service-user";
const PASSWORD: &str = "password";
/// A Kluster's API answers within this, or counts as one that does not.
const API_DEADLINE: Duration = Duration::from_secs(5);
/// Of what it says of its version.
const MOST_VERSION_BYTES: usize = 1 << 20;
/// As many at once as Kubernikus has workers, and its longest backoff.
const LIMITS: Limits = Limits { concurrent_reconciles: 10, longest_backoff: Duration::from_secs(300) };

/// What the controller needs of others.
#[derive(Clone)]
pub struct KlusterContext {
    pub client: Client,
    pub klusters: Arc<Cache<Kluster>>,
    pub events: EventRecorder,
    pub clock: Clock,
    pub clouds: Option<Arc<Clouds>>,
    pub ledger: Arc<Ledger>,
    pub settings: Arc<KlusterSettings>,
    pub metrics: KlusterMetrics,
}

pub struct KlusterController {
    context: KlusterContext,
}

/// The controller of Klusters, to be started with the others of the cloud.
pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let metrics = context.kluster_metrics.clone();
    let queue = context.queue::<KlusterController>();
    let own = KlusterContext {
        client: context.client.clone(),
        klusters: context.caches.klusters.clone(),
        events: context.events.clone(),
        clock: context.clock.clone(),
        clouds: Some(context.clouds.clone()),
        ledger: context.ledger.clone(),
        settings: context.klusters.clone(),
        metrics: metrics.clone(),
    };
    context.caches.klusters.on_change({
        let queue = queue.clone();
        move |change: Change<'_, Kluster>| {
            match (change.before, change.after) {
                (_, Some(kluster)) => metrics.observe_kluster(kluster),
                (Some(kluster), None) => metrics.forget_kluster(kluster),
                (None, None) => {}
            }
            queue.add(change.key.clone());
        }
    });
    context.runnable(Arc::new(KlusterController::new(own)), queue, LIMITS)
}

impl Controller for KlusterController {
    const NAME: &'static str = "kluster";
    type Key = ObjectKey;
    type World = KlusterWorld;
    type Action = Action;
    type Outcome = ();
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<KlusterWorld>, ApiError> {
        let Some(kluster) = self.context.klusters.get(key) else { return Ok(None) };
        let settings = &self.context.settings;
        let is_deleted = kluster.metadata.deletion_timestamp.is_some();
        if is_deleted && !kluster.has_finalizer(GROUND_FINALIZER) {
            return Ok(None);
        }
        let discovery = self.observe_discovery(&kluster).await;
        let control_plane = self.observe_control_plane(&kluster).await?;
        Ok(Some(KlusterWorld {
            discovery,
            control_plane,
            newest_version: settings.newest_version().map(ToString::to_string),
            is_offered: settings.image(&kluster.spec.version).is_some(),
            kluster: (*kluster).clone(),
        }))
    }

    fn plan(world: &KlusterWorld, now: Timestamp) -> Plan<Action, Report> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let Some(kluster) = self.context.klusters.get(key) else { return Ok(()) };
        match action {
            Action::AddFinalizer { version } => {
                let mut finalizers = kluster.metadata.finalizers.clone().unwrap_or_default();
                finalizers.push(GROUND_FINALIZER.to_owned());
                self.set_finalizers(&kluster, finalizers, &version).await
            }
            Action::DropFinalizer { version } => {
                let mut finalizers = kluster.metadata.finalizers.clone().unwrap_or_default();
                finalizers.retain(|name| name != GROUND_FINALIZER);
                self.set_finalizers(&kluster, finalizers, &version).await
            }
            Action::Migrate { number, title, patch } => self.migrate(&kluster, number, title, patch).await,
            Action::FillSpec { openstack, version } => {
                let mut spec = json!({});
                if let Some(openstack) = openstack {
                    spec["openstack"] = json!(openstack);
                }
                if let Some(version) = version {
                    spec["version"] = json!(version);
                }
                let mut patch = json!({"spec": spec});
                let project = spec.pointer("/openstack/projectID").cloned();
                if let Some(project) = project {
                    patch["metadata"] = json!({"labels": {ACCOUNT_LABEL: project}});
                }
                // By uid alone: what somebody else has set meanwhile cannot be changed, which the API sees to.
                let filled = self.patch(&kluster, "fill in the spec of", patch).await;
                // A rule or another Kluster stands against it: no race that the next look would settle.
                filled.map_err(|failure| match failure.is_conflict() || failure.is_rejected() {
                    true => ApiError::other(
                        format!("fill in the spec of Kluster {}", kluster.name()),
                        Refusal(failure.message()),
                    ),
                    false => failure,
                })
            }
            Action::MakeAuthorities => self.make_authorities(&kluster).await,
            Action::MakeServiceUser => self.make_service_user(&kluster).await,
            Action::ApplyService => {
                self.objects(&kluster).apply::<Service>(control_plane::service(&kluster, &self.context.settings)).await
            }
            Action::WriteKubeconfig => self.write_kubeconfig(&kluster).await,
            Action::ApplyWorkload => self.apply_workload(&kluster).await,
            Action::RemoveServiceUser => self.remove_service_user(&kluster).await,
            Action::RemoveControlPlane => self.remove_control_plane(&kluster).await,
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, outcomes: &Outcomes<()>) -> Result<(), ApiError> {
        let Some(kluster) = self.context.klusters.get(key) else { return Ok(()) };
        let failure = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
        let known = kluster.status.clone().unwrap_or_default();
        let mut status = json!({});
        let mut set = |field: &str, value: Value, is_known: bool| {
            if !is_known {
                status[field] = value;
            }
        };
        let phase = report.phase.unwrap_or(known.phase);
        set("phase", json!(phase), kluster.status.is_some() && phase == known.phase);
        let message = failure.map_or_else(|| report.message.clone(), ApiError::chain);
        set("message", json!(message), message == known.message);
        if let Some(url) = &report.api_url {
            set("apiserver", json!(url), *url == known.apiserver);
        }
        if let Some(version) = &report.api_version {
            set("apiserverVersion", json!(version), *version == known.apiserver_version);
        }
        if let Some(version) = &report.version {
            set("version", json!(version), *version == known.version);
        }
        let pending = report.migrations_pending || (failure.is_some() && known.migrations_pending);
        set("migrationsPending", json!(pending), pending == known.migrations_pending);
        if failure.is_none() && report.spec_version.is_some() {
            set("specVersion", json!(report.spec_version), report.spec_version == known.spec_version);
        }
        let mut metadata = json!({"uid": kluster.metadata.uid});
        let mut conditions = known.conditions.clone();
        let (is_ready, reason) = judge_ready(&report, phase, failure.map(|_| failure_reason(&kluster)));
        if set_condition(&mut conditions, READY, is_ready, reason, &message, self.context.clock.now()) {
            // Launch writes a condition as well: the list is written as it was read, or not at all.
            metadata["resourceVersion"] = json!(kluster.metadata.resource_version);
            status["conditions"] = json!(conditions);
        }
        self.record_events(&kluster, &report, failure, phase);
        if status.as_object().is_none_or(serde_json::Map::is_empty) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        match self.klusters(&kluster).patch_status(kluster.name(), &PatchParams::default(), &patch).await {
            Ok(written) => self.context.klusters.wrote(written),
            Err(failure) if error::has_code(&failure, 404) || error::has_code(&failure, 409) => {}
            Err(failure) => {
                return Err(ApiError::new(format!("write the status of Kluster {}", kluster.name()), failure));
            }
        }
        Ok(())
    }
}

impl KlusterController {
    pub fn new(context: KlusterContext) -> Self {
        Self { context }
    }

    fn objects<'a>(&'a self, kluster: &'a Kluster) -> KlusterObjects<'a> {
        KlusterObjects::new(&self.context.client, kluster)
    }

    fn klusters(&self, kluster: &Kluster) -> Api<Kluster> {
        self.objects(kluster).api()
    }

    fn record_events(&self, kluster: &Kluster, report: &Report, failure: Option<&ApiError>, phase: KlusterPhase) {
        let involved = ObjectReference {
            api_version: Some("mainstay.dev/v1".to_owned()),
            kind: Some("Kluster".to_owned()),
            namespace: kluster.metadata.namespace.clone(),
            name: kluster.metadata.name.clone(),
            uid: kluster.metadata.uid.clone(),
            resource_version: kluster.metadata.resource_version.clone(),
            ..ObjectReference::default()
        };
        let record = |note: EventNote| self.context.events.record_as(COMPONENT, involved.clone(), note);
        if phase != kluster.phase() {
            record(EventNote::normal(phase.text(), format!("Kluster is {phase}")));
            if phase == KlusterPhase::Running && kluster.phase() == KlusterPhase::Creating {
                let created = kluster.metadata.creation_timestamp.as_ref().map(|time| time.0);
                let took = created.map(|created| self.context.clock.now().duration_since(created).as_secs_f64());
                took.into_iter().for_each(|seconds| self.context.metrics.observe_boot(seconds));
            }
        }
        if let Some(warning) = &report.warning {
            record(EventNote::warning(warning.reason, warning.message.clone()));
        }
        if let Some(failure) = failure {
            record(EventNote::warning(failure_reason(kluster), failure.chain()));
        }
    }

    /// What the cloud has: ids that are missing, and whether those that the author named are of the project. Whatever fails is a reason to stay
    /// Pending.
    async fn observe_discovery(&self, kluster: &Kluster) -> Discovery {
        let spec = &kluster.spec.openstack;
        let is_due = kluster.phase() == KlusterPhase::Pending && kluster.metadata.deletion_timestamp.is_none();
        let is_cloudless = kluster.spec.no_cloud || (self.context.clouds.is_none() && !discovery::is_needed(spec));
        if !is_due || is_cloudless || !kluster.has_finalizer(GROUND_FINALIZER) {
            return Discovery::NotNeeded;
        }
        let mut session = match self.session(kluster) {
            Ok(session) => session,
            Err(failure) => return Discovery::Refused(failure.0),
        };
        // A Kluster without a user of its own is looked after by the operator's login, which therefore has to be good in its project.
        if let (None, Some(clouds)) = (&self.context.settings.service_users, &self.context.clouds) {
            session = match clouds.kluster_session(kluster).await {
                Ok(session) => session,
                Err(failure) => {
                    return Discovery::Refused(format!("spec.openstack.projectID: {}", error_chain(&failure)));
                }
            };
        }
        match discovery::observe_project(&session, &spec.project_id).await {
            Err(failure) => {
                // The login is good, and not in this project.
                let is_scope = match self.session(kluster) {
                    Ok(own) => failure.is_forbidden() && !spec.project_id.is_empty() && own.user_id().await.is_ok(),
                    Err(_) => false,
                };
                let field = if is_scope { "spec.openstack.projectID: " } else { "" };
                Discovery::Refused(format!("{field}cloud {}: {}", session.cloud_name(), error_chain(&failure)))
            }
            Ok(found) => match discovery::complete(spec, &found) {
                Ok(complete) if complete == *spec => Discovery::NotNeeded,
                Ok(complete) => Discovery::Found(Box::new(complete)),
                Err(problem) => Discovery::Refused(problem.to_string()),
            },
        }
    }

    fn session(&self, kluster: &Kluster) -> Result<Session, Refusal> {
        let refuse = |why: String| Refusal(format!("spec.openstack.cloud: {why}"));
        let clouds = self.context.clouds.as_ref();
        let clouds = clouds.ok_or_else(|| refuse("the server has no configuration of clouds".to_owned()))?;
        let session = match kluster.spec.openstack.cloud.as_str() {
            "" => clouds.own_session(),
            name => clouds.session(name),
        };
        session.map_err(|failure| refuse(error_chain(&failure)))
    }

    async fn observe_control_plane(&self, kluster: &Kluster) -> Result<ControlPlane, ApiError> {
        let (name, settings) = (kluster.name(), &self.context.settings);
        let authorities: Option<Secret> = self.objects(kluster).get(&pki_secret(name)).await?;
        let credentials: Option<Secret> = self.objects(kluster).get(&kubeconfig_secret(name)).await?;
        let cloud: Option<Secret> = self.objects(kluster).get(&cloud_secret(name)).await?;
        let service: Option<Service> = self.objects(kluster).get(&service_name(name)).await?;
        let workload: Option<StatefulSet> = self.objects(kluster).get(&workload_name(name)).await?;
        let address = service.as_ref().and_then(|service| api_address(service, settings));
        let url = address.map(|address| api_url(kluster, settings, address));
        let image = settings.image(&kluster.spec.version);
        let wanted =
            address.zip(image).map(|(address, image)| control_plane::workload(kluster, settings, image, address));
        let digest = wanted.as_ref().and_then(|object| object["metadata"]["annotations"][DIGEST].as_str());
        let applied = workload.as_ref().and_then(|set| set.metadata.annotations.as_ref()?.get(DIGEST));
        let is_current = applied.is_some() && applied.map(String::as_str) == digest;
        let ready = is_current && workload.as_ref().is_some_and(is_ready);
        let certificate = credentials.as_ref().and_then(|secret| text(secret, "client.crt"));
        let is_same_url = credentials.as_ref().and_then(|secret| text(secret, "server")) == url;
        let renew_at = certificate.filter(|_| is_same_url).map(|pem| renewal_time(&pem));
        let is_asked = ready && !matches!(kluster.phase(), KlusterPhase::Running | KlusterPhase::Terminating);
        let api_version = match credentials.as_ref().and_then(|secret| text(secret, KUBECONFIG)) {
            Some(text) if is_asked => ask_version(&text).await,
            _ => None,
        };
        let user = cloud.as_ref().and_then(|secret| secret.metadata.annotations.as_ref()?.get(USER_ID));
        let objects =
            [authorities.is_some(), credentials.is_some(), cloud.is_some(), service.is_some(), workload.is_some()];
        let mut exists = objects.into_iter().any(|exists| exists);
        if !exists && kluster.metadata.deletion_timestamp.is_some() {
            exists = self.has_pods_or_claims(kluster).await?;
        }
        Ok(ControlPlane {
            exists,
            has_authorities: authorities.is_some(),
            has_service_user: user.is_some(),
            needs_service_user: !kluster.spec.no_cloud && settings.service_users.is_some(),
            renew_at,
            url,
            is_current,
            ready,
            api_version,
        })
    }

    async fn has_pods_or_claims(&self, kluster: &Kluster) -> Result<bool, ApiError> {
        let of_kluster = ListParams::default().labels(&format!("{KLUSTER_LABEL}={}", kluster.name()));
        let pods = self.objects(kluster).api::<Pod>().list_metadata(&of_kluster).await;
        let pods = pods.map_err(ApiError::when("list pods of the control plane"))?;
        // With its StatefulSet, by the policy of the claim.
        let claim: Option<PersistentVolumeClaim> = self.objects(kluster).find(&claim_name(kluster)).await?;
        Ok(!pods.items.is_empty() || claim.is_some())
    }

    async fn patch(&self, kluster: &Kluster, doing: &str, mut patch: Value) -> Result<(), ApiError> {
        patch["metadata"]["uid"] = json!(kluster.metadata.uid);
        let written = self.klusters(kluster).patch(kluster.name(), &PatchParams::default(), &Patch::Merge(patch)).await;
        let written = written.map_err(ApiError::when(format!("{doing} Kluster {}", kluster.name())))?;
        self.context.klusters.wrote(written);
        Ok(())
    }

    async fn set_finalizers(&self, kluster: &Kluster, finalizers: Vec<String>, version: &str) -> Result<(), ApiError> {
        let metadata = json!({"uid": kluster.metadata.uid, "resourceVersion": version, "finalizers": finalizers});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match self.klusters(kluster).patch(kluster.name(), &PatchParams::default(), &patch).await {
            // Without finalizers it is gone with this write, and the watch tells of it.
            Ok(written) if written.metadata.deletion_timestamp.is_none() => self.context.klusters.wrote(written),
            Ok(_) => {}
            Err(failure) if error::has_code(&failure, 404) => {}
            Err(failure) => {
                return Err(ApiError::new(format!("write the finalizers of Kluster {}", kluster.name()), failure));
            }
        }
        Ok(())
    }

    async fn migrate(&self, kluster: &Kluster, number: i64, title: &str, patch: Option<Value>) -> Result<(), ApiError> {
        let Some(mut patch) = patch else { return Ok(()) };
        patch["metadata"]["resourceVersion"] = json!(kluster.metadata.resource_version);
        let migrated = self.patch(kluster, "migrate", patch).await;
        if migrated.is_err() {
            self.context.metrics.count_migration_error(kluster);
            tracing::warn!(kluster = kluster.name(), number, title, "migration failed; it is tried again");
        }
        migrated
    }

    async fn make_authorities(&self, kluster: &Kluster) -> Result<(), ApiError> {
        let fail = |source| ApiError::other("make the authorities of the Kluster", source);
        let now = self.context.clock.now();
        let (ca, node_ca) = (make_authority("ca", now).map_err(fail)?, make_authority("node-ca", now).map_err(fail)?);
        let texts: [(&str, &str); 4] = [
            ("ca.crt", &ca.certificate),
            ("ca.key", &ca.key),
            ("node-ca.crt", &node_ca.certificate),
            ("node-ca.key", &node_ca.key),
        ];
        self.objects(kluster).create::<Secret>(control_plane::secret(kluster, pki_secret(kluster.name()), &texts)).await
    }

    async fn write_kubeconfig(&self, kluster: &Kluster) -> Result<(), ApiError> {
        let settings = &self.context.settings;
        let name = pki_secret(kluster.name());
        let secret: Option<Secret> = self.objects(kluster).get(&name).await?;
        let service: Option<Service> = self.objects(kluster).get(&service_name(kluster.name())).await?;
        let address = service.as_ref().and_then(|service| api_address(service, settings));
        let (Some(secret), Some(address)) = (secret, address) else { return Ok(()) };
        let part = |key: &str| text(&secret, key).unwrap_or_default();
        let authority = CertificatePair { certificate: part("ca.crt"), key: part("ca.key") };
        let user = make_administrator(&authority, &name, "kubernikus:admin", self.context.clock.now());
        let user = user.map_err(|source| ApiError::other("make the certificate of the administrator", source))?;
        let url = api_url(kluster, settings, address);
        let text = kubeconfig(kluster.name(), &url, &authority.certificate, &user);
        let texts = [(KUBECONFIG, text.as_str()), ("client.crt", &user.certificate), ("server", &url)];
        let object = control_plane::secret(kluster, kubeconfig_secret(kluster.name()), &texts);
        self.objects(kluster).apply::<Secret>(object).await
    }

    async fn apply_workload(&self, kluster: &Kluster) -> Result<(), ApiError> {
        let settings = &self.context.settings;
        let service: Option<Service> = self.objects(kluster).get(&service_name(kluster.name())).await?;
        let address = service.as_ref().and_then(|service| api_address(service, settings));
        let (Some(address), Some(image)) = (address, settings.image(&kluster.spec.version)) else { return Ok(()) };
        let object = control_plane::workload(kluster, settings, image, address);
        self.objects(kluster).apply::<StatefulSet>(object).await
    }

    async fn make_service_user(&self, kluster: &Kluster) -> Result<(), ApiError> {
        let Some(settings) = &self.context.settings.service_users else { return Ok(()) };
        let doing = || format!("make the user of Kluster {}", kluster.name());
        let session = self.session(kluster).map_err(|refusal| ApiError::other(doing(), refusal))?;
        let name = cloud_secret(kluster.name());
        let password = match self.objects(kluster).get::<Secret>(&name).await? {
            Some(secret) => SecretText::new(text(&secret, PASSWORD).unwrap_or_default()),
            None => {
                let password = service_user::generate_password().map_err(|source| ApiError::other(doing(), source))?;
                let yaml = service_user::clouds_yaml(kluster, &session, &settings.domain, &password);
                let mut texts = vec![(PASSWORD, password.expose()), (CLOUDS_YAML, yaml.as_str())];
                texts.extend(session.authorities().map(|authorities| (CLOUD_AUTHORITIES, authorities)));
                self.objects(kluster).create::<Secret>(control_plane::secret(kluster, name.clone(), &texts)).await?;
                password
            }
        };
        let fail = |source| ApiError::other(doing(), source);
        let driver = UserDriver::new(&session, settings, kluster, password).await.map_err(fail)?;
        let intent = service_user::intent(kluster, &session);
        driver.refuse_foreign(&intent.tag(self.context.ledger.cluster())).await.map_err(fail)?;
        let entry = self.context.ledger.ensure(&intent, &driver).await;
        let entry = entry.map_err(|failure| failure.into_api_error(doing()))?;
        let user = entry.id.unwrap_or_default();
        driver.equip(&user, &settings.roles).await.map_err(fail)?;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {USER_ID: user}}}));
        let written = self.objects(kluster).api::<Secret>().patch(&name, &PatchParams::default(), &patch).await;
        written.map(drop).map_err(ApiError::when(format!("write Secret {name}")))
    }

    async fn remove_service_user(&self, kluster: &Kluster) -> Result<(), ApiError> {
        let Some(settings) = &self.context.settings.service_users else { return Ok(()) };
        let doing = || format!("remove the user of Kluster {}", kluster.name());
        let session = self.session(kluster).map_err(|refusal| ApiError::other(doing(), refusal))?;
        let Some(entry) = self.context.ledger.entry(&service_user::intent(kluster, &session)).await? else {
            return Ok(());
        };
        let driver = UserDriver::new(&session, settings, kluster, SecretText::default()).await;
        let driver = driver.map_err(|source| ApiError::other(doing(), source))?;
        let removal = self.context.ledger.remove(&entry, &driver).await;
        match removal.map_err(|failure| failure.into_api_error(doing()))? {
            Removal::Done => Ok(()),
            Removal::Pending => Err(ApiError::other(doing(), Refusal("the cloud still shows it".to_owned()))),
        }
    }

    async fn remove_control_plane(&self, kluster: &Kluster) -> Result<(), ApiError> {
        let name = kluster.name();
        self.objects(kluster).delete::<StatefulSet>(&workload_name(name)).await?;
        self.objects(kluster).delete::<Service>(&service_name(name)).await?;
        for secret in [kubeconfig_secret(name), cloud_secret(name), pki_secret(name)] {
            self.objects(kluster).delete::<Secret>(&secret).await?;
        }
        Ok(())
    }
}

fn failure_reason(kluster: &Kluster) -> &'static str {
    match kluster.phase() {
        _ if migrations::next(kluster).is_some() => "MigrationFailed",
        KlusterPhase::Pending | KlusterPhase::Creating => "failedCreate",
        KlusterPhase::Upgrading => plan::FAILED_UPGRADE,
        KlusterPhase::Running => "failedUpdate",
        KlusterPhase::Terminating => "failedTerminate",
    }
}

/// Whether a Kluster is ready, and why: it runs, and nothing of it is waited for.
fn judge_ready(report: &Report, phase: KlusterPhase, failure: Option<&'static str>) -> (bool, &'static str) {
    let reason = failure.or(report.warning.as_ref().map(|warning| warning.reason));
    let is_ready = phase == KlusterPhase::Running && report.message.is_empty() && reason.is_none();
    (is_ready, reason.unwrap_or(phase.text()))
}

fn claim_name(kluster: &Kluster) -> String {
    format!("data-{}-0", workload_name(kluster.name()))
}

/// Where its API is reached: at the address of the load balancer, if it is to have one, otherwise at that of the Service.
fn api_address<'a>(service: &'a Service, settings: &KlusterSettings) -> Option<&'a str> {
    let address = match settings.service_type {
        ServiceType::ClusterIp => service.spec.as_ref()?.cluster_ip.as_deref()?,
        ServiceType::LoadBalancer => {
            let ingress = service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first()?;
            ingress.ip.as_deref().or(ingress.hostname.as_deref())?
        }
    };
    (!address.is_empty() && address != "None").then_some(address)
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let data: &BTreeMap<_, _> = secret.data.as_ref()?;
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

/// Every pod is of the newest revision and ready.
fn is_ready(set: &StatefulSet) -> bool {
    let wanted = set.spec.replicas.unwrap_or(1);
    set.status.as_ref().is_some_and(|status| {
        status.observed_generation == set.metadata.generation
            && status.ready_replicas.unwrap_or(0) == wanted
            && status.updated_replicas.unwrap_or(0) == wanted
    })
}

/// The version that an API says it has, `1.37.0`; nothing if it does not answer in time.
async fn ask_version(kubeconfig: &str) -> Option<String> {
    let config = client_config(kubeconfig).await;
    let mut config =
        config.inspect_err(|error| tracing::warn!(%error, "the kubeconfig of a Kluster is not used")).ok()?;
    config.connect_timeout = Some(API_DEADLINE);
    let client = bounded_client(config, MOST_VERSION_BYTES).ok()?;
    let answer = tokio::time::timeout(API_DEADLINE, client.apiserver_version()).await.ok()?;
    let version =
        answer.inspect_err(|failure| tracing::debug!(%failure, "the API of a Kluster does not answer")).ok()?;
    let text = version.git_version.trim_start_matches('v');
    Some(text.split(['+', '-']).next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;
