//! An ssh configuration for servers: the first with a floating IP is the bastion, through which the others are reached.

use std::fmt::Write as _;

use super::plan::ListedServer;

/// In the order of names; servers without any address are left out.
pub fn ssh_config(servers: &[ListedServer], user: Option<&str>) -> String {
    let mut servers: Vec<&ListedServer> = servers.iter().collect();
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    let bastion = servers.iter().find(|server| !server.floating.is_empty()).map(|server| server.name.as_str());
    let mut text = String::new();
    for server in &servers {
        let Some(address) = server.floating.first().or(server.fixed.first()) else { continue };
        let _ = writeln!(text, "Host {}\n    HostName {address}", server.name);
        if let Some(user) = user {
            let _ = writeln!(text, "    User {user}");
        }
        if let (true, Some(bastion)) = (server.floating.is_empty(), bastion) {
            let _ = writeln!(text, "    ProxyJump {bastion}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_server_with_a_floating_ip_is_the_bastion() {
        let server = |name: &str, fixed: &str, floating: &[&str]| ListedServer {
            name: name.to_owned(),
            fixed: vec![fixed.to_owned()],
            floating: floating.iter().map(|address| (*address).to_owned()).collect(),
            ..ListedServer::default()
        };
        let servers = [
            server("ct1", "10.0.0.3", &[]),
            server("cp2", "10.0.0.2", &["203.0.113.2"]),
            server("cp1", "10.0.0.1", &["203.0.113.1"]),
            ListedServer { name: "none".to_owned(), ..ListedServer::default() },
        ];
        let expected = "Host cp1\n    HostName 203.0.113.1\n    User core\nHost cp2\n    HostName 203.0.113.2\n    User core\n\
                        Host ct1\n    HostName 10.0.0.3\n    User core\n    ProxyJump cp1\n";
        assert_eq!(ssh_config(&servers, Some("core")), expected);
        assert_eq!(ssh_config(&servers[..1], None), "Host ct1\n    HostName 10.0.0.3\n", "nobody is a bastion");
    }
}
