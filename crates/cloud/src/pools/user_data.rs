//! User data of machines: cloud-init that starts `mainstay agent` with a bootstrap token.
//!
//! The image has the program; cloud-init writes a file of environment variables that only root reads, and a unit. Labels and taints are set by the agent when the
//! machine first joins, and not again. The document is JSON, which is YAML, so that no value can change its shape.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Taint;
use serde_json::json;

/// The most that Nova takes, in base64.
pub const LIMIT: usize = 65_535;

const ENVIRONMENT: &str = "/etc/mainstay/agent.env";
const UNIT: &str = "/etc/systemd/system/mainstay-agent.service";
const PROGRAM: &str = "/usr/local/bin/mainstay";

/// What a machine has to know to join.
#[derive(Clone, Default, PartialEq)]
pub struct MachineSetup {
    pub name: String,
    pub server: String,
    pub token: String,
    pub pod_range: String,
    pub service_range: String,
    pub cluster_domain: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub ssh_public_key: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("user data has {length} bytes, {} more than Nova takes: shorten labels and taints of the pool", length - LIMIT)]
pub struct UserDataTooLong {
    pub length: usize,
}

/// The user data, as Nova takes it.
pub fn render(setup: &MachineSetup) -> Result<String, UserDataTooLong> {
    let data = BASE64_STANDARD.encode(render_text(setup));
    if data.len() > LIMIT { Err(UserDataTooLong { length: data.len() }) } else { Ok(data) }
}

fn render_text(setup: &MachineSetup) -> String {
    let labels: Vec<String> = setup.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let taint =
        |taint: &Taint| format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect);
    let taints: Vec<String> = setup.taints.iter().map(taint).collect();
    let variables = [
        ("MAINSTAY_SERVER", setup.server.clone()),
        ("MAINSTAY_TOKEN", setup.token.clone()),
        ("MAINSTAY_NODE_NAME", setup.name.clone()),
        ("MAINSTAY_POD_RANGE", setup.pod_range.clone()),
        ("MAINSTAY_SERVICE_RANGE", setup.service_range.clone()),
        ("MAINSTAY_CLUSTER_DOMAIN", setup.cluster_domain.clone()),
        ("MAINSTAY_NODE_LABEL", labels.join(",")),
        ("MAINSTAY_NODE_TAINT", taints.join(",")),
    ];
    let environment: String = variables
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}\n", quote(value)))
        .collect();
    let unit = format!(
        "[Unit]\nDescription=Mainstay agent\nWants=network-online.target\nAfter=network-online.target\n\n\
         [Service]\nEnvironmentFile={ENVIRONMENT}\nExecStart={PROGRAM} agent\nRestart=always\nRestartSec=2\n\
         KillMode=process\nDelegate=yes\n\n[Install]\nWantedBy=multi-user.target\n"
    );
    let file = |path: &str, permissions: &str, content: &str| json!({ "path": path, "permissions": permissions, "owner": "root:root", "content": content });
    let mut document = json!({
        "hostname": setup.name,
        "preserve_hostname": false,
        "write_files": [file(ENVIRONMENT, "0600", &environment), file(UNIT, "0644", &unit)],
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", "mainstay-agent.service"]],
    });
    if !setup.ssh_public_key.is_empty() {
        document["ssh_authorized_keys"] = json!([setup.ssh_public_key]);
    }
    format!("#cloud-config\n{document}\n")
}

/// A value of an environment file, as systemd reads it.
fn quote(value: &str) -> String {
    let mut quoted = String::from("\"");
    for each in value.chars().filter(|each| !matches!(each, '\n' | '\r' | '\0')) {
        if matches!(each, '"' | '\\' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(each);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn setup() -> MachineSetup {
        MachineSetup {
            name: "kks-kate-small-ab2cd".to_owned(),
            server: "https://kate:6443".to_owned(),
            token: "abcdef.0123456789abcdef.00".to_owned(),
            labels: [("ccloud.sap.com/nodepool".to_owned(), "small".to_owned())].into(),
            taints: vec![Taint {
                key: "gpu".to_owned(),
                value: Some("yes".to_owned()),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            }],
            ssh_public_key: "ssh-ed25519 AAAA me".to_owned(),
            ..MachineSetup::default()
        }
    }

    fn parse(data: &str) -> Value {
        let text = String::from_utf8(BASE64_STANDARD.decode(data).unwrap()).unwrap();
        serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap()
    }

    #[test]
    fn a_machine_gets_token_labels_and_taints_in_a_file_that_only_root_reads() {
        let document = parse(&render(&setup()).unwrap());
        let file = &document["write_files"][0];
        assert_eq!((file["path"].as_str(), file["permissions"].as_str()), (Some(ENVIRONMENT), Some("0600")));
        assert_eq!(
            file["content"].as_str().unwrap(),
            "MAINSTAY_SERVER=\"https://kate:6443\"\nMAINSTAY_TOKEN=\"abcdef.0123456789abcdef.00\"\n\
             MAINSTAY_NODE_NAME=\"kks-kate-small-ab2cd\"\nMAINSTAY_NODE_LABEL=\"ccloud.sap.com/nodepool=small\"\n\
             MAINSTAY_NODE_TAINT=\"gpu=yes:NoSchedule\"\n"
        );
        assert!(
            document["write_files"][1]["content"]
                .as_str()
                .unwrap()
                .contains("ExecStart=/usr/local/bin/mainstay agent\n")
        );
        assert_eq!(document["ssh_authorized_keys"][0], "ssh-ed25519 AAAA me");
    }

    #[test]
    fn no_value_breaks_out_of_its_line() {
        let bad = MachineSetup { server: "x\"\nMAINSTAY_TOKEN=y\\$z".to_owned(), ..setup() };
        let document = parse(&render(&bad).unwrap());
        let content = document["write_files"][0]["content"].as_str().unwrap();
        assert!(content.starts_with("MAINSTAY_SERVER=\"x\\\"MAINSTAY_TOKEN=y\\\\\\$z\"\n"), "{content}");
    }

    #[test]
    fn more_than_nova_takes_is_refused_with_how_much() {
        let labels = (0..2000).map(|at| (format!("example.com/label-{at}"), "x".repeat(40))).collect();
        let error = render(&MachineSetup { labels, ..setup() }).unwrap_err();
        assert!(error.length > LIMIT && error.to_string().contains(&(error.length - LIMIT).to_string()), "{error}");
    }
}
