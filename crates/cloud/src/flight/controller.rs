//! Looks at a Kluster's parts in the cloud and carries repairs out.
//!
//! Every part is read by itself: one that cannot be read is logged, and its step does nothing this time. A repair that fails is an event and a
//! count, and the next ones go on. The next round is five minutes later, or when something about the Kluster changes.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use mainstay_api::{
    cloud::{
        cloud_resource::ResourceType,
        kluster::{Kluster, KlusterPhase},
        node_pool::{NodePool, PoolSpec},
    },
    pod_range_routes::route_broken,
};
use mainstay_controllers::runtime::{
    ApiError, Cache, Change, Clock, Controller, EventRecorder, Limits, ObjectKey, Outcomes, Plan, Runnable,
};
use mainstay_errors::error_chain;
use mainstay_events::EventNote;
use serde_json::json;

use super::{
    metrics::{FlightMetrics, RepairKind, RepairResult},
    plan::{
        self, DeleteReason, FlightPlan, FlightProblem, FlightServer, FlightWorld, GroupView, PoolView, REBOOTED_AT,
        Repair, RuleView, TOUCH_DESCRIPTION, TOUCH_PREFIX,
    },
};
use crate::{
    context::CloudContext,
    kluster_observer::KlusterObserver,
    openstack::{
        CloudError, Session,
        compute::{RebootType, Server, ServerFilter},
        network::{SecurityGroup, SecurityGroupRule},
    },
    pools::members::MemberState,
    routes::controllers::kluster_facts,
};

pub const PERIOD: SignedDuration = SignedDuration::from_mins(5);
/// When the security group was last touched, as an annotation of the Kluster.
pub const LAST_TOUCH: &str = "mainstay.dev/last-security-group-touch";
const COMPONENT: &str = "flight";

/// A Kluster that is looked after.
#[derive(Clone)]
pub struct FlightTarget {
    pub kluster: Arc<Kluster>,
    pub session: Session,
    /// All its pools, those of NodePools too.
    pub pools: Vec<PoolView>,
    /// Nothing if its API cannot be reached.
    pub nodes: Option<Arc<Cache<Node>>>,
    /// Its user in the cloud; nothing if it has none.
    pub service_user: Option<ServiceUser>,
    /// Of the API that has the Kluster.
    pub client: Client,
    pub events: EventRecorder,
}

#[derive(Clone, Debug)]
pub struct ServiceUser {
    /// A session that may assign roles.
    pub admin: Session,
    /// Its id.
    pub user: String,
    pub project: String,
    /// Names of the roles that it has to have there.
    pub roles: Vec<String>,
}

/// Where flight control finds Klusters by their keys.
pub trait FlightDirectory: Send + Sync + 'static {
    /// Nothing unless the Kluster is Running and in a cloud.
    fn find(&self, key: &ObjectKey) -> impl Future<Output = Result<Option<FlightTarget>, ApiError>> + Send;
}

/// Klusters that are Running, from the caches.
pub struct ContextDirectory {
    context: Arc<CloudContext>,
    access: Arc<KlusterObserver>,
}

impl FlightDirectory for ContextDirectory {
    async fn find(&self, key: &ObjectKey) -> Result<Option<FlightTarget>, ApiError> {
        let Some(kluster) = self.access.find(key).filter(|kluster| kluster.phase() == KlusterPhase::Running) else {
            return Ok(None);
        };
        let nodes = match self.access.observe(key).await {
            Ok(observed) => observed.map(|observed| observed.nodes),
            Err(error) => {
                tracing::warn!(kluster = ?key, error = error.chain(), "flight control cannot look at nodes; this step is left out");
                None
            }
        };
        let spec_pools = kluster.spec.node_pools.iter().map(view_pool);
        let is_of_kluster = |pool: &NodePool| {
            pool.spec.kluster == key.name && pool.metadata.namespace.as_deref() == Some(key.namespace.as_str())
        };
        let objects = self.context.caches.node_pools.select(is_of_kluster);
        Ok(Some(FlightTarget {
            session: self.access.session(key, &kluster).await?,
            pools: spec_pools.chain(objects.iter().map(|pool| view_pool(&pool.spec.pool))).collect(),
            nodes,
            service_user: self.service_user(&kluster),
            client: self.context.client.clone(),
            events: self.context.events.clone(),
            kluster,
        }))
    }
}

