//! `rbac.authorization.k8s.io/v1`. Names may be anything a path can carry: `system:node`.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

use super::builder::of;
use crate::descriptor::{Descriptor, NameRule};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<ClusterRole>().named(NameRule::PathSegment),
        of::<ClusterRoleBinding>().named(NameRule::PathSegment),
        of::<Role>().named(NameRule::PathSegment),
        of::<RoleBinding>().named(NameRule::PathSegment),
    ]
}
