//! User data of machines, for cloud-init or Ignition: starts `mainstay agent` with a bootstrap token.
//!
//! Both write a file of environment variables that only root reads, and a unit. Labels and taints are set by the agent when the
//! machine first joins, and not again. The document is JSON, which is YAML, so that no value can change its shape. The image has the program; Flatcar, whose `/usr` cannot be
//! written, has it in `/opt/bin`, and can fetch it there from a URL, checked by its hash.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use crate::klusters::ProgramDownload;

/// The most that Nova takes, in base64.
pub const LIMIT: usize = 65_535;

const ENVIRONMENT: &str = "/etc/mainstay/agent.env";
const UNIT: &str = "/etc/systemd/system/mainstay-agent.service";
const UNIT_NAME: &str = "mainstay-agent.service";
/// Flatcar took up this version of the specification in 2022; it is read by Fedora CoreOS as well.
const IGNITION_VERSION: &str = "3.3.0";

/// What reads the user data when a machine boots first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserDataFormat {
    CloudInit,
    Ignition,
}

impl UserDataFormat {
    /// Of an image, by its property `os_distro`, or by its name where it has none.
    pub fn of_image(name: &str, os_distro: &str) -> Self {
        let word = if os_distro.is_empty() { name } else { os_distro }.to_ascii_lowercase();
        let is_ignition = ["flatcar", "coreos", "fedora-coreos", "rhcos"].iter().any(|distro| word.starts_with(distro));
        if is_ignition { Self::Ignition } else { Self::CloudInit }
    }

    /// Where the program is on such a machine.
    fn program(self) -> &'static str {
        match self {
            Self::CloudInit => "/usr/local/bin/mainstay",
            Self::Ignition => "/opt/bin/mainstay",
        }
    }
}

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
    /// Where Ignition fetches the program from; the image has it otherwise.
    pub download: Option<ProgramDownload>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("user data has {length} bytes, {} more than Nova takes: shorten labels and taints of the pool", length - LIMIT)]
pub struct UserDataTooLong {
    pub length: usize,
}

/// The user data, as Nova takes it.
pub fn render(setup: &MachineSetup, format: UserDataFormat) -> Result<String, UserDataTooLong> {
    let text = match format {
        UserDataFormat::CloudInit => format!("#cloud-config\n{}\n", cloud_init(setup)),
        UserDataFormat::Ignition => ignition(setup).to_string(),
    };
    let data = BASE64_STANDARD.encode(text);
    if data.len() > LIMIT { Err(UserDataTooLong { length: data.len() }) } else { Ok(data) }
}

/// The variables of the agent, as a file that systemd reads.
fn environment(setup: &MachineSetup) -> String {
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
    let set = variables.iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, value)| format!("{name}={}\n", quote(value))).collect()
}

fn unit(format: UserDataFormat) -> String {
    let program = format.program();
    format!(
        "[Unit]\nDescription=Mainstay agent\nWants=network-online.target\nAfter=network-online.target\n\n\
         [Service]\nEnvironmentFile={ENVIRONMENT}\nExecStart={program} agent\nRestart=always\nRestartSec=2\n\
         KillMode=process\nDelegate=yes\n\n[Install]\nWantedBy=multi-user.target\n"
    )
}

fn cloud_init(setup: &MachineSetup) -> Value {
    let file = |path: &str, permissions: &str, content: &str| json!({ "path": path, "permissions": permissions, "owner": "root:root", "content": content });
    let mut document = json!({
        "hostname": setup.name,
        "preserve_hostname": false,
        "write_files": [file(ENVIRONMENT, "0600", &environment(setup)), file(UNIT, "0644", &unit(UserDataFormat::CloudInit))],
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", UNIT_NAME]],
    });
    if !setup.ssh_public_key.is_empty() {
        document["ssh_authorized_keys"] = json!([setup.ssh_public_key]);
    }
    document
}

