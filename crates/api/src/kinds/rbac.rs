//! `rbac.authorization.k8s.io/v1`. Names may be anything a path can carry: `system:node`.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

use super::builder::of;
use crate::{
    descriptor::{Descriptor, NameRule},
    table::{generic, rbac},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<ClusterRole>().columns(&generic::NAME_CREATED).named(NameRule::PathSegment),
        of::<ClusterRoleBinding>().columns(&rbac::BINDINGS).named(NameRule::PathSegment),
        of::<Role>().columns(&generic::NAME_CREATED).named(NameRule::PathSegment),
        of::<RoleBinding>().columns(&rbac::BINDINGS).named(NameRule::PathSegment),
    ]
}
