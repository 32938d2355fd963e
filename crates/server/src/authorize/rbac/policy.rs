//! Roles and bindings, indexed by the users and groups they are for.
//!
//! A decision looks only at the bindings of the user and of the user's groups, however many there are for others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use serde::Deserialize;

use super::policy_rule::PolicyRule;
use crate::auth::{User, service_account};

const CLUSTER_ROLE: &str = "ClusterRole";

/// A Role of a namespace, or a ClusterRole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoleKey {
    /// Absent for a ClusterRole.
    pub namespace: Option<String>,
    pub name: String,
}

/// As errors name it: `role.rbac.authorization.k8s.io "x" not found`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}.rbac.authorization.k8s.io {:?} not found", if .0.namespace.is_some() { "role" } else { "clusterrole" }, .0.name)]
pub struct RoleNotFound(pub RoleKey);

/// What is read of a stored Role or ClusterRole.
#[derive(Deserialize)]
pub struct RoleObject {
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
}

/// What is read of a stored RoleBinding or ClusterRoleBinding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BindingObject {
    role_ref: RoleRef,
    #[serde(default)]
    subjects: Option<Vec<SubjectObject>>,
}

#[derive(Deserialize)]
struct RoleRef {
    kind: String,
    name: String,
}

#[derive(Deserialize)]
struct SubjectObject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

/// A service account is the user of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject<N> {
    User(N),
    Group(N),
}

impl fmt::Display for Subject<&str> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => match service_account::parse_user(name) {
                Some((namespace, account)) => write!(f, "ServiceAccount \"{account}/{namespace}\""),
                None => write!(f, "User {name:?}"),
            },
            Self::Group(name) => write!(f, "Group {name:?}"),
        }
    }
}

/// Namespace and name of a binding; a ClusterRoleBinding has no namespace.
type BindingKey = (Option<Arc<str>>, Arc<str>);

struct Binding {
    role: RoleKey,
    subjects: Vec<Subject<String>>,
}

impl Binding {
    fn new(namespace: Option<&str>, object: BindingObject) -> Self {
        let in_cluster = object.role_ref.kind == CLUSTER_ROLE;
        let role =
            RoleKey { namespace: namespace.filter(|_| !in_cluster).map(str::to_owned), name: object.role_ref.name };
        let subjects = object.subjects.into_iter().flatten().filter_map(|subject| match &*subject.kind {
            "User" => Some(Subject::User(subject.name)),
            "Group" => Some(Subject::Group(subject.name)),
            "ServiceAccount" => {
                let own = subject.namespace.filter(|namespace| !namespace.is_empty());
                let home = own.or_else(|| namespace.map(str::to_owned))?;
                Some(Subject::User(service_account::user_name(&home, &subject.name)))
            }
            _ => None,
        });
        Self { role, subjects: subjects.collect() }
    }
}

/// The binding by which somebody may do something.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant(String);

impl Grant {
    /// As [`fmt::Display`] shows it.
    pub fn into_text(self) -> String {
        self.0
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Default)]
pub struct Policy {
    roles: HashMap<RoleKey, Arc<[PolicyRule]>>,
    bindings: BTreeMap<BindingKey, Binding>,
    /// Apart from each other, so that names are looked up as they are: this is the way of every request.
    by_user: HashMap<String, BTreeSet<BindingKey>>,
    by_group: HashMap<String, BTreeSet<BindingKey>>,
}

impl Policy {
    pub fn set_role(&mut self, key: RoleKey, object: Option<RoleObject>) {
        match object {
            Some(object) => self.roles.insert(key, object.rules.unwrap_or_default().into()),
            None => self.roles.remove(&key),
        };
    }

