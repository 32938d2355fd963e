//! A pod's `/etc/hosts`.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use super::hostname::Names;

const BASIC: &str = "# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";
const SHARED: &str = "# Kubernetes-managed hosts file (host network).\n";

/// The pod's own names and aliases; on the machine's network, below what the machine itself knows.
pub fn file(pod: &Pod, names: &Names, addresses: &[IpAddr], machine: &str) -> String {
    let spec = pod.spec.as_ref();
    let mut text = if spec.and_then(|spec| spec.host_network).unwrap_or_default() {
        format!("{SHARED}{machine}")
    } else {
        let mut text = BASIC.to_owned();
        for address in addresses {
            match &names.full {
                Some(full) => text += &format!("{address}\t{full}\t{}\n", names.short),
                None => text += &format!("{address}\t{}\n", names.short),
            }
        }
        text
    };
    let aliases: Vec<_> = spec.iter().flat_map(|spec| spec.host_aliases.iter().flatten()).collect();
    if !aliases.is_empty() {
        text += "\n# Entries added by HostAliases.\n";
        for alias in aliases {
            text += &format!("{}\t{}\n", alias.ip, alias.hostnames.as_deref().unwrap_or_default().join("\t"));
        }
    }
    text
}
