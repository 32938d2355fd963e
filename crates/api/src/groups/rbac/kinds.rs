//! `rbac.authorization.k8s.io/v1`. Names may be anything a path can carry: `system:node`.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

use super::{
    rules::{ClusterRoleBindingRules, ClusterRoleRules, RoleBindingRules, RoleRules},
    table,
};
use crate::{
    descriptor::{Descriptor, NameRule},
    groups::builder::describe,
    table::generic,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<ClusterRole>()
            .rules::<ClusterRoleRules>()
            .columns(&generic::NAME_CREATED)
            .named(NameRule::PathSegment),
        describe::<ClusterRoleBinding>()
            .rules::<ClusterRoleBindingRules>()
            .columns(&table::BINDINGS)
            .named(NameRule::PathSegment),
        describe::<Role>().rules::<RoleRules>().columns(&generic::NAME_CREATED).named(NameRule::PathSegment),
        describe::<RoleBinding>().rules::<RoleBindingRules>().columns(&table::BINDINGS).named(NameRule::PathSegment),
    ]
}
