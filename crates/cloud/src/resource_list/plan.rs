//! Decides which servers of a list are missing, and what belongs to a tag. Pure.

use super::list::{Mappings, ResourceList};

/// A server of the project.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedServer {
    pub id: String,
    pub name: String,
    /// `ACTIVE`, `BUILD`…
    pub status: String,
    pub fixed: Vec<String>,
    pub floating: Vec<String>,
}

/// A server to create, in the cloud's names.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingServer {
    pub name: String,
    pub role: String,
    pub flavor: String,
    pub image: String,
    pub networks: Vec<String>,
    pub security_groups: Vec<String>,
    pub assign_floating_ip: bool,
}

/// What an apply does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApplyPlan {
    pub create: Vec<MissingServer>,
    /// Servers that are there and lack the floating IP they should have, by name.
    pub assign: Vec<String>,
}

/// `ROLE` and a number, and the tag if there is one.
pub fn server_name(role: &str, number: u32, tag: Option<&str>) -> String {
    match tag {
        Some(tag) => format!("{role}{number}_{tag}"),
        None => format!("{role}{number}"),
    }
}

pub fn plan_apply(list: &ResourceList, mappings: &Mappings, tag: Option<&str>, servers: &[ListedServer]) -> ApplyPlan {
    let map = |names: &std::collections::BTreeMap<String, String>, name: &str| {
        names.get(name).cloned().unwrap_or_else(|| name.to_owned())
    };
    let mut plan = ApplyPlan::default();
    for (role_name, role) in &list.resources {
        for number in 1..=role.number {
            let name = server_name(role_name, number, tag);
            match servers.iter().find(|server| server.name == name) {
                Some(server) if role.assign_floating_ip && server.floating.is_empty() => plan.assign.push(name),
                Some(_) => {}
                None => plan.create.push(MissingServer {
                    name,
                    role: role_name.clone(),
                    flavor: map(&mappings.flavor, &role.flavor),
                    image: map(&mappings.image, &role.image),
                    networks: role.networks.iter().map(|network| map(&mappings.network, network)).collect(),
                    security_groups: role.security_groups.clone(),
                    assign_floating_ip: role.assign_floating_ip,
                }),
            }
        }
    }
    plan
}

/// Servers whose names end with `_` and the tag.
pub fn servers_with_tag<'a>(servers: &'a [ListedServer], tag: &str) -> Vec<&'a ListedServer> {
    let suffix = format!("_{tag}");
    let mut tagged: Vec<&ListedServer> = servers.iter().filter(|server| server.name.ends_with(&suffix)).collect();
    tagged.sort_by(|a, b| a.name.cmp(&b.name));
    tagged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, floating: &[&str]) -> ListedServer {
        let floating = floating.iter().map(|address| (*address).to_owned()).collect();
        ListedServer { name: name.to_owned(), floating, ..ListedServer::default() }
    }

    fn list() -> ResourceList {
        let text = "resources: {cp: {number: 2, flavor: small, image: trusty, assign_floating_ip: true}, ct: {flavor: small, image: trusty, networks: [net]}}";
        ResourceList::parse("r", text).unwrap()
    }

    #[test]
    fn only_missing_servers_are_created() {
        let mappings = Mappings::parse("m", "image: {trusty: tiny}\nnetwork: {net: n1}").unwrap();
        let names = |tag: Option<&str>, servers: &[ListedServer]| {
            let plan = plan_apply(&list(), &mappings, tag, servers);
            plan.create.into_iter().map(|server| server.name).collect::<Vec<_>>()
        };
        assert_eq!(names(None, &[]), ["cp1", "cp2", "ct1"]);
        assert_eq!(names(Some("ci"), &[server("cp1", &[])]), ["cp1_ci", "cp2_ci", "ct1_ci"], "another tag's");
        let all = ["cp1_ci", "cp2_ci", "ct1_ci"].map(|name| server(name, &["203.0.113.1"]));
        assert_eq!(plan_apply(&list(), &mappings, Some("ci"), &all), ApplyPlan::default(), "the second run");
        let missing = plan_apply(&list(), &mappings, None, &[]).create;
        assert_eq!((missing[2].image.as_str(), missing[2].flavor.as_str()), ("tiny", "small"));
        assert_eq!(missing[2].networks, ["n1"]);
    }

    #[test]
    fn a_server_without_its_floating_ip_gets_it_later() {
        let servers = ["cp1", "cp2", "ct1"].map(|name| server(name, &[]));
        let plan = plan_apply(&list(), &Mappings::default(), None, &servers);
        assert_eq!(plan, ApplyPlan { create: vec![], assign: vec!["cp1".to_owned(), "cp2".to_owned()] });
    }

    #[test]
    fn a_tag_is_a_whole_suffix() {
        let servers = ["cp1_ci", "cp1_xci", "cp1", "cp1_ci2", "ci", "_ci"].map(|name| server(name, &[]));
        let tagged: Vec<&str> = servers_with_tag(&servers, "ci").iter().map(|server| server.name.as_str()).collect();
        assert_eq!(tagged, ["_ci", "cp1_ci"]);
    }
}
