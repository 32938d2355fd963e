//! A server with a cloud: a Service gets an address there, and `mainstay cloud debris` shows what belongs to nothing.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use mainstay_cloud::openstack::{
    CloudsFile, SecretText, Session, block_storage::NewVolume, identity::NewUser, load_balancer::LoadBalancer,
};
use serde_json::{Value, json};

use crate::harness::{
    Cluster, Kubectl, PATIENCE, Version,
    command::{Output, run},
    eventually,
};

/// A project of its own in the OpenStack that the tests of the cloud share, with a subnet.
pub struct Project {
    pub session: Session,
    pub yaml: String,
    pub network: String,
    subnet: String,
}

fn directory() -> PathBuf {
    std::env::var_os("OPENSTACK_DIR").map_or_else(|| std::env::temp_dir().join("mainstay-openstack"), PathBuf::from)
}

/// The file with its clouds, that of the administrator among them.
pub fn clouds_file() -> PathBuf {
    directory().join("clouds.yaml")
}

impl Project {
    pub async fn create() -> Self {
        let directory = directory();
        let up = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/openstack/up");
        let output = Command::new(up)
            .env("OPENSTACK_DIR", &directory)
            .env("OPENSTACK_PORT_OFFSET", std::env::var("OPENSTACK_PORT_OFFSET").unwrap_or_else(|_| "17000".to_owned()))
            .env("OPENSTACK_OCTAVIA", "1")
            .output()
            .expect("run tools/openstack/up");
        assert!(output.status.success(), "tools/openstack/up: {}", String::from_utf8_lossy(&output.stderr));
        let clouds = CloudsFile::read(Some(&clouds_file())).expect("its clouds");
        let admin = Session::new(clouds.cloud(Some("admin")).unwrap()).unwrap();
        let identity = admin.identity();
        let name = format!("blackbox-{:08x}", fastrand::u32(..));
        let project = identity.create_project(&name, "default").await.expect("create a project");
        let user = NewUser {
            name: name.clone(),
            domain: "default".into(),
            password: SecretText::new("pass-word"),
            description: String::new(),
            default_project: None,
        };
        let user = identity.create_user(&user).await.expect("create a user");
        let roles = identity.list_roles().await.expect("list roles");
        let member = roles.iter().find(|role| role.name == "member").expect("the role member");
        identity.assign_role(&project.id, &user.id, &member.id).await.expect("assign a role");
        let yaml = format!(
            "clouds:\n  test:\n    region_name: RegionOne\n    auth: {{auth_url: \"{}\", username: {name}, password: pass-word, \
             project_name: {name}}}\n",
            admin.auth_url()
        );
        let config = CloudsFile::parse("test", &yaml).unwrap().cloud(None).unwrap();
        let session = Session::new(config).unwrap();
        let network = session.network().create_network("nodes", "").await.expect("create a network");
        let subnet = session.network().create_subnet(&network.id, "nodes", "10.181.0.0/16").await;
        Self { session, yaml, network: network.id, subnet: subnet.expect("create a subnet").id }
    }
}

fn cloud_command(cluster: &Cluster, config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(["cloud", "--data-dir"]).arg(cluster.data_dir()).arg("--cloud-config").arg(config).args(arguments);
    run(command, "mainstay cloud", "", PATIENCE)
}

#[test]
fn a_service_has_an_address_in_the_cloud_and_debris_is_found_and_deleted() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let project = runtime.block_on(Project::create());
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("clouds.yaml");
    std::fs::write(&config, &project.yaml).expect("write clouds.yaml");
    let flags = ["--cloud-config", config.to_str().unwrap(), "--cloud-lb-subnet", project.subnet.as_str()];
    let kubectl = Kubectl::of(Version::V1_32, Cluster::start_with(&flags));

    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": "web"}},
    });
    kubectl.apply(&service.to_string());
    let address = eventually("an address of the Service", || {
        let service = kubectl.json("get service web -o json");
        service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(str::to_owned)
    });
    let balancers = runtime.block_on(project.session.load_balancer().list_load_balancers()).unwrap();
    let [LoadBalancer { vip_address, description: tag, .. }] = &balancers[..] else { panic!("{balancers:?}") };
    assert_eq!(*vip_address, address, "there is no router, and so no floating IP");
    let listed = kubectl.ok("get cloudresources -o name");
    assert!(listed.contains("loadbalancer-"), "{listed}");

    assert_eq!(cloud_command(&kubectl.cluster, &config, &["debris"]).code, 0, "nothing is debris");
    // What a cluster of this id made and forgot, and what somebody else has.
    let forgotten = tag.rsplit_once(':').unwrap().0.to_owned() + ":0000000000000000";
    let volume = |name: &str, tag: &str| NewVolume {
        name: name.into(),
        size: 1,
        metadata: [("mainstay.dev/tag".to_owned(), tag.to_owned())].into(),
        ..NewVolume::default()
    };
    let storage = project.session.block_storage();
    runtime.block_on(storage.create_volume(&volume("forgotten", &forgotten))).unwrap();
    runtime.block_on(storage.create_volume(&volume("foreign", "mainstay:ffffffffffff:0"))).unwrap();
    let debris = cloud_command(&kubectl.cluster, &config, &["debris"]);
    assert_eq!(debris.code, 1, "{debris}");
    assert!(debris.stdout.contains("forgotten") && !debris.stdout.contains("foreign"), "{debris}");
    let json = cloud_command(&kubectl.cluster, &config, &["debris", "--json"]);
    let items: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&items[0]["resource"], &items[0]["bearsCost"]), (&json!("Volume"), &json!(true)), "{items}");
    let deleted = cloud_command(&kubectl.cluster, &config, &["debris", "--delete"]);
    assert_eq!(deleted.code, 0, "{deleted}");
    let left = runtime.block_on(storage.list_volumes()).unwrap();
    assert_eq!(left.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["foreign"]);

    kubectl.ok("delete service web --wait=false");
    eventually("a Service that is gone", || kubectl.run("get service web").code != 0);
    assert_eq!(runtime.block_on(project.session.load_balancer().list_load_balancers()).unwrap(), []);
}

#[test]
fn a_wrong_configuration_of_the_cloud_is_refused_with_its_field() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("clouds.yaml");
    std::fs::write(&config, "clouds: {c: {auth: {auth_url: 'http://127.0.0.1:1', password: hunter2}}}").unwrap();
    let refusal = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory.path().join("data"));
        command.arg("--cloud-config").arg(&config).args(arguments);
        let output = run(command, "mainstay server", "", PATIENCE);
        assert_eq!(output.code, 1, "{output}");
        assert!(!output.stderr.contains("hunter2"), "{output}");
        output.stderr
    };
    assert!(refusal(&[]).contains("clouds.c.auth.username is missing"));
    assert!(refusal(&["--cloud", "d"]).contains("has no cloud \"d\"; it has c"));
    std::fs::remove_file(&config).unwrap();
    assert!(refusal(&[]).contains("clouds.yaml"));
}
