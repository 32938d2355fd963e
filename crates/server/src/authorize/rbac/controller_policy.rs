//! What the parts of this program may do: the ClusterRole of each controller's service account in `kube-system`, as
//! upstream names them, and of what the controllers share and the scheduler.
//!
//! Each has what it uses and nothing else: `least_rights` among the controllers' tests names every right that none of them
//! used. Reading goes through the caches that the controllers share: a controller has `get` or `list` only where it must
//! see the newest state before it acts.

use mainstay_api::wellknown::namespace::SYSTEM;

use super::bootstrap_policy::{APPS, CERTIFICATES, CORE, RESOURCE, RoleSpec, RuleSpec, SubjectSpec, named, role, rule};
use crate::auth::{User, service_account};

/// The user that fills the caches of the controllers, writes their events and stands for election.
pub const CONTROLLERS_USER: &str = "system:mainstay:controllers";
pub const SCHEDULER_USER: &str = "system:mainstay:scheduler";

const ALL: &[&str] = &["*"];
const BATCH: &[&str] = &["batch"];
const OWN: &[&str] = &["mainstay.dev"];
const SNAPSHOTS: &[&str] = &["snapshot.storage.k8s.io"];
const DISCOVERY: &[&str] = &["discovery.k8s.io"];
const LEASES: RuleSpec = rule(&["create"], &["coordination.k8s.io"], &["leases"]);
const EVENTS: RuleSpec = rule(&["create", "patch"], CORE, &["events"]);

const fn own_lease(name: &'static [&'static str]) -> RuleSpec {
    named(rule(&["get", "update"], &["coordination.k8s.io"], &["leases"]), name)
}

/// Of parts that are users of their own.
pub const PARTS: &[(RoleSpec, SubjectSpec)] = &[
    (
        role(
            CONTROLLERS_USER,
            &[rule(&["list", "watch"], ALL, ALL), EVENTS, LEASES, own_lease(&["mainstay-controllers"])],
        ),
        SubjectSpec::User(CONTROLLERS_USER),
    ),
    (
        role(
            SCHEDULER_USER,
            &[
                rule(
                    &["list", "watch"],
                    CORE,
                    &["pods", "nodes", "namespaces", "persistentvolumeclaims", "persistentvolumes"],
                ),
                rule(&["list", "watch"], &["coordination.k8s.io"], &["leases"]),
                rule(&["list", "watch"], &["policy"], &["poddisruptionbudgets"]),
                rule(&["list", "watch"], &["storage.k8s.io"], &["storageclasses"]),
                rule(&["list", "watch", "delete"], &["mainstay.dev"], &["offers"]),
                rule(
                    &["list", "watch"],
                    RESOURCE,
                    &["resourceclaims", "resourceslices", "deviceclasses", "devicetaintrules"],
                ),
                rule(&["create", "get", "update"], RESOURCE, &["resourceclaims"]),
                rule(&["update"], RESOURCE, &["resourceclaims/status"]),
                rule(&["create"], &["mainstay.dev"], &["placements"]),
                rule(&["delete"], CORE, &["pods"]),
                rule(&["patch"], CORE, &["pods/status"]),
                EVENTS,
                LEASES,
                own_lease(&["mainstay-scheduler"]),
            ],
        ),
        SubjectSpec::User(SCHEDULER_USER),
    ),
];

/// A controller's service account, and the rules of the ClusterRole `system:controller:<account>`.
pub struct ControllerSpec {
    pub account: &'static str,
    pub rules: &'static [RuleSpec],
}

const fn controller(account: &'static str, rules: &'static [RuleSpec]) -> ControllerSpec {
    ControllerSpec { account, rules }
}

/// Whether a user is one of our own parts, which are refused something only if somebody changed their role.
pub fn is_own_part(user: &User) -> bool {
    let is_controller = |(namespace, account)| {
        namespace == SYSTEM && CONTROLLERS.iter().any(|controller| controller.account == account)
    };
    [CONTROLLERS_USER, SCHEDULER_USER].contains(&&*user.name)
        || service_account::parse_user(&user.name).is_some_and(is_controller)
}