impl ContextDirectory {
    /// The Kluster's own user, as the ledger has it; nothing if it has none. Names say nothing here: whoever has a domain of Keystone makes users of any name in it.
    fn service_user(&self, kluster: &Kluster) -> Option<ServiceUser> {
        let settings = self.context.klusters.service_users.as_ref()?;
        let admin = self.access.operator_session(kluster).ok()?;
        let (uid, project) = (kluster.metadata.uid.as_deref()?, kluster.spec.openstack.project_id.clone());
        let entries = self.context.ledger.entries_of(uid);
        let user = entries.into_iter().find(|entry| entry.resource == ResourceType::User)?.id?;
        (!project.is_empty()).then(|| ServiceUser { admin, user, project, roles: settings.roles.clone() })
    }
}

fn view_pool(pool: &PoolSpec) -> PoolView {
    let allow_reboot = pool.config.as_ref().and_then(|config| config.allow_reboot).unwrap_or(true);
    PoolView { name: pool.name.clone(), size: usize::try_from(pool.size).unwrap_or(0), allow_reboot }
}

/// Flight control.
pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let access = KlusterObserver::new(context);
    let directory = Arc::new(ContextDirectory { context: context.clone(), access });
    let queue = context.queue::<FlightController<ContextDirectory>>();
    context.caches.klusters.on_change({
        let queue = queue.clone();
        move |change: Change<'_, Kluster>| {
            if change.before.map(kluster_facts) != change.after.map(kluster_facts) {
                queue.add(change.key.clone());
            }
        }
    });
    let (metrics, clock) = (context.cloud_metrics.flight.clone(), context.clock.clone());
    let controller = FlightController { directory, metrics, clock };
    let limits = Limits { concurrent_reconciles: 10, longest_backoff: std::time::Duration::from_secs(300) };
    context.runnable(Arc::new(controller), queue, limits)
}

pub struct FlightController<D> {
    pub directory: Arc<D>,
    pub metrics: FlightMetrics,
    pub clock: Clock,
}

/// A repair that was tried.
#[derive(Debug)]
pub struct RepairOutcome {
    repair: Repair,
    result: Result<(), String>,
}

impl<D: FlightDirectory> Controller for FlightController<D> {
    const NAME: &'static str = "flight";
    type Key = ObjectKey;
    type World = FlightWorld;
    type Action = Repair;
    type Outcome = RepairOutcome;
    type Status = Vec<FlightProblem>;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<FlightWorld>, ApiError> {
        let Some(target) = self.directory.find(key).await? else { return Ok(None) };
        let (spec, network, compute) = (&target.kluster.spec, target.session.network(), target.session.compute());
        let group = spec.openstack.security_group_name.clone();
        // An administrator sees those of other projects as well.
        let is_own = |found: &SecurityGroup| {
            let project = &spec.openstack.project_id;
            project.is_empty() || found.project_id.is_empty() || found.project_id == *project
        };
        let groups = network.list_security_groups(Some(&group)).await;
        let servers = compute.list_servers(&ServerFilter::default()).await;
        let roles = match &target.service_user {
            Some(user) => {
                let roles = user.admin.identity().list_user_roles(&user.project, &user.user).await;
                read(key, "the service user's roles", roles)
            }
            None => None,
        };
        let nodes = target.nodes.as_ref().filter(|nodes| nodes.is_synced()).map(|nodes| nodes.all());
        let annotations = target.kluster.metadata.annotations.as_ref();
        Ok(Some(FlightWorld {
            kluster: spec.name.clone(),
            cluster_range: spec.cluster_cidr.clone().unwrap_or_default(),
            security_group: group,
            pools: target.pools.clone(),
            groups: read(key, "security groups", groups)
                .map(|all| all.iter().filter(|found| is_own(found)).map(view_group).collect()),
            servers: read(key, "servers", servers).map(|all| all.into_iter().map(view_server).collect()),
            is_pod_network_troubled: nodes.iter().flatten().any(|node| is_pod_network_troubled(node)),
            nodes: nodes.map(|nodes| nodes.iter().filter_map(|node| node.metadata.name.clone()).collect()),
            wanted_roles: target.service_user.as_ref().map(|user| user.roles.clone()).unwrap_or_default(),
            roles: roles.map(|roles| roles.into_iter().map(|role| role.name).collect()),
            last_touch: annotations.and_then(|all| all.get(LAST_TOUCH)?.parse().ok()),
        }))
    }

