//! Authentication: the user of a request, by client certificate or by a token: of a service account, of a node about to
//! join, from a file, or from an OpenID Connect provider.

pub mod bearer;
pub mod bootstrap_token;
mod certificate;
pub mod impersonate;
pub mod jws;
pub mod oidc;
pub mod secret_token;
pub mod service_account;
pub mod static_token;
pub mod verified_tokens;

use std::collections::BTreeMap;

use mainstay_api::validation::names;

pub const MASTERS: &str = mainstay_api::wellknown::user::MASTERS_GROUP;
pub const NODES: &str = mainstay_api::wellknown::user::NODES_GROUP;
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";
const NODE_PREFIX: &str = mainstay_api::wellknown::user::NODE_PREFIX;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Someone whose name and groups were vouched for.
    pub fn authenticated(name: String, mut groups: Vec<String>) -> Self {
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self { name, groups, ..Self::default() }
    }

    /// The server's own parts, which call the API in the same process.
    pub fn internal(part: &str) -> Self {
        Self::authenticated(format!("system:mainstay:{part}"), vec![MASTERS.to_owned()])
    }

    /// A service account of a namespace, by its name alone.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
        Self::authenticated(service_account::user_name(namespace, name), groups)
    }

    /// The agent of a node.
    pub fn node(name: &str) -> Self {
        Self::authenticated(format!("{NODE_PREFIX}{name}"), vec![NODES.to_owned()])
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    pub fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    /// The node whose agent this is. Members of the group whose name no Node can have are no node's.
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX)?;
        (self.is_in(NODES) && names::dns1123_subdomain(name).is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_name_that_a_node_can_have() {
        assert_eq!(User::node("a-1.example").node_name(), Some("a-1.example"));
        for name in ["", " ", "a ", "A", "..", ".", "a/b", "a%2fb", "-a", &"a".repeat(254)] {
            assert_eq!(User::node(name).node_name(), None, "{name:?}");
        }
        assert_eq!(User::authenticated("system:node:a".to_owned(), vec![]).node_name(), None);
    }
}
