//! Keys of objects in the store: upstream's layout below `/registry/`.

use std::sync::Arc;

use mainstay_api::{
    descriptor::{Descriptor, Volatile},
    registry::Registry,
};

/// Everything of one kind, or of one kind in one namespace. Ends in a slash.
pub fn prefix(d: &Descriptor, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) if d.namespaced() => format!("/registry/{}/{namespace}/", d.storage),
        _ => format!("/registry/{}/", d.storage),
    }
}

pub fn key(d: &Descriptor, namespace: Option<&str>, name: &str) -> Arc<str> {
    match namespace {
        Some(namespace) if d.namespaced() => format!("/registry/{}/{namespace}/{name}", d.storage).into(),
        _ => format!("/registry/{}/{name}", d.storage).into(),
    }
}

/// The keys that servers renew to say that they run, as addresses of the `kubernetes` Service.
pub const SERVERS: &str = "/mainstay/servers/";

/// The authorities that all servers on one store share.
pub const AUTHORITIES: &str = "/mainstay/authorities";

/// The terms of election Leases.
const LEADER_TERMS: &str = "/mainstay/leaderterms/";

/// The key that changes with every acquisition of an election Lease.
pub fn leader_term(namespace: &str, name: &str) -> Arc<str> {
    format!("{LEADER_TERMS}{namespace}/{name}").into()
}

/// Says which format the keys and values of the store have.
pub const FORMAT: &str = "/mainstay/format";

/// The key that signs tokens of service accounts.
pub const TOKEN_KEY: &str = "/mainstay/service-account-key";

/// Tells a server whether it has the key by which the cluster encrypts.
pub const ENCRYPTION_CHECK: &str = "/mainstay/encryption-check";

/// Keys of our own that are encrypted as Secrets are.
pub const SENSITIVE: [&str; 3] = [AUTHORITIES, TOKEN_KEY, ENCRYPTION_CHECK];

/// Prefixes of all that a store may keep in memory alone: what kinds declare, and that servers run.
pub fn volatile_prefixes(registry: &Registry) -> Vec<Arc<str>> {
    let prefixes = registry.stored().filter_map(|d| match d.volatile {
        Volatile::None => None,
        Volatile::All => Some(prefix(d, None)),
        Volatile::InNamespace(namespace) => Some(prefix(d, Some(namespace))),
    });
    prefixes.chain([SERVERS.to_owned()]).map(Into::into).collect()
}

/// Namespace and name of the object behind a key of this kind.
pub fn names<'k>(d: &Descriptor, key: &'k str) -> (Option<&'k str>, &'k str) {
    let rest = key.strip_prefix("/registry/").and_then(|k| k.strip_prefix(&*d.storage)).unwrap_or(key);
    let rest = rest.strip_prefix('/').unwrap_or(rest);
    if d.namespaced() {
        match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        }
    } else {
        (None, rest)
    }
}

/// Whether a name or namespace of a request can be part of a key.
pub fn is_segment(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_and_servers_renew_is_volatile_and_nothing_else() {
        let prefixes = volatile_prefixes(&Registry::builtin());
        let expected = [
            "/registry/leases/kube-node-lease/",
            "/registry/mainstay.dev/offers/",
            "/registry/mainstay.dev/servicetables/",
            "/mainstay/servers/",
        ];
        assert_eq!(prefixes.iter().map(|prefix| &**prefix).collect::<Vec<_>>(), expected);
    }
}