    fn plan(world: &FlightWorld, now: Timestamp) -> Plan<Repair, Vec<FlightProblem>> {
        let FlightPlan { repairs, problems } = plan::plan(world, now);
        Plan { actions: repairs, status: Some(problems), requeue_at: Some(now + PERIOD) }
    }

    async fn apply(&self, key: &ObjectKey, repair: Repair) -> Result<RepairOutcome, ApiError> {
        let Some(target) = self.directory.find(key).await? else {
            return Ok(RepairOutcome { repair, result: Err("the Kluster is not looked after any more".to_owned()) });
        };
        let result = self.carry_out(&target, &repair).await;
        let kind = RepairKind::from(&repair);
        match &result {
            Ok(()) => self.metrics.count(kind, RepairResult::Success),
            Err(error) => {
                self.metrics.count(kind, RepairResult::Failure);
                tracing::warn!(?key, ?repair, error, "a repair of flight control failed");
            }
        }
        Ok(RepairOutcome { repair, result })
    }

    async fn report(
        &self,
        key: &ObjectKey,
        problems: Vec<FlightProblem>,
        outcomes: &Outcomes<RepairOutcome>,
    ) -> Result<(), ApiError> {
        let Some(target) = self.directory.find(key).await? else { return Ok(()) };
        let reference = kluster_reference(&target.kluster);
        let record = |note| target.events.record_as(COMPONENT, reference.clone(), note);
        for problem in &problems {
            record(problem_note(problem));
        }
        for outcome in outcomes.iter().flatten() {
            record(repair_note(outcome));
        }
        Ok(())
    }
}

impl<D: FlightDirectory> FlightController<D> {
    async fn carry_out(&self, target: &FlightTarget, repair: &Repair) -> Result<(), String> {
        let (network, compute) = (target.session.network(), target.session.compute());
        let done = match repair {
            Repair::CreateRule { group, protocol, prefix } => {
                let rule = SecurityGroupRule {
                    security_group_id: group.clone(),
                    direction: "ingress".to_owned(),
                    ethertype: "IPv4".to_owned(),
                    protocol: Some((*protocol).to_owned()),
                    remote_ip_prefix: Some(prefix.clone()),
                    ..SecurityGroupRule::default()
                };
                match network.create_security_group_rule(&rule).await {
                    Err(error) if error.is_conflict() => Ok(()), // somebody else made the same
                    created => created.map(drop),
                }
            }
            Repair::RemoveTouchRule { rule } => network.delete_security_group_rule(rule).await.map(drop),
            Repair::AssignGroup { server, group } => compute.add_security_group(&server.id, group).await,
            Repair::SoftReboot { server, .. } => {
                // Written before: a crash in between costs a reboot, and not one every round.
                let stamp = [(REBOOTED_AT.to_owned(), self.clock.now().to_string())].into();
                match compute.update_server_metadata(&server.id, &stamp).await {
                    Ok(()) => compute.reboot_server(&server.id, RebootType::Soft).await,
                    failed => failed,
                }
            }
            Repair::Delete { server, .. } => compute.delete_server(&server.id).await.map(drop),
            Repair::AssignRole { role } => return assign_role(target, role).await,
            Repair::RestoreTags { server, tags } => {
                let mut result = Ok(());
                for tag in tags {
                    result = result.and(compute.add_server_tag(&server.id, tag).await);
                }
                result
            }
            Repair::RestoreMetadata { server, items } => compute.update_server_metadata(&server.id, items).await,
            Repair::TouchGroup { group } => return self.touch_group(target, group).await,
        };
        match done {
            // Gone meanwhile, and nothing is left to repair. An assignment says the same of a group that does not exist.
            Err(error) if error.is_not_found() && !matches!(repair, Repair::AssignGroup { .. }) => Ok(()),
            done => done.map_err(|error| error_chain(&error)),
        }
    }

