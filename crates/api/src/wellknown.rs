//! Well-known names: labels, annotations, taints, conditions, finalizers and namespaces that several parts must spell alike.
//!
//! A name that only one file uses stays in that file.

/// Labels and annotations of Kubernetes.
pub mod kubernetes {
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    pub const ARCH: &str = "kubernetes.io/arch";
    pub const OS: &str = "kubernetes.io/os";
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    pub const REGION: &str = "topology.kubernetes.io/region";
    pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
    /// On an EndpointSlice: its Service.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// On a pod that stands for a static pod of a node.
    pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
    /// On a pod inside an agent: where it was learnt of.
    pub const POD_SOURCE: &str = "kubernetes.io/config.source";
    pub const DEFAULT_STORAGE_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    /// The storage class of a claim, before it was a field.
    pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
    /// And the name of the container whose AppArmor profile it is.
    pub const APPARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    /// On a Service, EndpointSlice or Endpoints: the Service has no address of its own.
    pub const HEADLESS_SERVICE: &str = "service.kubernetes.io/headless";
    pub const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
    /// The PriorityClasses that every cluster has: name, value and what they are for.
    pub const SYSTEM_PRIORITY_CLASSES: [(&str, i32, &str); 2] = [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ];

    /// The value of such a class, whether the object is there or not.
    pub fn system_priority(class: &str) -> Option<i32> {
        SYSTEM_PRIORITY_CLASSES.iter().find(|(name, _, _)| *name == class).map(|(_, value, _)| *value)
    }
}

/// Taints that the control plane puts on nodes.
pub mod taint {
    /// Of all taints of Kubernetes below.
    pub const PREFIX: &str = "node.kubernetes.io/";
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
    pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
    pub const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
    pub const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
    pub const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
    /// The administrator's word that the machine is off.
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// Pods of several owners keep failing on the node.
    pub const SUSPECT: &str = "mainstay.dev/suspect";
}

pub mod finalizer {
    pub const PV_PROTECTION: &str = "kubernetes.io/pv-protection";
    pub const PVC_PROTECTION: &str = "kubernetes.io/pvc-protection";
    pub const VAC_PROTECTION: &str = "kubernetes.io/vac-protection";
    /// On a ResourceClaim: devices are allocated to it.
    pub const RESOURCE_CLAIM_PROTECTION: &str = "resource.kubernetes.io/delete-protection";
}

/// Signers of certificate requests.
pub mod signer {
    pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
    pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
    pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
}

pub mod namespace {
    /// Leases in it are the heartbeats of nodes.
    pub const NODE_LEASES: &str = "kube-node-lease";
    pub const SYSTEM: &str = "kube-system";
    pub const DEFAULT: &str = "default";
    /// Everybody may read it.
    pub const PUBLIC: &str = "kube-public";
}

/// The ConfigMap in which servers record the settings that all of a cluster must share, as kubeadm's `kubeadm-config`.
/// Every node may read it.
pub mod cluster_config {
    pub const NAMESPACE: &str = super::namespace::SYSTEM;
    pub const NAME: &str = "mainstay-config";
}

/// Reason of a pod's condition `Ready` that the server sets when it no longer hears the pod's node.
pub const NODE_NOT_READY: &str = "NodeNotReady";

/// The ConfigMap of every namespace with the authority that the server's certificate is signed by.
pub const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";

/// The Service of the API itself, in the namespace [`namespace::DEFAULT`].
pub const API_SERVICE: &str = "kubernetes";

/// The ServiceAccount of pods that name none; every namespace has it.
pub const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// The type of Secrets that machines join with.
pub const BOOTSTRAP_TOKEN_SECRET: &str = "bootstrap.kubernetes.io/token";

pub mod user {
    pub const NODE_PREFIX: &str = "system:node:";
    pub const NODES_GROUP: &str = "system:nodes";
    pub const MASTERS_GROUP: &str = "system:masters";
}

/// How the API begins its refusal of a Node for which there are no pod addresses.
pub const NO_POD_RANGE: &str = "no range of pod addresses is free";

/// Names of Mainstay itself, and those of Kubernetes on Mesos that it honours.
pub mod mainstay {
    pub const API_VERSION: &str = "mainstay.dev/v1";
    /// Condition of a pod that is being deleted: no node sends connections to it any more.
    pub const DRAINED_CONDITION: &str = "mainstay.dev/Drained";
    /// On a Node: how its pods are reached, where that is not by addresses of their own.
    pub const ENDPOINTS: &str = "mainstay.dev/endpoints";
    /// The value of [`ENDPOINTS`] for nodes whose pods are reached at ports of the node.
    pub const ENDPOINTS_HOST_PORT: &str = "host-port";
    /// On a StatefulSet, `"true"`: pods that are outdated and not ready are replaced without waiting for them.
    pub const REPLACE_UNREADY: &str = "mainstay.dev/replace-unready";
    /// On a pod of a ReplicaSet, a time: until then the pod is about to be evicted, and its replacement is made before.
    pub const REPLACE_FIRST: &str = "mainstay.dev/replace-first";
    /// On a node's Lease: the `resourceVersion` of the node's Offer that this heartbeat renews.
    pub const RENEWED_OFFER: &str = "mainstay.dev/renewed-offer";
    /// On a node's Lease: which agent renews it, by host, data directory and boot.
    pub const AGENT: &str = "mainstay.dev/agent";
    /// On the Secret of a bootstrap token: how many machines may still join with it.
    pub const USES_LEFT: &str = "mainstay.dev/uses-left";
    /// On a pod, `"true"`: it moves when the pod that its required affinity ties it to has moved.
    pub const FOLLOW: &str = "mainstay.dev/follow";
    /// On a pod: nodes that gave it back.
    pub const REFUSED_BY: &str = "mainstay.dev/refused-by";
    /// On a Machine: the labels that it was given since its Node has them.
    pub const NODE_LABELS: &str = "mainstay.dev/node-labels";
    /// On a workload: which version of which Release it was brought to, and how far it is.
    pub const RELEASE_MARK: &str = "mainstay.dev/release";
    /// On a workload: the templates that it had before.
    pub const RELEASE_TEMPLATES: &str = "mainstay.dev/release-templates";
    /// Provisioner of volumes that are directories of a node; also the finalizer that makes the node remove them.
    pub const LOCAL_PATH: &str = "mainstay.dev/local-path";
    pub const VOLUMES: &str = "mainstay.dev/volumes";
    /// Prefix of annotations that say which host port was given to a container port: `…port_TCP_80: "31000"`.
    pub const ASSIGNED_HOST_PORT: &str = "k8s.mesosphere.io/port_";
    /// The same by the name of the container port: `…portName_TCP_http: "31000"`.
    pub const ASSIGNED_HOST_PORT_BY_NAME: &str = "k8s.mesosphere.io/portName_";
    /// On a pod: the roles that it may use of machines, in the order of its preference: `batch,*`.
    pub const ROLES: &str = "mainstay.dev/roles";
    /// The same, by the name that Kubernetes on Mesos gave it.
    pub const MESOS_ROLES: &str = "k8s.mesosphere.io/roles";
    /// On a bound pod: how much of the pool of each role it takes.
    pub const ROLE_RESOURCES: &str = "mainstay.dev/role-resources";
}
