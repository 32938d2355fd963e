//! Kubeconfigs of Klusters, which come from Secrets: only what is written in them counts.
//!
//! Whoever may write Secrets of a Kluster's namespace may write its kubeconfig. A kubeconfig can name programs to run (`exec`, `auth-provider`), files to
//! read and send as credentials (`tokenFile`, `client-key`), and proxies. This process runs as root on a server's machine, so anything but an address, an authority, and
//! a certificate or token in the text itself is refused.

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::Serialize;
use serde_json::Value;

const CLUSTER_FIELDS: [&str; 3] = ["server", "certificate-authority-data", "tls-server-name"];
const USER_FIELDS: [&str; 3] = ["client-certificate-data", "client-key-data", "token"];

#[derive(Debug, thiserror::Error)]
pub enum KlusterKubeconfigError {
    #[error(transparent)]
    Unusable(#[from] KubeconfigError),
    #[error("{section}.{field} is not allowed in a Kluster's kubeconfig; it may have {allowed}")]
    FieldNotAllowed { section: &'static str, field: String, allowed: String },
}

/// How to connect to the API that a Kluster's kubeconfig names. Nothing is run, read or sent.
pub async fn client_config(text: &str) -> Result<Config, KlusterKubeconfigError> {
    let kubeconfig = Kubeconfig::from_yaml(text)?;
    for cluster in kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()) {
        refuse_other_fields("clusters.cluster", cluster, &CLUSTER_FIELDS)?;
    }
    for user in kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()) {
        refuse_other_fields("users.user", user, &USER_FIELDS)?;
    }
    Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

/// Fields that are not set do not count, nor do those that are `null`.
fn refuse_other_fields(
    section: &'static str,
    part: &impl Serialize,
    allowed: &[&str],
) -> Result<(), KlusterKubeconfigError> {
    let Ok(Value::Object(fields)) = serde_json::to_value(part) else {
        let field = "*".to_owned(); // it has one that is no field of JSON
        return Err(KlusterKubeconfigError::FieldNotAllowed { section, field, allowed: allowed.join(", ") });
    };
    let other = fields.into_iter().find(|(field, value)| !value.is_null() && !allowed.contains(&field.as_str()));
    match other {
        Some((field, _)) => {
            Err(KlusterKubeconfigError::FieldNotAllowed { section, field, allowed: allowed.join(", ") })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::encode::to_yaml;
    use serde_json::json;

    use super::*;

    fn kubeconfig(cluster: &Value, user: &Value) -> String {
        to_yaml(&json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": user}],
        }))
    }

    #[tokio::test]
    async fn what_is_in_the_text_is_used() {
        let (cluster, user) = (json!({"server": "https://10.0.0.1:6443"}), json!({"token": "t"}));
        let config = client_config(&kubeconfig(&cluster, &user)).await.unwrap();
        assert_eq!(config.cluster_url.to_string(), "https://10.0.0.1:6443/");
    }

    #[tokio::test]
    async fn no_program_is_run_and_no_file_or_stranger_is_asked() {
        let (good_cluster, good_user) = (json!({"server": "https://10.0.0.1"}), json!({"token": "t"}));
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/true"});
        for (field, value) in [
            ("exec", exec),
            ("auth-provider", json!({"name": "gcp", "config": {"cmd-path": "/bin/true"}})),
            ("tokenFile", json!("/etc/shadow")),
            ("client-key", json!("/etc/shadow")),
            ("client-certificate", json!("/etc/shadow")),
            ("as", json!("admin")),
            ("username", json!("u")),
            ("unheard-of", json!("x")),
        ] {
            let error = client_config(&kubeconfig(&good_cluster, &json!({ field: value }))).await.unwrap_err();
            assert!(error.to_string().starts_with(&format!("users.user.{field} is not allowed")), "{error}");
        }
        for (field, value) in [
            ("certificate-authority", json!("/dev/zero")),
            ("proxy-url", json!("http://10.0.0.2")),
            ("insecure-skip-tls-verify", json!(true)),
        ] {
            let mut cluster = good_cluster.clone();
            cluster[field] = value;
            let error = client_config(&kubeconfig(&cluster, &good_user)).await.unwrap_err().to_string();
            assert!(error.starts_with(&format!("clusters.cluster.{field} is not allowed")), "{error}");
        }
    }
}
