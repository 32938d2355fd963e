//! Names of the objects that a Kluster's control plane is made of, all in the Kluster's namespace.

/// The Service of its API.
pub fn service_name(kluster: &str) -> String {
    kluster.to_owned()
}

/// The StatefulSet of its servers.
pub fn workload_name(kluster: &str) -> String {
    format!("{kluster}-server")
}

/// Secret with its authorities.
pub fn pki_secret(kluster: &str) -> String {
    format!("{kluster}-pki")
}

/// Secret with the kubeconfig of its administrator, in the key [`KUBECONFIG`].
pub fn kubeconfig_secret(kluster: &str) -> String {
    format!("{kluster}-kubeconfig")
}

/// Secret with the `clouds.yaml` of its user in the cloud.
pub fn cloud_secret(kluster: &str) -> String {
    format!("{kluster}-cloud")
}

/// The key of [`kubeconfig_secret`].
pub const KUBECONFIG: &str = "kubeconfig";
/// The key of [`cloud_secret`].
pub const CLOUDS_YAML: &str = "clouds.yaml";
/// In the Secret of its user: the authorities of the cloud, where the operator's `clouds.yaml` names some.
pub const CLOUD_AUTHORITIES: &str = "cacert.pem";
/// Where the Secret of its user is in the pods of its server.
pub const CLOUD_DIR: &str = "/etc/kluster/cloud";

/// The authorities of the cloud as the pods of its server find them.
pub fn cloud_authorities_path() -> String {
    format!("{CLOUD_DIR}/{CLOUD_AUTHORITIES}")
}
/// The label of everything that belongs to a Kluster.
pub const KLUSTER_LABEL: &str = "mainstay.dev/kluster";
