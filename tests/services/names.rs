//! Names of Services, as dig asks for them.

use std::collections::BTreeSet;

use serde_json::json;

use super::lab::{Lab, dig, set};
use crate::harness::eventually;

const DNS: &str = "10.96.0.10";

/// What a machine's own DNS says to this.
fn ask(lab: &Lab, machine: &str, question: &str) -> BTreeSet<String> {
    let output = lab.on(machine, &format!("{} +short +time=2 @{DNS} {question}", dig())).ok();
    output.lines().map(str::to_owned).collect()
}

fn only(answer: &str) -> BTreeSet<String> {
    BTreeSet::from([answer.to_owned()])
}

#[test]
fn services_pods_and_machines_have_names_forward_and_back_on_every_machine() {
    let lab = Lab::new(&["a", "b"]);
    let port = json!([{ "name": "sql", "port": 5432, "targetPort": 80 }]);
    lab.start_service("db", json!({ "clusterIP": "None", "ports": port }));
    let address = lab.start_service_with("web", json!({}), json!({ "mainstay.dev/tags": "blue,new" }));
    let mut db = set("StatefulSet", "db", 2, lab.pod("web.py", &["80"]));
    db["spec"]["serviceName"] = "db".into();
    db["spec"]["podManagementPolicy"] = "Parallel".into();
    lab.create(&db);
    lab.start_web("web", 1);
    lab.serves("db", 2);
    let web = lab.value("pod -l app=web", "{.items[0].status.podIP}");
    let pods: BTreeSet<String> =
        ["db-0", "db-1"].map(|pod| lab.value(&format!("pod {pod}"), "{.status.podIP}")).into_iter().collect();
    let first = lab.value("pod db-0", "{.status.podIP}");
    let svc = "default.svc.cluster.local";
    for machine in lab.machines.names() {
        let answers = |question: &str| ask(&lab, machine, question);
        eventually("all pods have names", || (answers(&format!("db.{svc}")) == pods).then_some(()));
        assert_eq!(answers(&format!("db-0.db.{svc}")), only(&first));
        assert_eq!(
            answers(&format!("_sql._tcp.db.{svc} SRV")),
            [0, 1].map(|n| format!("0 50 80 db-{n}.db.{svc}.")).into_iter().collect::<BTreeSet<_>>()
        );
        assert_eq!(answers(&format!("-x {first}")), only(&format!("db-0.db.{svc}.")));
        assert_eq!(answers(&format!("web.{svc}")), only(&address));
        assert_eq!(answers(&format!("-x {address}")), only(&format!("web.{svc}.")));
        assert_eq!(answers(&format!("web.{svc} AAAA")), BTreeSet::new());
        // Names in Consul's style lead to the pods themselves.
        assert_eq!(answers("web.service.consul"), only(&web));
        assert_eq!(answers("blue.web.service.dc1.consul"), only(&web));
        assert_eq!(answers("green.web.service.consul"), BTreeSet::new());
        assert_eq!(answers("db.service.consul"), pods);
        for other in lab.machines.names() {
            assert_eq!(answers(&format!("{other}.node.consul")), only(&lab.machines.address(other)));
        }
        // A set of addresses can be turned into unique names.
        let names: BTreeSet<_> = pods.iter().flat_map(|pod| answers(&format!("-x {pod}"))).collect();
        assert_eq!(names.len(), pods.len(), "{names:?}");
        let status = |question: &str| {
            let output = lab.on(machine, &format!("{} +time=2 @{DNS} {question}", dig())).ok();
            let (_, rest) = output.split_once("status: ").expect("a status");
            rest.split(',').next().unwrap_or_default().to_owned()
        };
        assert_eq!(status(&format!("web_1.{svc}")), "NXDOMAIN");
        assert_eq!(status(&format!("nobody.{svc}")), "NXDOMAIN");
        assert_eq!(status(&format!("web.{svc} TXT")), "NOERROR");
    }

    let refused = lab.try_kubectl("create service clusterip web_1 --tcp=80").refused();
    assert!(refused.contains("metadata.name") && refused.contains("web_1"), "{refused}");
    lab.kubectl("delete pod db-0");
    let renewed = || lab.try_kubectl("get pod db-0 -o jsonpath={.status.podIP}").stdout;
    eventually("a name follows its pod", || {
        let now = ask(&lab, "b", &format!("db-0.db.{svc}"));
        (now == only(&renewed()) && now != only(&first)).then_some(())
    });
}
