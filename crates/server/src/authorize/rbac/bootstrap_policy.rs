//! Roles and bindings that every cluster has, as upstream's API server makes them.
//!
//! Data alone: `background::bootstrap_rbac` brings the cluster to it. Roles of upstream's parts that Mainstay does not
//! have (cloud providers, legacy alpha APIs) are left out.

/// One rule; what is not given is empty.
#[derive(Clone, Copy, Default)]
pub struct RuleSpec {
    pub verbs: &'static [&'static str],
    pub groups: &'static [&'static str],
    pub resources: &'static [&'static str],
    pub names: &'static [&'static str],
    pub urls: &'static [&'static str],
}

pub struct RoleSpec {
    pub name: &'static str,
    /// The aggregated roles (`admin`, `edit`, `view`) that this one is a part of.
    pub aggregate_to: &'static [&'static str],
    pub rules: &'static [RuleSpec],
}

/// A ClusterRole that is the sum of those labelled for it.
pub struct AggregatedRoleSpec {
    pub name: &'static str,
    pub labelled_itself: &'static [&'static str],
    /// Its own selector: `rbac.authorization.k8s.io/aggregate-to-<name>: "true"`.
    pub selects: &'static str,
}

#[derive(Clone, Copy)]
pub enum SubjectSpec {
    User(&'static str),
    Group(&'static str),
    /// A service account of `kube-system`.
    SystemAccount(&'static str),
}

pub struct BindingSpec {
    pub name: &'static str,
    pub role: &'static str,
    pub subjects: &'static [SubjectSpec],
}

/// A Role and the RoleBinding of the same name in one namespace.
pub struct NamespacedRoleSpec {
    pub namespace: &'static str,
    pub name: &'static str,
    pub rules: &'static [RuleSpec],
    pub subjects: &'static [SubjectSpec],
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const READ_WRITE: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const EVENT_WRITE: &[&str] = &["create", "patch", "update"];
const ALL: &[&str] = &["*"];
pub(super) const CORE: &[&str] = &[""];
pub(super) const APPS: &[&str] = &["apps"];
const EVENTS: &[&str] = &["", "events.k8s.io"];
pub(super) const CERTIFICATES: &[&str] = &["certificates.k8s.io"];
pub const RESOURCE: &[&str] = &["resource.k8s.io"];
const AUTHENTICATED: SubjectSpec = SubjectSpec::Group("system:authenticated");

pub(super) const fn rule(
    verbs: &'static [&'static str],
    groups: &'static [&'static str],
    resources: &'static [&'static str],
) -> RuleSpec {
    RuleSpec { verbs, groups, resources, names: &[], urls: &[] }
}

pub(super) const fn named(rule: RuleSpec, names: &'static [&'static str]) -> RuleSpec {
    RuleSpec { names, ..rule }
}

const fn get(urls: &'static [&'static str]) -> RuleSpec {
    RuleSpec { verbs: &["get"], groups: &[], resources: &[], names: &[], urls }
}

pub(super) const fn role(name: &'static str, rules: &'static [RuleSpec]) -> RoleSpec {
    RoleSpec { name, aggregate_to: &[], rules }
}

pub const AGGREGATED_ROLES: &[AggregatedRoleSpec] = &[
    AggregatedRoleSpec { name: "admin", labelled_itself: &[], selects: "admin" },
    AggregatedRoleSpec { name: "edit", labelled_itself: &["admin"], selects: "edit" },
    AggregatedRoleSpec { name: "view", labelled_itself: &["edit"], selects: "view" },
];

