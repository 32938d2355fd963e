//! An API that another server serves, registered by an APIService, as kubectl sees it.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    harness::{Kubectl, tool},
    with_each_kubectl,
};

/// The extension server in a process of its own; ends with the test.
struct Extension {
    process: Child,
    port: u16,
    certificate: String,
}

impl Extension {
    fn start(k: &Kubectl) -> Self {
        let dir = k.cluster.home();
        let issued = rcgen::generate_simple_self_signed(vec!["shop.default.svc".to_owned()]).expect("a certificate");
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).expect("write a file");
            path
        };
        let certificate = issued.cert.pem();
        let trusted = k.value(
            "configmap extension-apiserver-authentication -n kube-system",
            r"{.data.requestheader-client-ca-file}",
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/extension_server.py");
        let mut process = Command::new(tool("venv/bin/python"))
            .arg(script)
            .arg(write("shop.crt", &certificate))
            .arg(write("shop.key", &issued.signing_key.serialize_pem()))
            .arg(write("front-proxy-ca.crt", &trusted))
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the extension server");
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("its port");
        let port = line.trim().parse().expect("a port");
        Self { process, port, certificate: BASE64_STANDARD.encode(certificate) }
    }

    fn manifest(&self) -> String {
        let Self { port, certificate, .. } = self;
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: shop}}\nspec: {{type: ExternalName, externalName: localhost}}\n---\n\
             apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1.shop.example.com}}\nspec:\n  \
             group: shop.example.com\n  version: v1\n  groupPriorityMinimum: 2000\n  versionPriority: 15\n  \
             caBundle: {certificate}\n  service: {{namespace: default, name: shop, port: {port}}}\n"
        )
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const ORDER: &str = "apiVersion: shop.example.com/v1\nkind: Order\nmetadata: {name: books}\nspec: {amount: 3}\n";

fn an_api_of_another_server_is_used_like_any_other(k: &Kubectl) {
    let extension = Extension::start(k);
    k.apply(&extension.manifest());
    k.ok("wait --for=condition=Available --timeout=60s apiservice/v1.shop.example.com");
    let listed = k.ok("get apiservice v1.shop.example.com v1.apps");
    assert!(listed.contains("default/shop") && listed.contains("Local"), "{listed}");

    let resources = k.ok("api-resources --api-group=shop.example.com");
    assert!(resources.contains("orders") && resources.contains("Order"), "{resources}");
    assert_eq!(
        k.run_with("create --validate=false -f -", ORDER).ok().trim_end(),
        "order.shop.example.com/books created"
    );
    assert_eq!(k.value("ord books", "{.spec.amount} {.metadata.annotations.ordered-by}"), "3 mainstay-admin");
    assert!(k.ok("get orders").contains("books"));
    let explained = k.ok("explain orders.spec.amount");
    assert!(explained.contains("How many of them."), "{explained}");
    assert!(k.refused("get orders paper").contains("not found"));

    // What the server says of itself is current; without it, the group is stale and requests are refused.
    k.ok("delete order books");
    assert!(!k.ok("get orders").contains("books"));
    drop(extension);
    k.ok("wait --for=condition=Available=False --timeout=90s apiservice/v1.shop.example.com");
    let shown = k.ok("get apiservice v1.shop.example.com");
    assert!(shown.contains("False (FailedDiscoveryCheck)"), "{shown}");
    let refused = k.run("get --raw /apis/shop.example.com/v1/orders").refused();
    assert!(refused.contains("unable to handle the request") || refused.contains("service unavailable"), "{refused}");
    k.ok("delete apiservice v1.shop.example.com");
    assert!(!k.ok("api-versions").contains("shop.example.com"));
}

with_each_kubectl!(an_api_of_another_server_is_used_like_any_other);