    /// Adds a rule that allows nothing real and takes it away, so that every port's rules are sent out anew.
    async fn touch_group(&self, target: &FlightTarget, group: &str) -> Result<(), String> {
        let meta = &target.kluster.metadata;
        let (namespace, name) = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let klusters: Api<Kluster> = Api::namespaced(target.client.clone(), &namespace);
        let stamp = json!({"metadata": {"uid": meta.uid, "annotations": {LAST_TOUCH: self.clock.now().to_string()}}});
        let stamped = klusters.patch(&name, &PatchParams::default(), &Patch::Merge(stamp)).await;
        stamped.map_err(|error| error_chain(&error))?;
        let rule = SecurityGroupRule {
            security_group_id: group.to_owned(),
            direction: "ingress".to_owned(),
            ethertype: "IPv4".to_owned(),
            protocol: Some("udp".to_owned()),
            port_range_min: Some(9),
            port_range_max: Some(9),
            remote_ip_prefix: Some(TOUCH_PREFIX.to_owned()),
            description: TOUCH_DESCRIPTION.to_owned(),
            ..SecurityGroupRule::default()
        };
        let network = target.session.network();
        let created = network.create_security_group_rule(&rule).await.map_err(|error| error_chain(&error))?;
        network.delete_security_group_rule(&created.id).await.map(drop).map_err(|error| error_chain(&error))
    }
}

async fn assign_role(target: &FlightTarget, role: &str) -> Result<(), String> {
    let Some(user) = &target.service_user else { return Ok(()) };
    let identity = user.admin.identity();
    let roles = identity.list_roles().await.map_err(|error| error_chain(&error))?;
    let Some(found) = roles.iter().find(|known| known.name.eq_ignore_ascii_case(role)) else {
        return Err(format!("the cloud has no role {role:?}"));
    };
    identity.assign_role(&user.project, &user.user, &found.id).await.map_err(|error| error_chain(&error))
}

/// What was read; nothing, and a line in the log, if it could not be.
fn read<T>(key: &ObjectKey, what: &'static str, result: Result<T, CloudError>) -> Option<T> {
    match result {
        Ok(read) => Some(read),
        Err(error) => {
            tracing::warn!(kluster = ?key, what, error = error_chain(&error), "flight control cannot look; this step is left out");
            None
        }
    }
}

fn view_group(group: &SecurityGroup) -> GroupView {
    let rule = |rule: &SecurityGroupRule| RuleView {
        id: rule.id.clone(),
        is_ingress: rule.direction == "ingress",
        is_ipv4: rule.ethertype == "IPv4",
        protocol: rule.protocol.clone(),
        has_ports: rule.port_range_min.is_some() || rule.port_range_max.is_some(),
        remote_prefix: rule.remote_ip_prefix.clone(),
        description: rule.description.clone(),
    };
    GroupView { id: group.id.clone(), rules: group.security_group_rules.iter().map(rule).collect() }
}

