//! `rbac.authorization.k8s.io/v1`. Names may be anything a path can carry: `system:node`.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

use super::builder::of;
use crate::{
    descriptor::{Descriptor, NameRule},
    rules::rbac::{ClusterRoleBindingRules, ClusterRoleRules, RoleBindingRules, RoleRules},
    table::{generic, rbac},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<ClusterRole>().rules::<ClusterRoleRules>().columns(&generic::NAME_CREATED).named(NameRule::PathSegment),
        of::<ClusterRoleBinding>()
            .rules::<ClusterRoleBindingRules>()
            .columns(&rbac::BINDINGS)
            .named(NameRule::PathSegment),
        of::<Role>().rules::<RoleRules>().columns(&generic::NAME_CREATED).named(NameRule::PathSegment),
        of::<RoleBinding>().rules::<RoleBindingRules>().columns(&rbac::BINDINGS).named(NameRule::PathSegment),
    ]
}
