//! The control plane of a Kluster as objects here: a Service for its API, and a StatefulSet of one `mainstay server` with a volume for its store.
//!
//! Differs from Kubernikus, where etcd, API server, scheduler and controller manager are pods of their own: here they are one program, so one
//! ready pod is what four were there. All objects are owned by the Kluster, and are applied as a whole: what somebody else changes
//! in them is changed back.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use mainstay_api::cloud::kluster::{Kluster, KlusterSpec};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    names::{CLOUD_DIR, CLOUDS_YAML, KLUSTER_LABEL, cloud_secret, pki_secret, service_name, workload_name},
    settings::{HOST_IMAGE, KlusterSettings},
};

/// More names and addresses for the API's certificate, separated by commas.
pub const EXTRA_NAMES: &str = "kubernikus.cloud.sap/additional-apiserver-sans";
/// On the StatefulSet: what it was made from.
pub const DIGEST: &str = "mainstay.dev/kluster-digest";
const PORT: u16 = 6443;
const DATA_DIR: &str = "/var/lib/kluster";
const AUTHORITIES_DIR: &str = "/etc/kluster/pki";
/// Controllers of the cloud that a Kluster's own server runs. Routes, machines and the rest are looked after from here.
const CLOUD_CONTROLLERS: &str = "load-balancers,nodes,volumes";

/// Owner reference of everything that goes with the Kluster.
pub fn owner_reference(kluster: &Kluster) -> Value {
    json!([{
        "apiVersion": "mainstay.dev/v1", "kind": "Kluster", "name": kluster.name(),
        "uid": kluster.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    }])
}

fn metadata(kluster: &Kluster, name: String) -> Value {
    json!({
        "name": name,
        "namespace": kluster.metadata.namespace,
        "labels": {KLUSTER_LABEL: kluster.name()},
        "ownerReferences": owner_reference(kluster),
    })
}

pub fn secret(kluster: &Kluster, name: String, texts: &[(&str, &str)]) -> Value {
    let encode = |(key, text): &(&str, &str)| ((*key).to_owned(), Value::from(BASE64_STANDARD.encode(text)));
    let data: Map<String, Value> = texts.iter().map(encode).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(kluster, name), "type": "Opaque", "data": data})
}

pub fn service(kluster: &Kluster, settings: &KlusterSettings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(kluster, service_name(kluster.name())),
        "spec": {
            "type": settings.service_type.text(),
            "selector": {KLUSTER_LABEL: kluster.name()},
            "ports": [{"name": "https", "port": api_port(&kluster.spec), "targetPort": PORT, "protocol": "TCP"}],
        },
    })
}

fn api_port(spec: &KlusterSpec) -> i32 {
    spec.advertise_port.unwrap_or(mainstay_api::cloud::kluster::ADVERTISE_PORT)
}

/// Where the API is for everybody, given the address of its Service.
pub fn api_url(kluster: &Kluster, settings: &KlusterSettings, address: &str) -> String {
    let port = api_port(&kluster.spec);
    match &settings.domain {
        Some(domain) => format!("https://{}.{domain}:{port}", kluster.name()),
        None => format!("https://{address}:{port}"),
    }
}

/// The names that the API's certificate has to have.
fn api_names(kluster: &Kluster, settings: &KlusterSettings, address: &str) -> Vec<String> {
    let namespace = kluster.metadata.namespace.as_deref().unwrap_or_default();
    let service = service_name(kluster.name());
    let mut names = vec![
        address.to_owned(),
        kluster.spec.advertise_address.clone(),
        service.clone(),
        format!("{service}.{namespace}"),
        format!("{service}.{namespace}.svc"),
    ];
    names.extend(settings.domain.as_ref().map(|domain| format!("{}.{domain}", kluster.name())));
    let extra = kluster.metadata.annotations.iter().flat_map(|all| all.get(EXTRA_NAMES));
    let is_name = |name: &&str| {
        !name.is_empty() && name.len() <= 253 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:".contains(&b))
    };
    names.extend(extra.flat_map(|list| list.split(',')).map(str::trim).filter(is_name).map(str::to_owned));
    names.retain(|name| !name.is_empty());
    names
}

