//! What expressions of admission policies and of webhooks' match conditions see.

use std::sync::LazyLock;

use crate::{
    environment::Environment,
    library::authorizer::{AUTHORIZER, RESOURCE_CHECK},
    types::{ObjectType, Type},
};

static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let group_version = |name: &str, last: &'static str| {
        ObjectType::with_fields(name, [("group", Type::STRING), ("version", Type::STRING), (last, Type::STRING)])
    };
    let kind = group_version("kubernetes.GroupVersionKind", "kind");
    let resource = group_version("kubernetes.GroupVersionResource", "resource");
    let user = ObjectType::with_fields(
        "kubernetes.UserInfo",
        [
            ("username", Type::STRING),
            ("uid", Type::STRING),
            ("groups", Type::list(Type::STRING)),
            ("extra", Type::map(Type::STRING, Type::list(Type::STRING))),
        ],
    );
    ObjectType::with_fields(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", Type::STRING),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", Type::STRING),
            ("name", Type::STRING),
            ("namespace", Type::STRING),
            ("operation", Type::STRING),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
});

/// For match conditions of webhooks: `object`, `oldObject`, `request`, `authorizer`.
pub fn webhook_environment() -> Environment {
    Environment::new()
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .variable("request", REQUEST.clone())
        .variable("authorizer", Type::named(AUTHORIZER))
        .variable("authorizer.requestResource", Type::named(RESOURCE_CHECK))
}

/// For admission policies: also `namespaceObject`, and `params` if the policy has parameters. The policy's own variables
/// are added as `variables.NAME`, each for the expressions after it.
pub fn policy_environment(has_params: bool) -> Environment {
    let environment = webhook_environment().variable("namespaceObject", Type::Dyn);
    if has_params { environment.variable("params", Type::Dyn) } else { environment }
}