fn view_server(server: Server) -> FlightServer {
    FlightServer {
        state: MemberState::from_nova(&server.task_state, &server.vm_state, server.power_state),
        id: server.id,
        name: server.name,
        vm_state: server.vm_state,
        task_state: server.task_state,
        created: server.created,
        security_groups: server.security_groups.into_iter().map(|group| group.name).collect::<BTreeSet<_>>(),
        tags: server.tags.into_iter().collect(),
        metadata: server.metadata,
    }
}

fn is_pod_network_troubled(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| {
        condition.type_ == route_broken::TYPE
            && condition.status == "True"
            && condition.reason.as_deref() == Some(route_broken::PEERS_UNREACHABLE)
    })
}

fn kluster_reference(kluster: &Kluster) -> ObjectReference {
    ObjectReference {
        api_version: Some(kluster.api_version.clone()),
        kind: Some("Kluster".to_owned()),
        namespace: kluster.metadata.namespace.clone(),
        name: kluster.metadata.name.clone(),
        uid: kluster.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn problem_note(problem: &FlightProblem) -> EventNote {
    match problem {
        FlightProblem::SecurityGroup { name, count } => EventNote::warning(
            "SecurityGroupAmbiguous",
            format!(
                "spec.openstack.securityGroupName: the project has {count} security groups {name:?}, and needs exactly one"
            ),
        ),
        FlightProblem::MostOfPoolSick { pool, sick, members } => EventNote::warning(
            "CureHeld",
            format!(
                "{sick} of {members} servers of pool {pool} never joined: while most of a pool is sick at once, none is rebooted or replaced"
            ),
        ),
    }
}

fn repair_note(outcome: &RepairOutcome) -> EventNote {
    let (reason, what) = describe(&outcome.repair);
    match &outcome.result {
        Ok(()) => EventNote::normal(reason, what),
        Err(error) => EventNote::warning("FlightRepairFailed", format!("{what}: {error}")),
    }
}

/// The reason of a repair's event, and what is done.
fn describe(repair: &Repair) -> (&'static str, String) {
    match repair {
        Repair::CreateRule { protocol, prefix, .. } => {
            ("SecurityGroupRuleCreated", format!("Create the missing security group rule for {protocol} from {prefix}"))
        }
        Repair::RemoveTouchRule { rule } => {
            ("SecurityGroupTouched", format!("Remove security group rule {rule}, left over from a touch"))
        }
        Repair::AssignGroup { server, group } => {
            ("SecurityGroupAssigned", format!("Assign security group {group} to server {}", server.name))
        }
        Repair::SoftReboot { server, age } => (
            "UnjoinedServerRebooted",
            format!("Reboot server {}, which is {} minutes old and no Node", server.name, age.as_mins()),
        ),
        Repair::Delete { server, why: DeleteReason::NeverJoined { age } } => (
            "UnjoinedServerDeleted",
            format!("Delete server {}, which is {} minutes old and no Node", server.name, age.as_mins()),
        ),
        Repair::Delete { server, why: DeleteReason::Errored } => {
            ("ErroredServerDeleted", format!("Delete server {}, which is in error", server.name))
        }
        Repair::AssignRole { role } => {
            ("ServiceUserRoleAssigned", format!("Assign role {role} to the service user, which lost it"))
        }
        Repair::RestoreTags { server, tags } => {
            ("ServerTagsRestored", format!("Restore tags {} of server {}", tags.join(", "), server.name))
        }
        Repair::RestoreMetadata { server, items } => {
            let keys: Vec<&str> = items.keys().map(String::as_str).collect();
            ("ServerTagsRestored", format!("Restore metadata {} of server {}", keys.join(", "), server.name))
        }
        Repair::TouchGroup { .. } => {
            ("SecurityGroupTouched", "Touch the security group: Nodes cannot reach each other's pods".to_owned())
        }
    }
}