    pub fn set_binding(&mut self, namespace: Option<&str>, name: &str, object: Option<BindingObject>) {
        let key: BindingKey = (namespace.map(Into::into), name.into());
        if let Some(old) = self.bindings.remove(&key) {
            for subject in old.subjects {
                let (index, name) = self.index_of(subject);
                if let Some(keys) = index.get_mut(&name) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        index.remove(&name);
                    }
                }
            }
        }
        let Some(object) = object else { return };
        let binding = Binding::new(namespace, object);
        for subject in binding.subjects.clone() {
            let (index, name) = self.index_of(subject);
            index.entry(name).or_default().insert(key.clone());
        }
        self.bindings.insert(key, binding);
    }

    fn index_of(&mut self, subject: Subject<String>) -> (&mut HashMap<String, BTreeSet<BindingKey>>, String) {
        match subject {
            Subject::User(name) => (&mut self.by_user, name),
            Subject::Group(name) => (&mut self.by_group, name),
        }
    }

    pub fn role_rules(&self, role: &RoleKey) -> Result<&Arc<[PolicyRule]>, RoleNotFound> {
        self.roles.get(role).ok_or_else(|| RoleNotFound(role.clone()))
    }

    /// The bindings that hold for a user in a namespace: those of the cluster, then those of the namespace.
    fn bindings_for<'a>(
        &'a self,
        user: &'a User,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = (Subject<&'a str>, &'a BindingKey, &'a Binding)> {
        let of_groups = user.groups.iter().map(|group| (Subject::Group(group.as_str()), self.by_group.get(group)));
        let of_user = (Subject::User(user.name.as_str()), self.by_user.get(&user.name));
        let mut found = Vec::new();
        for (subject, keys) in std::iter::once(of_user).chain(of_groups) {
            for key in keys.into_iter().flatten() {
                let holds = key.0.is_none() || (key.0.as_deref() == namespace);
                if let Some(binding) = self.bindings.get(key).filter(|_| holds) {
                    found.push((subject, key, binding));
                }
            }
        }
        found.sort_by_key(|(_, key, _)| *key);
        found.into_iter()
    }

    /// The first binding whose role has a rule that `allows`; else the roles that bindings name and nobody has.
    pub fn find_grant(
        &self,
        user: &User,
        namespace: Option<&str>,
        allows: impl Fn(&PolicyRule) -> bool,
    ) -> Result<Grant, Vec<RoleNotFound>> {
        let mut not_found = Vec::new();
        for (subject, (bound_in, name), binding) in self.bindings_for(user, namespace) {
            match self.role_rules(&binding.role) {
                Ok(rules) if rules.iter().any(&allows) => {
                    let role = &binding.role;
                    let role_kind = if role.namespace.is_some() { "Role" } else { CLUSTER_ROLE };
                    let by = match bound_in {
                        Some(namespace) => format!("RoleBinding \"{name}/{namespace}\""),
                        None => format!("ClusterRoleBinding {name:?}"),
                    };
                    return Ok(Grant(format!("RBAC: allowed by {by} of {role_kind} {:?} to {subject}", role.name)));
                }
                Ok(_) => {}
                Err(error) if not_found.contains(&error) => {}
                Err(error) => not_found.push(error),
            }
        }
        Err(not_found)
    }

    /// Everything that a user may do in a namespace, or in the cluster, by rules.
    pub fn rules_for(&self, user: &User, namespace: Option<&str>) -> (Vec<PolicyRule>, Vec<RoleNotFound>) {
        let (mut rules, mut not_found) = (Vec::new(), Vec::new());
        for (_, _, binding) in self.bindings_for(user, namespace) {
            match self.role_rules(&binding.role) {
                Ok(found) => rules.extend(found.iter().cloned()),
                Err(error) => not_found.push(error),
            }
        }
        (rules, not_found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn role(policy: &mut Policy, namespace: Option<&str>, name: &str, verb: &str) {
        let key = RoleKey { namespace: namespace.map(str::to_owned), name: name.to_owned() };
        let object = json!({ "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] }] });
        policy.set_role(key, Some(serde_json::from_value(object).unwrap()));
    }

    fn bind(policy: &mut Policy, namespace: Option<&str>, name: &str, kind: &str, role: &str, subjects: Value) {
        let object = json!({ "roleRef": { "kind": kind, "name": role }, "subjects": subjects });
        policy.set_binding(namespace, name, Some(serde_json::from_value(object).unwrap()));
    }

    fn verbs(policy: &Policy, user: &User, namespace: Option<&str>) -> Vec<String> {
        policy.rules_for(user, namespace).0.into_iter().flat_map(|rule| rule.verbs).collect()
    }

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }
    }

    #[test]
    fn a_binding_of_a_namespace_holds_there_and_one_of_the_cluster_everywhere() {
        let mut policy = Policy::default();
        role(&mut policy, Some("shop"), "reader", "get");
        role(&mut policy, None, "lister", "list");
        let ann = json!([{ "kind": "User", "name": "ann" }]);
        bind(&mut policy, Some("shop"), "a", "Role", "reader", ann.clone());
        bind(&mut policy, None, "b", "ClusterRole", "lister", ann.clone());
        bind(&mut policy, Some("bank"), "c", "ClusterRole", "lister", json!([{ "kind": "Group", "name": "devs" }]));
        let ann = user("ann", &[]);
        assert_eq!(verbs(&policy, &ann, Some("shop")), ["list", "get"]);
        assert_eq!(verbs(&policy, &ann, Some("bank")), ["list"]);
        assert_eq!(verbs(&policy, &ann, None), ["list"]);
        assert_eq!(verbs(&policy, &user("bob", &["devs"]), Some("bank")), ["list"]);
        assert!(verbs(&policy, &user("bob", &["devs"]), None).is_empty());
        assert!(verbs(&policy, &user("devs", &["ann"]), None).is_empty(), "a group is no user of that name");
    }

    #[test]
    fn a_service_account_is_of_its_own_namespace_or_of_the_bindings() {
        let mut policy = Policy::default();
        role(&mut policy, None, "lister", "list");
        let accounts = json!([
            { "kind": "ServiceAccount", "name": "bot", "namespace": "tools" }, { "kind": "ServiceAccount", "name": "own" },
        ]);
        bind(&mut policy, Some("shop"), "a", "ClusterRole", "lister", accounts.clone());
        bind(&mut policy, None, "b", "ClusterRole", "lister", json!([{ "kind": "ServiceAccount", "name": "own" }]));
        assert_eq!(verbs(&policy, &user("system:serviceaccount:tools:bot", &[]), Some("shop")), ["list"]);
        assert_eq!(verbs(&policy, &user("system:serviceaccount:shop:own", &[]), Some("shop")), ["list"]);
        assert!(verbs(&policy, &user("system:serviceaccount:shop:bot", &[]), Some("shop")).is_empty());
        assert!(verbs(&policy, &user("system:serviceaccount:shop:own", &[]), None).is_empty());
    }

    #[test]
    fn changed_and_deleted_bindings_give_nothing_any_more() {
        let mut policy = Policy::default();
        role(&mut policy, None, "lister", "list");
        bind(&mut policy, None, "b", "ClusterRole", "lister", json!([{ "kind": "User", "name": "ann" }]));
        bind(&mut policy, None, "b", "ClusterRole", "lister", json!([{ "kind": "User", "name": "bob" }]));
        assert!(verbs(&policy, &user("ann", &[]), None).is_empty());
        assert_eq!(verbs(&policy, &user("bob", &[]), None), ["list"]);
        policy.set_binding(None, "b", None);
        assert!(verbs(&policy, &user("bob", &[]), None).is_empty());
        assert!(policy.by_user.is_empty() && policy.by_group.is_empty() && policy.bindings.is_empty());
    }

    #[test]
    fn a_grant_names_its_binding_and_a_refusal_the_roles_that_are_missing() {
        let mut policy = Policy::default();
        role(&mut policy, Some("shop"), "reader", "get");
        let bot = json!([{ "kind": "ServiceAccount", "name": "bot" }]);
        bind(&mut policy, Some("shop"), "a", "Role", "reader", bot.clone());
        bind(&mut policy, Some("shop"), "b", "Role", "gone", bot.clone());
        bind(&mut policy, Some("shop"), "c", "ClusterRole", "gone", bot);
        let bot = user("system:serviceaccount:shop:bot", &[]);
        let grant = policy.find_grant(&bot, Some("shop"), |rule| rule.verbs == ["get"]).unwrap();
        assert_eq!(
            grant.to_string(),
            r#"RBAC: allowed by RoleBinding "a/shop" of Role "reader" to ServiceAccount "bot/shop""#
        );
        let missing = policy.find_grant(&bot, Some("shop"), |rule| rule.verbs == ["list"]).unwrap_err();
        let missing: Vec<String> = missing.iter().map(RoleNotFound::to_string).collect();
        assert_eq!(
            missing,
            [
                r#"role.rbac.authorization.k8s.io "gone" not found"#,
                r#"clusterrole.rbac.authorization.k8s.io "gone" not found"#,
            ]
        );
    }
}
