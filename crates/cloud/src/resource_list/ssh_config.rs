//! An ssh configuration for servers: the first with a floating IP is the bastion, through which the others are reached.

use std::{fmt::Write as _, net::IpAddr};

use super::plan::ListedServer;

/// In the order of names; servers without any address are left out, and so are those whose name could be more than one host to ssh.
pub fn ssh_config(servers: &[ListedServer], user: Option<&str>) -> String {
    let mut servers: Vec<&ListedServer> = servers.iter().filter(|server| is_host_name(&server.name)).collect();
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    let bastion = servers.iter().find(|server| !server.floating.is_empty()).map(|server| server.name.as_str());
    let mut text = String::new();
    for server in &servers {
        let mut addresses = server.floating.iter().chain(&server.fixed);
        let Some(address) = addresses.find_map(|address| address.parse::<IpAddr>().ok()) else { continue };
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

/// Patterns (`*`), several words and lines are none.
fn is_host_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_writes_options_of_ssh_by_the_name_of_a_server() {
        let server = |name: &str, address: &str| ListedServer {
            name: name.to_owned(),
            fixed: vec![address.to_owned()],
            ..ListedServer::default()
        };
        for name in ["*", "a b", "a\n  ProxyCommand x", "!a", "-oProxyCommand=x", ""] {
            assert_eq!(ssh_config(&[server(name, "10.0.0.3")], None), "", "{name:?}");
        }
        assert_eq!(ssh_config(&[server("a", "10.0.0.3\n  ProxyCommand x")], None), "");
        assert_eq!(ssh_config(&[server("cp1_ci", "10.0.0.3")], None), "Host cp1_ci\n    HostName 10.0.0.3\n");
    }

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
