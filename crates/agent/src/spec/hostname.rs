//! Host name and domain name of a pod.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{ConfigError, machine::NodeFacts};

/// The kernel holds no longer name.
const LONGEST: usize = 64;
const LABEL: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// What `hostname` says.
    pub hostname: String,
    /// The first label.
    pub short: String,
    /// The whole name in the cluster's domain, for pods with a subdomain.
    pub full: Option<String>,
}

pub fn names(pod: &Pod, cluster_domain: &str, machine: &NodeFacts) -> Result<Names, ConfigError> {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    if spec.host_network.unwrap_or_default() {
        let name = machine.hostname.clone();
        return Ok(Names { hostname: name.clone(), short: name, full: None });
    }
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(name) = given(&spec.hostname_override) {
        return Ok(Names { hostname: name.clone(), short: name, full: None });
    }
    let short = given(&spec.hostname).unwrap_or_else(|| {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let cut = name.get(..LABEL).unwrap_or(&name);
        cut.trim_end_matches(['-', '.']).to_owned()
    });
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let full = given(&spec.subdomain).map(|sub| format!("{short}.{sub}.{namespace}.svc.{cluster_domain}"));
    let hostname = match &full {
        Some(full) if spec.set_hostname_as_fqdn.unwrap_or_default() => {
            if full.len() > LONGEST {
                return Err(ConfigError::Refused(format!(
                    "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long ({LONGEST} \
                     characters is the max, {} characters requested)",
                    full.len()
                )));
            }
            full.clone()
        }
        _ => short.clone(),
    };
    Ok(Names { hostname, short, full })
}