/// Pods that a workload creates, deletes and adopts.
const OWN_PODS: RuleSpec = rule(&["create", "delete", "patch"], CORE, &["pods"]);
const OWN_REVISIONS: RuleSpec = rule(&["create", "delete", "patch"], APPS, &["controllerrevisions"]);
const OWN_SLICES: RuleSpec = rule(&["create", "delete", "update"], DISCOVERY, &["endpointslices"]);
const POD_STATUS: RuleSpec = rule(&["patch"], CORE, &["pods/status"]);

pub const CONTROLLERS: &[ControllerSpec] = &[
    controller(
        "namespace-controller",
        &[
            rule(&["get"], CORE, &["namespaces"]),
            rule(&["update"], CORE, &["namespaces/finalize", "namespaces/status"]),
            rule(&["delete", "deletecollection", "list"], ALL, ALL),
        ],
    ),
    controller(
        "namespace-defaults-controller",
        &[
            rule(&["get"], CORE, &["namespaces"]),
            rule(&["create"], CORE, &["configmaps", "serviceaccounts"]),
            named(rule(&["get"], CORE, &["serviceaccounts"]), &["default"]),
            named(rule(&["get", "update"], CORE, &["configmaps"]), &["kube-root-ca.crt"]),
        ],
    ),
    controller("generic-garbage-collector", &[rule(&["delete", "get", "list", "patch"], ALL, ALL)]),
    controller(
        "clusterrole-aggregation-controller",
        &[rule(&["escalate", "patch"], &["rbac.authorization.k8s.io"], &["clusterroles"])],
    ),
    controller(
        "node-controller",
        &[rule(&["patch"], CORE, &["nodes", "nodes/status", "pods/status"]), rule(&["delete"], CORE, &["pods"])],
    ),
    controller(
        "machine-controller",
        &[
            rule(&["create", "patch"], OWN, &["machines"]),
            rule(&["patch"], OWN, &["machines/status"]),
            rule(&["patch"], CORE, &["nodes"]),
        ],
    ),
    // Runs only where a cloud is configured; it fills caches of its own.
    controller(
        "cloud-controller",
        &[
            rule(&["list", "watch"], OWN, &["klusters", "nodepools", "cloudresources"]),
            // Klusters, and the objects that their control planes are made of.
            rule(&["patch"], OWN, &["klusters", "klusters/status"]),
            // Their Secrets are no matter of roles: see `kluster_secrets`.
            rule(&["create", "delete", "get", "patch"], CORE, &["services"]),
            rule(&["create", "delete", "get", "patch"], &["apps"], &["statefulsets"]),
            rule(&["get"], CORE, &["persistentvolumeclaims"]),
            // The REST API of Kubernikus.
            rule(&["create", "delete", "get", "list", "patch"], &["kubernikus.sap.cc"], &["klusters"]),
            rule(&["list"], CORE, &["events"]),
            rule(&["create", "delete", "get", "patch"], OWN, &["cloudresources"]),
            rule(&["patch"], OWN, &["cloudresources/status"]),
            rule(&["update"], OWN, &["klusters/status", "nodepools/status", "teardownreceipts/status"]),
            rule(&["create", "get"], OWN, &["teardownreceipts"]),
            rule(&["get"], CORE, &["configmaps"]),
            rule(&["get", "patch"], APPS, &["deployments"]),
            named(rule(&["get"], CORE, &["namespaces"]), &["kube-system"]),
            rule(&["patch"], OWN, &["klusters"]),
            rule(&["list", "patch", "watch"], CORE, &["nodes"]),
            rule(&["patch"], CORE, &["nodes/status"]),
            // Routes: which pod ranges have one, and the cluster's own pod range.
            named(rule(&["get", "update"], CORE, &["configmaps"]), &["pod-range-routes", "mainstay-config"]),
            rule(&["create"], CORE, &["configmaps"]),
            // Which pods use which claims where, and what is attached to which node for it.
            rule(&["list", "watch"], CORE, &["pods"]),
            rule(&["get"], CORE, &["nodes"]),
            rule(&["create", "delete", "list", "patch", "watch"], &["storage.k8s.io"], &["volumeattachments"]),
            rule(&["patch"], &["storage.k8s.io"], &["volumeattachments/status"]),
            rule(&["list", "patch", "watch"], CORE, &["services"]),
            rule(&["patch"], CORE, &["services/status", "persistentvolumeclaims/status"]),
            rule(&["list", "watch"], CORE, &["persistentvolumeclaims"]),
            rule(&["create", "delete", "list", "patch", "watch"], CORE, &["persistentvolumes"]),
            rule(&["create", "list", "watch"], &["storage.k8s.io"], &["storageclasses"]),
            // Snapshots of volumes, and the definitions of their kinds.
            rule(&["create", "get"], &["apiextensions.k8s.io"], &["customresourcedefinitions"]),
            rule(
                &["list", "watch"],
                SNAPSHOTS,
                &["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"],
            ),
            rule(
                &["patch"],
                SNAPSHOTS,
                &["volumesnapshots", "volumesnapshots/status", "volumesnapshotcontents/status"],
            ),
            rule(&["create", "delete", "patch"], SNAPSHOTS, &["volumesnapshotcontents"]),
            rule(&["create"], SNAPSHOTS, &["volumesnapshotclasses"]),
            EVENTS,
        ],
    ),
    controller(
        "host-service-controller",
        &[
            rule(&["create", "delete"], CORE, &["services"]),
            rule(&["delete"], &["discovery.k8s.io"], &["endpointslices"]),
        ],
    ),
    controller(
        "release-controller",
        &[
            rule(&["patch"], OWN, &["machines"]),
            rule(&["update"], OWN, &["releases/status"]),
            rule(&["patch"], APPS, &["daemonsets", "deployments", "statefulsets"]),
            rule(&["get"], CORE, &["pods/exec"]),
        ],
    ),
    controller(
        "resourcequota-controller",
        &[
            rule(&["list"], ALL, ALL),
            rule(&["get"], CORE, &["resourcequotas"]),
            rule(&["update"], CORE, &["resourcequotas/status"]),
        ],
    ),
    controller(
        "replicaset-controller",
        &[rule(&["get"], APPS, &["replicasets"]), rule(&["patch"], APPS, &["replicasets/status"]), OWN_PODS],
    ),
    controller(
        "replication-controller",
        &[
            rule(&["get"], CORE, &["replicationcontrollers"]),
            rule(&["patch"], CORE, &["replicationcontrollers/status"]),
            OWN_PODS,
        ],
    ),
    controller(
        "deployment-controller",
        &[
            rule(&["get", "patch"], APPS, &["deployments"]),
            rule(&["patch"], APPS, &["deployments/status"]),
            rule(&["create", "delete", "patch"], APPS, &["replicasets"]),
        ],
    ),
    controller(
        "statefulset-controller",
        &[
            rule(&["get"], APPS, &["statefulsets"]),
            rule(&["update"], APPS, &["statefulsets/status"]),
            OWN_PODS,
            OWN_REVISIONS,
            rule(&["create", "patch"], CORE, &["persistentvolumeclaims"]),
        ],
    ),
    controller(
        "daemon-set-controller",
        &[
            rule(&["get"], APPS, &["daemonsets"]),
            rule(&["update"], APPS, &["daemonsets/status"]),
            OWN_PODS,
            OWN_REVISIONS,
        ],
    ),
    controller(
        "job-controller",
        &[
            rule(&["get"], BATCH, &["jobs"]),
            rule(&["update"], BATCH, &["jobs/status"]),
            OWN_PODS,
            rule(&["get", "list"], CORE, &["pods"]),
        ],
    ),
    controller(
        "cronjob-controller",
        &[
            rule(&["get"], BATCH, &["cronjobs"]),
            rule(&["update"], BATCH, &["cronjobs/status"]),
            rule(&["create", "delete", "get", "list"], BATCH, &["jobs"]),
        ],
    ),
    controller("ttl-after-finished-controller", &[rule(&["delete"], BATCH, &["jobs"])]),
    controller(
        "disruption-controller",
        &[
            rule(&["update"], &["policy"], &["poddisruptionbudgets/status"]),
            rule(&["get"], ALL, &["*/scale"]),
            POD_STATUS,
        ],
    ),
    controller(
        "pod-garbage-collector",
        &[rule(&["get"], CORE, &["nodes"]), rule(&["delete"], CORE, &["pods"]), POD_STATUS],
    ),
    controller(
        "horizontal-pod-autoscaler",
        &[
            rule(&["update"], &["autoscaling"], &["horizontalpodautoscalers/status"]),
            rule(&["get", "update"], ALL, &["*/scale"]),
            rule(&["list"], &["metrics.k8s.io"], &["pods"]),
            rule(&["get", "list"], &["custom.metrics.k8s.io", "external.metrics.k8s.io"], ALL),
        ],
    ),
    controller("endpointslice-controller", &[OWN_SLICES]),
    controller("endpointslicemirroring-controller", &[OWN_SLICES]),
    controller("endpoint-controller", &[rule(&["create", "delete", "update"], CORE, &["endpoints"])]),
    controller("drain-acknowledgement-controller", &[POD_STATUS]),
    controller("dependency-controller", &[POD_STATUS]),
    controller("follow-controller", &[rule(&["create"], CORE, &["pods/eviction"])]),
    controller(
        "device-taint-eviction-controller",
        &[POD_STATUS, rule(&["delete"], CORE, &["pods"]), rule(&["update"], RESOURCE, &["devicetaintrules/status"])],
    ),
    controller(
        "config-template-controller",
        &[
            rule(&["update"], &["mainstay.dev"], &["configtemplates/status"]),
            rule(&["create", "delete", "patch"], &["mainstay.dev"], &["machinefiles"]),
            rule(&["create", "delete", "get", "patch"], CORE, &["configmaps", "secrets"]),
            rule(&["get", "patch"], CORE, &["pods"]),
            rule(&["create"], CORE, &["pods/eviction"]),
            rule(&["get"], CORE, &["pods/exec"]),
            rule(&["create", "get", "update"], CORE, &["pods/proxy"]),
        ],
    ),
    controller(
        "config-rollout-controller",
        &[
            rule(&["create", "delete", "get", "patch"], CORE, &["configmaps", "secrets"]),
            rule(&["patch"], APPS, &["daemonsets", "deployments", "statefulsets"]),
            rule(&["delete"], CORE, &["pods"]),
        ],
    ),
    controller(
        "persistent-volume-binder",
        &[
            rule(&["create", "delete", "get", "list", "patch"], CORE, &["persistentvolumes"]),
            rule(&["get", "patch"], CORE, &["persistentvolumeclaims"]),
            rule(&["patch"], CORE, &["persistentvolumes/status", "persistentvolumeclaims/status"]),
            rule(&["list"], &["storage.k8s.io"], &["storageclasses"]),
            rule(&["get", "list"], CORE, &["nodes"]),
            rule(&["list"], CORE, &["pods"]),
        ],
    ),
    controller(
        "ephemeral-volume-controller",
        &[rule(&["get"], CORE, &["pods"]), rule(&["create"], CORE, &["persistentvolumeclaims"])],
    ),
    controller(
        "volumeattributesclass-protection-controller",
        &[
            rule(&["list"], CORE, &["persistentvolumes", "persistentvolumeclaims"]),
            rule(&["patch"], &["storage.k8s.io"], &["volumeattributesclasses"]),
        ],
    ),
    controller(
        "service-cidrs-controller",
        &[
            rule(&["list"], &["networking.k8s.io"], &["ipaddresses"]),
            rule(&["patch"], &["networking.k8s.io"], &["servicecidrs", "servicecidrs/status"]),
        ],
    ),
    controller(
        "tokens-controller",
        &[rule(&["delete", "list", "update"], CORE, &["secrets"]), rule(&["get"], CORE, &["serviceaccounts"])],
    ),
    controller(
        "storage-version-migrator-controller",
        &[rule(&["update"], &["storagemigration.k8s.io"], &["storageversionmigrations/status"])],
    ),
    controller(
        "resource-claim-controller",
        &[
            rule(&["get"], CORE, &["pods"]),
            POD_STATUS,
            rule(&["create", "delete", "update"], RESOURCE, &["resourceclaims"]),
            rule(&["update"], RESOURCE, &["resourceclaims/status"]),
        ],
    ),
    controller(
        "certificate-controller",
        &[
            rule(&["delete"], CERTIFICATES, &["certificatesigningrequests"]),
            rule(
                &["update"],
                CERTIFICATES,
                &["certificatesigningrequests/approval", "certificatesigningrequests/status"],
            ),
            named(
                rule(&["approve", "sign"], CERTIFICATES, &["signers"]),
                &["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"],
            ),
            named(rule(&["sign"], CERTIFICATES, &["signers"]), &["kubernetes.io/kube-apiserver-client"]),
            rule(&["get"], CORE, &["nodes"]),
        ],
    ),
];