/// Volumes and load balancers of the Kluster's own objects are made by its own server, as its own user of the cloud.
fn cloud_flags(spec: &KlusterSpec) -> Vec<String> {
    let mut flags = vec![
        "--cloud-config".to_owned(),
        format!("{CLOUD_DIR}/{CLOUDS_YAML}"),
        "--cloud-controllers".to_owned(),
        CLOUD_CONTROLLERS.to_owned(),
        "--cloud-default-storage".to_owned(),
    ];
    let ids = [
        ("--cloud-lb-subnet", &spec.openstack.lb_subnet_id),
        ("--cloud-floating-network", &spec.openstack.lb_floating_network_id),
    ];
    for (flag, id) in ids.into_iter().filter(|(_, id)| !id.is_empty()) {
        flags.extend([flag.to_owned(), id.clone()]);
    }
    flags
}

/// The StatefulSet of the servers, once their Service has an address.
pub fn workload(kluster: &Kluster, settings: &KlusterSettings, image: &str, address: &str) -> Value {
    let spec = &kluster.spec;
    let mut command: Vec<String> = [
        settings.program.as_str(),
        "server",
        "--data-dir",
        DATA_DIR,
        "--listen",
        &format!("0.0.0.0:{PORT}"),
        "--advertise",
        address,
        "--authorities",
        AUTHORITIES_DIR,
        "--service-range",
        &spec.service_cidr,
        "--cluster-domain",
        &spec.dns_domain,
        "--tls-san",
        &api_names(kluster, settings, address).join(","),
    ]
    .map(str::to_owned)
    .into();
    if let Some(range) = spec.cluster_cidr.as_ref().filter(|range| !range.is_empty()) {
        command.extend(["--pod-range".to_owned(), range.clone()]);
    }
    let has_cloud = !spec.no_cloud && settings.service_users.is_some();
    if has_cloud {
        command.extend(cloud_flags(spec));
    }
    let mut mounts = vec![
        json!({"name": "data", "mountPath": DATA_DIR}),
        json!({"name": "pki", "mountPath": AUTHORITIES_DIR, "readOnly": true}),
    ];
    let mut volumes =
        vec![json!({"name": "pki", "secret": {"secretName": pki_secret(kluster.name()), "defaultMode": 0o400}})];
    if has_cloud {
        mounts.push(json!({"name": "cloud", "mountPath": CLOUD_DIR, "readOnly": true}));
        volumes.push(json!({"name": "cloud", "secret": {
            "secretName": cloud_secret(kluster.name()), "defaultMode": 0o400,
        }}));
    }
    let probe = |period: i32, failures: i32| {
        json!({
            "httpGet": {"scheme": "HTTPS", "path": "/readyz", "port": PORT},
            "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
        })
    };
    let pull = if image == HOST_IMAGE { "Never" } else { "IfNotPresent" };
    let container = json!({
        "name": "server",
        "image": image,
        "imagePullPolicy": pull,
        "command": command,
        "ports": [{"name": "https", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "readinessProbe": probe(2, 3),
        "startupProbe": probe(2, 150),
        "volumeMounts": mounts,
    });
    let mut claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    if let Some(class) = &settings.storage_class {
        claim["spec"]["storageClassName"] = json!(class);
    }
    let labels = json!({KLUSTER_LABEL: kluster.name()});
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {
            "containers": [container], "volumes": volumes, "automountServiceAccountToken": false,
            "enableServiceLinks": false, "terminationGracePeriodSeconds": 30,
        },
    });
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(kluster, workload_name(kluster.name())),
        "spec": {
            "replicas": 1, "serviceName": service_name(kluster.name()), "selector": {"matchLabels": labels},
            "template": template, "volumeClaimTemplates": [claim],
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        },
    });
    let digest = digest(&object);
    object["metadata"]["annotations"] = json!({DIGEST: digest});
    object
}

