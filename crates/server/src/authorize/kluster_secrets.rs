//! Secrets of Klusters: the controllers of the cloud may use those that belong to Klusters of the namespace, and no others.
//!
//! Roles cannot say this, since the names follow from Klusters that users create. A Secret belongs to a Kluster if it has its name and one of three endings. A create is
//! allowed in namespaces that have a Kluster: its name is not known when it is judged.

use mainstay_api::wellknown::namespace::SYSTEM;
use mainstay_store::List;

use super::{Attributes, RequestTarget};
use crate::{
    api::Api,
    auth::{User, service_account},
    http::status::ApiResult,
    objects::keys,
};

const ACCOUNT: &str = "cloud-controller";
/// Authorities, kubeconfig of the administrator, and login to the cloud.
const ENDINGS: [&str; 3] = ["-pki", "-kubeconfig", "-cloud"];

pub async fn allows(api: &Api, user: &User, asked: &Attributes<'_>) -> ApiResult<bool> {
    let RequestTarget::Resource(resource) = &asked.target else { return Ok(false) };
    let is_secret = resource.group.is_empty() && resource.resource == "secrets" && resource.subresource.is_none();
    let is_controller = service_account::parse_user(&user.name) == Some((SYSTEM, ACCOUNT));
    let namespace = resource.namespace();
    let Some(klusters) = api.registry.find("mainstay.dev", "v1", "klusters") else { return Ok(false) };
    if !is_secret || !is_controller || !keys::is_segment(namespace) {
        return Ok(false);
    }
    match asked.verb {
        "create" => {
            let prefix = keys::prefix(klusters, Some(namespace));
            let found = api.store.list(List { prefix: &prefix, limit: Some(1), ..List::default() }).await?;
            Ok(!found.entries.is_empty())
        }
        "get" | "patch" | "delete" => {
            let name = ENDINGS.iter().find_map(|ending| resource.name().strip_suffix(ending));
            let Some(name) = name.filter(|name| keys::is_segment(name)) else { return Ok(false) };
            Ok(api.store.get(&keys::key(klusters, Some(namespace), name)).await?.0.is_some())
        }
        _ => Ok(false),
    }
}
