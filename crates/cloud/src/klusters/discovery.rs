//! Discovery: finds the ids that a Kluster's spec leaves out, where the project has exactly one thing that can be meant.
//!
//! Router, network and subnet have to be the only ones; the network of floating IPs is the router's external one. Anything else is a
//! configuration error that names the field, and the Kluster stays Pending until somebody says which one is meant.

use mainstay_api::cloud::kluster::{OpenStackSpec, SECURITY_GROUP};

use crate::openstack::{
    CloudError, Session,
    network::{PortFilter, Router},
};

/// What a project has, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProjectNetworks {
    pub project: String,
    pub routers: Vec<RouterView>,
    /// Names of security groups, with repetitions.
    pub security_groups: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterView {
    pub id: String,
    pub external_network: Option<String>,
    /// Networks that it has an interface in.
    pub networks: Vec<NetworkView>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkView {
    pub id: String,
    pub subnets: Vec<String>,
}

/// Why the ids cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    #[error("spec.openstack.{field}: {scope} has no {what}; make one or name one of another")]
    Missing { field: &'static str, what: &'static str, scope: String },
    #[error("spec.openstack.{field}: {scope} has {count} {what}s ({ids}); name one of them")]
    Several { field: &'static str, what: &'static str, scope: String, count: usize, ids: String },
    #[error("spec.openstack.{field}: {scope} has no {what} {id}")]
    Unknown { field: &'static str, what: &'static str, scope: String, id: String },
    #[error(
        "spec.openstack.securityGroupName: project {project} has {count} security groups {name}; their names have to differ"
    )]
    SecurityGroups { project: String, name: String, count: usize },
}

/// The spec with everything that it leaves out.
pub fn complete(spec: &OpenStackSpec, found: &ProjectNetworks) -> Result<OpenStackSpec, ConfigurationError> {
    let mut spec = spec.clone();
    let scope = format!("project {}", found.project);
    if spec.project_id.is_empty() {
        spec.project_id.clone_from(&found.project);
    }
    let routers: Vec<&str> = found.routers.iter().map(|router| router.id.as_str()).collect();
    spec.router_id = choose("routerID", "router", &scope, &spec.router_id, &routers)?;
    let router = found.routers.iter().find(|router| router.id == spec.router_id).cloned().unwrap_or_default();
    let scope = format!("router {}", router.id);
    let networks: Vec<&str> = router.networks.iter().map(|network| network.id.as_str()).collect();
    spec.network_id = choose("networkID", "network", &scope, &spec.network_id, &networks)?;
    let network = router.networks.iter().find(|network| network.id == spec.network_id).cloned().unwrap_or_default();
    let subnets: Vec<&str> = network.subnets.iter().map(String::as_str).collect();
    let scope_of_network = format!("network {}", network.id);
    spec.lb_subnet_id = choose("lbSubnetID", "subnet", &scope_of_network, &spec.lb_subnet_id, &subnets)?;
    if spec.lb_floating_network_id.is_empty() {
        let missing = || ConfigurationError::Missing { field: "lbFloatingNetworkID", what: "external network", scope };
        spec.lb_floating_network_id = router.external_network.ok_or_else(missing)?;
    }
    if spec.security_group_name.is_empty() {
        SECURITY_GROUP.clone_into(&mut spec.security_group_name);
    }
    let name = &spec.security_group_name;
    let count = found.security_groups.iter().filter(|group| *group == name).count();
    if count != 1 {
        let project = found.project.clone();
        return Err(ConfigurationError::SecurityGroups { project, name: name.clone(), count });
    }
    Ok(spec)
}

/// The given one, or the only one.
fn choose(
    field: &'static str,
    what: &'static str,
    scope: &str,
    given: &str,
    all: &[&str],
) -> Result<String, ConfigurationError> {
    let scope = scope.to_owned();
    match (given, all) {
        ("", []) => Err(ConfigurationError::Missing { field, what, scope }),
        ("", [only]) => Ok((*only).to_owned()),
        ("", several) => {
            let (count, ids) = (several.len(), several.iter().take(5).copied().collect::<Vec<_>>().join(", "));
            Err(ConfigurationError::Several { field, what, scope, count, ids })
        }
        (id, all) if all.contains(&id) => Ok(id.to_owned()),
        (id, _) => Err(ConfigurationError::Unknown { field, what, scope, id: id.to_owned() }),
    }
}

/// Whether something is left out.
pub fn is_needed(spec: &OpenStackSpec) -> bool {
    let fields = [
        &spec.project_id,
        &spec.router_id,
        &spec.network_id,
        &spec.lb_subnet_id,
        &spec.lb_floating_network_id,
        &spec.security_group_name,
    ];
    fields.into_iter().any(String::is_empty)
}