/// Tells whether an object was made from the same text; map keys are in order.
fn digest(object: &Value) -> String {
    let hash = Sha256::digest(object.to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kluster(change: impl FnOnce(&mut Kluster)) -> Kluster {
        let object = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "Kluster",
            "metadata": {"name": "k", "namespace": "ns", "uid": "u"},
            "spec": {
                "name": "k", "clusterCIDR": "100.64.0.0/16", "serviceCIDR": "198.18.128.0/17", "dnsDomain": "cluster.local",
                "advertiseAddress": "1.1.1.1", "openstack": {},
            },
        });
        let mut kluster = serde_json::from_value(object).expect("a Kluster");
        change(&mut kluster);
        kluster
    }

    fn settings() -> KlusterSettings {
        KlusterSettings::of_this_program("1.37.0", "/bin/mainstay")
    }

    #[test]
    fn a_server_gets_the_ranges_and_names_of_its_kluster() {
        let extra = |kluster: &mut Kluster| {
            let annotation = (EXTRA_NAMES.to_owned(), "api.example.com, ../x,10.1.2.3".to_owned());
            kluster.metadata.annotations = Some([annotation].into());
        };
        let object = workload(&kluster(extra), &settings(), "host", "10.96.0.7");
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        let command: Vec<&str> = container["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let value = |flag: &str| command.iter().skip_while(|word| **word != flag).nth(1).copied();
        assert_eq!(command[..2], ["/bin/mainstay", "server"]);
        assert_eq!(value("--pod-range"), Some("100.64.0.0/16"));
        assert_eq!(value("--service-range"), Some("198.18.128.0/17"));
        assert_eq!(value("--advertise"), Some("10.96.0.7"));
        assert_eq!(value("--tls-san"), Some("10.96.0.7,1.1.1.1,k,k.ns,k.ns.svc,api.example.com,10.1.2.3"));
        assert_eq!(container["imagePullPolicy"], "Never");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "u");
    }

    #[test]
    fn a_server_with_a_user_in_the_cloud_makes_its_own_volumes_and_load_balancers() {
        let with_users = KlusterSettings { service_users: Some(Default::default()), ..settings() };
        let flags = |kluster: &Kluster, settings: &KlusterSettings| {
            let object = workload(kluster, settings, "host", "10.96.0.7");
            object["spec"]["template"]["spec"]["containers"][0]["command"].to_string()
        };
        let plain = kluster(|kluster| kluster.spec.openstack.lb_subnet_id = "subnet-1".to_owned());
        let command = flags(&plain, &with_users);
        for words in [
            r#""--cloud-config","/etc/kluster/cloud/clouds.yaml""#,
            r#""--cloud-controllers","load-balancers,nodes,volumes""#,
            r#""--cloud-lb-subnet","subnet-1""#,
        ] {
            assert!(command.contains(words), "{words} is not in {command}");
        }
        assert!(!command.contains("--cloud-floating-network"), "{command}");
        let cloudless = kluster(|kluster| kluster.spec.no_cloud = true);
        assert!(!flags(&cloudless, &with_users).contains("--cloud"));
        assert!(!flags(&plain, &settings()).contains("--cloud"), "without a user of its own it has no login");
    }

    #[test]
    fn the_digest_changes_with_what_the_pods_are_made_of() {
        let digest = |kluster: &Kluster, image: &str| {
            workload(kluster, &settings(), image, "10.96.0.7")["metadata"]["annotations"][DIGEST].clone()
        };
        let plain = kluster(|_| {});
        assert_eq!(digest(&plain, "host"), digest(&plain, "host"));
        assert_ne!(digest(&plain, "host"), digest(&plain, "example.com/mainstay:1"));
        let cloudless = kluster(|kluster| kluster.spec.cluster_cidr = Some(String::new()));
        assert_ne!(digest(&plain, "host"), digest(&cloudless, "host"));
    }

    #[test]
    fn the_api_is_at_its_service_or_below_a_domain() {
        let plain = kluster(|_| {});
        assert_eq!(api_url(&plain, &settings(), "10.96.0.7"), "https://10.96.0.7:6443");
        let settings = KlusterSettings { domain: Some("klusters.example.com".to_owned()), ..settings() };
        assert_eq!(api_url(&plain, &settings, "10.96.0.7"), "https://k.klusters.example.com:6443");
    }
}