fn ignition(setup: &MachineSetup) -> Value {
    let inline = |text: &str| json!({ "source": format!("data:;base64,{}", BASE64_STANDARD.encode(text)) });
    let file = |path: &str, mode: u32, contents: Value| json!({ "path": path, "mode": mode, "overwrite": true, "contents": contents });
    let mut files = vec![
        file(ENVIRONMENT, 0o600, inline(&environment(setup))),
        file("/etc/hostname", 0o644, inline(&format!("{}\n", setup.name))),
    ];
    if let Some(ProgramDownload { url, sha512 }) = &setup.download {
        let contents = json!({ "source": url, "verification": { "hash": format!("sha512-{sha512}") } });
        files.push(file(UserDataFormat::Ignition.program(), 0o755, contents));
    }
    let unit = json!({ "name": UNIT_NAME, "enabled": true, "contents": unit(UserDataFormat::Ignition) });
    let mut document = json!({
        "ignition": { "version": IGNITION_VERSION },
        "storage": { "files": files },
        "systemd": { "units": [unit] },
    });
    if !setup.ssh_public_key.is_empty() {
        document["passwd"] = json!({ "users": [{ "name": "core", "sshAuthorizedKeys": [setup.ssh_public_key] }] });
    }
    document
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

    fn render(setup: &MachineSetup) -> Result<String, UserDataTooLong> {
        super::render(setup, UserDataFormat::CloudInit)
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
    fn flatcar_gets_ignition_with_the_same_variables_and_fetches_the_program() {
        let hash = "ab".repeat(64);
        let download = ProgramDownload { url: "https://x/mainstay".to_owned(), sha512: hash.clone() };
        let data = super::render(&MachineSetup { download: Some(download), ..setup() }, UserDataFormat::Ignition);
        let document: Value = serde_json::from_slice(&BASE64_STANDARD.decode(data.unwrap()).unwrap()).unwrap();
        assert_eq!(document["ignition"]["version"], IGNITION_VERSION);
        let files = document["storage"]["files"].as_array().unwrap();
        let file = |path: &str| files.iter().find(|file| file["path"] == path).unwrap();
        let text = |path: &str| {
            let source = file(path)["contents"]["source"].as_str().unwrap();
            String::from_utf8(BASE64_STANDARD.decode(source.strip_prefix("data:;base64,").unwrap()).unwrap()).unwrap()
        };
        let same = parse(&render(&setup()).unwrap())["write_files"][0]["content"].clone();
        assert_eq!((text(ENVIRONMENT), &file(ENVIRONMENT)["mode"]), (same.as_str().unwrap().to_owned(), &json!(0o600)));
        assert_eq!(text("/etc/hostname"), "kks-kate-small-ab2cd\n");
        let program = file("/opt/bin/mainstay");
        assert_eq!((&program["contents"]["source"], &program["mode"]), (&json!("https://x/mainstay"), &json!(0o755)));
        assert_eq!(program["contents"]["verification"]["hash"], format!("sha512-{hash}"));
        let unit = &document["systemd"]["units"][0];
        assert!(unit["contents"].as_str().unwrap().contains("ExecStart=/opt/bin/mainstay agent\n"), "{unit}");
        assert_eq!((&unit["name"], &unit["enabled"]), (&json!("mainstay-agent.service"), &json!(true)));
        assert_eq!(document["passwd"]["users"][0]["sshAuthorizedKeys"][0], "ssh-ed25519 AAAA me");
    }

    #[test]
    fn an_image_says_what_reads_its_user_data() {
        use UserDataFormat::{CloudInit, Ignition};
        for (name, os_distro, expected) in [
            ("flatcar-stable-amd64", "", Ignition),
            ("Flatcar 3815.2.0", "", Ignition),
            ("my-image", "flatcar", Ignition),
            ("my-image", "fedora-coreos", Ignition),
            ("debian-12", "", CloudInit),
            ("flatcar-look-alike", "debian", CloudInit),
            ("", "", CloudInit),
        ] {
            assert_eq!(UserDataFormat::of_image(name, os_distro), expected, "{name} {os_distro}");
        }
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