pub const CLUSTER_ROLES: &[RoleSpec] = &[
    role(
        "cluster-admin",
        &[rule(ALL, ALL, ALL), RuleSpec { verbs: ALL, urls: ALL, groups: &[], resources: &[], names: &[] }],
    ),
    role(
        "system:discovery",
        &[get(&[
            "/api",
            "/api/*",
            "/apis",
            "/apis/*",
            "/healthz",
            "/livez",
            "/openapi",
            "/openapi/*",
            "/readyz",
            "/version",
            "/version/",
        ])],
    ),
    role("system:public-info-viewer", &[get(&["/healthz", "/livez", "/readyz", "/version", "/version/"])]),
    role(
        "system:monitoring",
        &[get(&["/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*"])],
    ),
    role(
        "system:basic-user",
        &[
            rule(&["create"], &["authorization.k8s.io"], &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
            rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
        ],
    ),
    RoleSpec {
        name: "system:aggregate-to-admin",
        aggregate_to: &["admin"],
        rules: &[
            rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
            rule(READ_WRITE, &["rbac.authorization.k8s.io"], &["roles", "rolebindings"]),
        ],
    },
    RoleSpec {
        name: "system:aggregate-to-edit",
        aggregate_to: &["edit"],
        rules: &[
            rule(
                READ,
                CORE,
                &["pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"],
            ),
            rule(&["impersonate"], CORE, &["serviceaccounts"]),
            rule(WRITE, CORE, &["pods", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward"]),
            rule(&["create"], CORE, &["pods/eviction"]),
            rule(
                WRITE,
                CORE,
                &[
                    "replicationcontrollers",
                    "replicationcontrollers/scale",
                    "serviceaccounts",
                    "services",
                    "services/proxy",
                    "persistentvolumeclaims",
                    "configmaps",
                    "secrets",
                    "events",
                ],
            ),
            rule(&["create"], CORE, &["serviceaccounts/token"]),
            rule(
                WRITE,
                APPS,
                &[
                    "statefulsets",
                    "statefulsets/scale",
                    "daemonsets",
                    "deployments",
                    "deployments/scale",
                    "deployments/rollback",
                    "replicasets",
                    "replicasets/scale",
                ],
            ),
            rule(WRITE, &["autoscaling"], &["horizontalpodautoscalers"]),
            rule(WRITE, &["batch"], &["jobs", "cronjobs"]),
            rule(WRITE, &["policy"], &["poddisruptionbudgets"]),
            rule(WRITE, &["networking.k8s.io"], &["networkpolicies", "ingresses"]),
            rule(WRITE, RESOURCE, &["resourceclaims", "resourceclaimtemplates"]),
            rule(READ_WRITE, &["coordination.k8s.io"], &["leases"]),
        ],
    },
    RoleSpec {
        name: "system:aggregate-to-view",
        aggregate_to: &["view"],
        rules: &[
            rule(
                READ,
                CORE,
                &[
                    "pods",
                    "replicationcontrollers",
                    "replicationcontrollers/scale",
                    "serviceaccounts",
                    "services",
                    "services/status",
                    "endpoints",
                    "persistentvolumeclaims",
                    "persistentvolumeclaims/status",
                    "configmaps",
                ],
            ),
            rule(
                READ,
                CORE,
                &[
                    "limitranges",
                    "resourcequotas",
                    "bindings",
                    "events",
                    "pods/status",
                    "resourcequotas/status",
                    "namespaces/status",
                    "replicationcontrollers/status",
                    "pods/log",
                ],
            ),
            rule(READ, CORE, &["namespaces"]),
            rule(READ, &["discovery.k8s.io"], &["endpointslices"]),
            rule(
                READ,
                APPS,
                &[
                    "controllerrevisions",
                    "statefulsets",
                    "statefulsets/status",
                    "statefulsets/scale",
                    "daemonsets",
                    "daemonsets/status",
                    "deployments",
                    "deployments/status",
                    "deployments/scale",
                    "replicasets",
                    "replicasets/status",
                    "replicasets/scale",
                ],
            ),
            rule(READ, &["autoscaling"], &["horizontalpodautoscalers", "horizontalpodautoscalers/status"]),
            rule(READ, &["batch"], &["jobs", "cronjobs", "cronjobs/status", "jobs/status"]),
            rule(READ, &["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
            rule(READ, &["networking.k8s.io"], &["networkpolicies", "ingresses", "ingresses/status"]),
            rule(READ, RESOURCE, &["resourceclaims", "resourceclaims/status", "resourceclaimtemplates"]),
        ],
    },
    // A template has commands run in pods and reads Secrets of its namespace, as whoever may edit can anyway.
    RoleSpec {
        name: "mainstay:aggregate-to-edit",
        aggregate_to: &["edit"],
        rules: &[rule(WRITE, &["mainstay.dev"], &["configtemplates"])],
    },
    RoleSpec {
        name: "mainstay:aggregate-to-view",
        aggregate_to: &["view"],
        rules: &[rule(
            READ,
            &["mainstay.dev"],
            &["configtemplates", "configtemplates/status", "machinefiles", "machinefiles/status"],
        )],
    },
    RoleSpec {
        name: "system:aggregated-metrics-reader",
        aggregate_to: &["admin", "edit", "view"],
        rules: &[rule(READ, &["metrics.k8s.io"], &["pods", "nodes"])],
    },
    role(
        "system:node",
        &[
            rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
            rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews", "subjectaccessreviews"]),
            rule(READ, CORE, &["services"]),
            rule(&["create", "get", "list", "watch"], CORE, &["nodes"]),
            rule(&["patch", "update"], CORE, &["nodes/status"]),
            rule(&["patch", "update"], CORE, &["nodes"]),
            rule(EVENT_WRITE, EVENTS, &["events"]),
            rule(READ, CORE, &["pods"]),
            rule(&["create", "delete"], CORE, &["pods"]),
            rule(&["patch", "update"], CORE, &["pods/status"]),
            rule(&["create"], CORE, &["pods/eviction"]),
            rule(READ, CORE, &["configmaps", "secrets"]),
            rule(&["get"], CORE, &["persistentvolumeclaims", "persistentvolumes"]),
            rule(&["create", "get", "list", "watch"], CERTIFICATES, &["certificatesigningrequests"]),
            rule(READ, CERTIFICATES, &["clustertrustbundles"]),
            rule(READ_WRITE, RESOURCE, &["resourceslices"]),
            rule(&["create", "delete", "get", "patch", "update"], &["coordination.k8s.io"], &["leases"]),
            rule(&["create"], CORE, &["serviceaccounts/token"]),
            rule(READ, &["storage.k8s.io"], &["csidrivers"]),
            rule(READ, &["node.k8s.io"], &["runtimeclasses"]),
        ],
    ),
    role(
        "system:node-problem-detector",
        &[
            rule(&["get"], CORE, &["nodes"]),
            rule(&["patch"], CORE, &["nodes/status"]),
            rule(EVENT_WRITE, EVENTS, &["events"]),
        ],
    ),
    role(
        "system:kubelet-api-admin",
        &[
            rule(READ, CORE, &["nodes"]),
            rule(&["proxy"], CORE, &["nodes"]),
            rule(
                ALL,
                CORE,
                &[
                    "nodes/log",
                    "nodes/metrics",
                    "nodes/proxy",
                    "nodes/stats",
                    "nodes/configz",
                    "nodes/healthz",
                    "nodes/pods",
                ],
            ),
        ],
    ),
    role(
        "system:node-bootstrapper",
        &[rule(&["create", "get", "list", "watch"], CERTIFICATES, &["certificatesigningrequests"])],
    ),
    role(
        "system:auth-delegator",
        &[
            rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
            rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
        ],
    ),
    role("system:kube-aggregator", &[rule(READ, CORE, &["endpoints", "services"])]),
    role(
        "system:kube-controller-manager",
        &[
            rule(EVENT_WRITE, EVENTS, &["events"]),
            rule(&["create"], &["coordination.k8s.io"], &["leases"]),
            named(rule(&["get", "update"], &["coordination.k8s.io"], &["leases"]), &["kube-controller-manager"]),
            rule(&["create"], CORE, &["secrets", "serviceaccounts"]),
            rule(&["delete"], CORE, &["secrets"]),
            rule(&["get"], CORE, &["configmaps", "namespaces", "secrets", "serviceaccounts"]),
            rule(&["update"], CORE, &["secrets", "serviceaccounts"]),
            rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
            rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
            rule(&["list", "watch"], ALL, ALL),
            rule(&["create"], CORE, &["serviceaccounts/token"]),
        ],
    ),
    role(
        "system:kube-scheduler",
        &[
            rule(EVENT_WRITE, EVENTS, &["events"]),
            rule(&["create"], &["coordination.k8s.io"], &["leases"]),
            named(
                rule(&["get", "list", "update", "watch"], &["coordination.k8s.io"], &["leases"]),
                &["kube-scheduler"],
            ),
            rule(READ, CORE, &["nodes"]),
            rule(&["delete", "get", "list", "watch"], CORE, &["pods"]),
            rule(&["create"], CORE, &["bindings", "pods/binding"]),
            rule(&["patch", "update"], CORE, &["pods/status"]),
            rule(READ, CORE, &["replicationcontrollers", "services"]),
            rule(READ, APPS, &["replicasets", "statefulsets"]),
            rule(READ, &["policy"], &["poddisruptionbudgets"]),
            rule(READ, CORE, &["persistentvolumeclaims", "persistentvolumes", "namespaces"]),
            rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
            rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
            rule(READ, &["storage.k8s.io"], &["csidrivers", "csinodes", "csistoragecapacities", "storageclasses"]),
            rule(READ, RESOURCE, &["resourceclaims", "resourceslices", "deviceclasses", "devicetaintrules"]),
            rule(&["patch", "update"], RESOURCE, &["resourceclaims", "resourceclaims/status"]),
            rule(&["create", "delete"], RESOURCE, &["resourceclaims"]),
        ],
    ),
    role("system:kube-dns", &[rule(&["list", "watch"], CORE, &["endpoints", "services"])]),
    role(
        "system:persistent-volume-provisioner",
        &[
            rule(&["create", "delete", "get", "list", "watch"], CORE, &["persistentvolumes"]),
            rule(&["get", "list", "update", "watch"], CORE, &["persistentvolumeclaims"]),
            rule(READ, &["storage.k8s.io"], &["storageclasses"]),
            rule(&["watch"], CORE, &["events"]),
            rule(EVENT_WRITE, EVENTS, &["events"]),
        ],
    ),
    role(
        "system:volume-scheduler",
        &[
            rule(&["get", "list", "patch", "update", "watch"], CORE, &["persistentvolumes"]),
            rule(READ, &["storage.k8s.io"], &["storageclasses"]),
            rule(&["get", "list", "patch", "update", "watch"], CORE, &["persistentvolumeclaims"]),
        ],
    ),
    role(
        "system:node-proxier",
        &[
            rule(&["list", "watch"], CORE, &["endpoints", "services"]),
            rule(READ, CORE, &["nodes"]),
            rule(EVENT_WRITE, EVENTS, &["events"]),
            rule(&["list", "watch"], &["discovery.k8s.io"], &["endpointslices"]),
            rule(READ, &["networking.k8s.io"], &["servicecidrs"]),
        ],
    ),
    role(
        "system:service-account-issuer-discovery",
        &[get(&[
            "/.well-known/openid-configuration",
            "/.well-known/openid-configuration/",
            "/openid/v1/jwks",
            "/openid/v1/jwks/",
        ])],
    ),
    role(
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        &[rule(&["create"], CERTIFICATES, &["certificatesigningrequests/nodeclient"])],
    ),
    role(
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        &[rule(&["create"], CERTIFICATES, &["certificatesigningrequests/selfnodeclient"])],
    ),
    role(
        "system:certificates.k8s.io:kube-apiserver-client-approver",
        &[approve(&["kubernetes.io/kube-apiserver-client"])],
    ),
    role(
        "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
        &[approve(&["kubernetes.io/kube-apiserver-client-kubelet"])],
    ),
    role("system:certificates.k8s.io:kubelet-serving-approver", &[approve(&["kubernetes.io/kubelet-serving"])]),
    role("system:certificates.k8s.io:legacy-unknown-approver", &[approve(&["kubernetes.io/legacy-unknown"])]),
];

const fn approve(signer: &'static [&'static str]) -> RuleSpec {
    named(rule(&["approve"], CERTIFICATES, &["signers"]), signer)
}

const fn bind(name: &'static str, subjects: &'static [SubjectSpec]) -> BindingSpec {
    BindingSpec { name, role: name, subjects }
}

pub const CLUSTER_ROLE_BINDINGS: &[BindingSpec] = &[
    bind("cluster-admin", &[SubjectSpec::Group("system:masters")]),
    bind("system:monitoring", &[SubjectSpec::Group("system:monitoring")]),
    bind("system:discovery", &[AUTHENTICATED]),
    bind("system:basic-user", &[AUTHENTICATED]),
    bind("system:public-info-viewer", &[AUTHENTICATED, SubjectSpec::Group("system:unauthenticated")]),
    bind("system:node-proxier", &[SubjectSpec::User("system:kube-proxy")]),
    bind("system:kube-controller-manager", &[SubjectSpec::User("system:kube-controller-manager")]),
    bind("system:kube-scheduler", &[SubjectSpec::User("system:kube-scheduler")]),
    bind("system:volume-scheduler", &[SubjectSpec::User("system:kube-scheduler")]),
    bind("system:service-account-issuer-discovery", &[SubjectSpec::Group("system:serviceaccounts")]),
    // Machines that join with a bootstrap token ask for their certificate.
    BindingSpec {
        name: "mainstay:node-bootstrapper",
        role: "system:node-bootstrapper",
        subjects: &[SubjectSpec::Group("system:bootstrappers")],
    },
];

pub const NAMESPACED_ROLES: &[NamespacedRoleSpec] = &[
    NamespacedRoleSpec {
        namespace: "kube-system",
        name: "extension-apiserver-authentication-reader",
        rules: &[named(rule(READ, CORE, &["configmaps"]), &["extension-apiserver-authentication"])],
        subjects: &[SubjectSpec::User("system:kube-controller-manager"), SubjectSpec::User("system:kube-scheduler")],
    },
    NamespacedRoleSpec {
        namespace: "kube-system",
        name: "system::leader-locking-kube-scheduler",
        rules: &[
            rule(&["watch"], CORE, &["configmaps"]),
            named(rule(&["get", "update"], CORE, &["configmaps"]), &["kube-scheduler"]),
        ],
        subjects: &[SubjectSpec::User("system:kube-scheduler")],
    },
    NamespacedRoleSpec {
        namespace: "kube-system",
        name: "system::leader-locking-kube-controller-manager",
        rules: &[
            rule(&["watch"], CORE, &["configmaps"]),
            named(rule(&["get", "update"], CORE, &["configmaps"]), &["kube-controller-manager"]),
        ],
        subjects: &[SubjectSpec::User("system:kube-controller-manager")],
    },
];