/// Asks the cloud for what a project has. Any failure is one: absence is never inferred from an error.
pub async fn observe_project(session: &Session, project: &str) -> Result<ProjectNetworks, CloudError> {
    let project = match project {
        "" => session.project_id().await?,
        project => project.to_owned(),
    };
    let client = session.network();
    let is_own = |owner: &str| owner.is_empty() || owner == project;
    let routers: Vec<Router> =
        client.list_routers().await?.into_iter().filter(|router| is_own(&router.project_id)).collect();
    let subnets = client.list_subnets(None).await?;
    let mut views = Vec::new();
    for router in routers {
        let filter = PortFilter { device: Some(router.id.clone()), ..PortFilter::default() };
        let ports = client.list_ports(&filter).await?;
        let external = router.external_gateway_info.as_ref().map(|gateway| gateway.network_id.clone());
        let mut networks: Vec<NetworkView> = Vec::new();
        for port in ports.iter().filter(|port| Some(&port.network_id) != external.as_ref()) {
            if networks.iter().all(|network| network.id != port.network_id) {
                let subnets = subnets.iter().filter(|subnet| subnet.network_id == port.network_id);
                let subnets = subnets.map(|subnet| subnet.id.clone()).collect();
                networks.push(NetworkView { id: port.network_id.clone(), subnets });
            }
        }
        networks.sort_by(|a, b| a.id.cmp(&b.id));
        views.push(RouterView { id: router.id, external_network: external, networks });
    }
    views.sort_by(|a, b| a.id.cmp(&b.id));
    let groups = client.list_security_groups(None).await?;
    let groups = groups.into_iter().filter(|group| is_own(&group.project_id)).map(|group| group.name).collect();
    Ok(ProjectNetworks { project, routers: views, security_groups: groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(id: &str, networks: &[(&str, &[&str])]) -> RouterView {
        let network = |(id, subnets): &(&str, &[&str])| NetworkView {
            id: (*id).to_owned(),
            subnets: subnets.iter().map(|subnet| (*subnet).to_owned()).collect(),
        };
        let networks = networks.iter().map(network).collect();
        RouterView { id: id.to_owned(), external_network: Some("ext".to_owned()), networks }
    }

    fn project(routers: Vec<RouterView>) -> ProjectNetworks {
        ProjectNetworks { project: "p".to_owned(), routers, security_groups: vec!["default".to_owned()] }
    }

    #[test]
    fn the_only_ones_are_filled_in() {
        let found = project(vec![router("r", &[("n", &["s"])])]);
        let spec = complete(&OpenStackSpec::default(), &found).expect("one of each");
        let expected = ["p", "r", "n", "s", "ext", "default"];
        let fields = [
            &spec.project_id,
            &spec.router_id,
            &spec.network_id,
            &spec.lb_subnet_id,
            &spec.lb_floating_network_id,
            &spec.security_group_name,
        ];
        assert_eq!(fields.map(String::as_str), expected);
        assert!(is_needed(&OpenStackSpec::default()) && !is_needed(&spec));
        assert_eq!(complete(&spec, &found), Ok(spec.clone()), "what was found is found again");
    }

    #[test]
    fn none_and_several_are_errors_that_name_the_field() {
        let two = project(vec![router("a", &[("n", &["s"])]), router("b", &[("n", &["s"])])]);
        let text = |spec: &OpenStackSpec, found: &ProjectNetworks| complete(spec, found).unwrap_err().to_string();
        let empty = OpenStackSpec::default();
        assert_eq!(text(&empty, &two), "spec.openstack.routerID: project p has 2 routers (a, b); name one of them");
        assert_eq!(
            text(&empty, &project(Vec::new())),
            "spec.openstack.routerID: project p has no router; make one or name one of another"
        );
        let spec = OpenStackSpec { router_id: "b".to_owned(), ..OpenStackSpec::default() };
        assert!(complete(&spec, &two).is_ok());
        let spec = OpenStackSpec { router_id: "c".to_owned(), ..OpenStackSpec::default() };
        assert_eq!(text(&spec, &two), "spec.openstack.routerID: project p has no router c");
        let networks = project(vec![router("r", &[("m", &["s"]), ("n", &["s"])])]);
        assert!(text(&empty, &networks).starts_with("spec.openstack.networkID: router r has 2 networks"));
        let subnets = project(vec![router("r", &[("n", &["s", "t"])])]);
        assert!(text(&empty, &subnets).starts_with("spec.openstack.lbSubnetID: network n has 2 subnets"));
        let mut inner = project(vec![router("r", &[("n", &["s"])])]);
        inner.routers[0].external_network = None;
        assert!(
            text(&empty, &inner).starts_with("spec.openstack.lbFloatingNetworkID: router r has no external network")
        );
        let mut twice = project(vec![router("r", &[("n", &["s"])])]);
        twice.security_groups.push("default".to_owned());
        assert!(text(&empty, &twice).contains("project p has 2 security groups default"), "{}", text(&empty, &twice));
    }
}
