//! Machines are accounted for, and Releases move them; the tests play the machines.

use std::time::Duration;

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use mainstay_api::{
    machine::{Machine, MachineSpec, NEVER_SEEN, NOT_EXPECTED, REPROVISION_TAINT},
    node_loss::Timing,
    release::{OVERLAPS, Release},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

const TIME: &str = "2026-01-01T00:00:00Z";

/// Nobody renews the Leases of these nodes.
fn patient() -> Timing {
    Timing { unknown_after: Duration::from_secs(3600), ..Timing::default() }
}

impl Cluster {
    fn machine_objects(&self) -> Api<Machine> {
        Api::all(self.client.clone())
    }

    fn releases(&self) -> Api<Release> {
        Api::all(self.client.clone())
    }

    async fn until_machine(&self, name: &str, what: &str, is_so: impl Fn(&Machine) -> bool) -> Machine {
        let look = async || self.machine_objects().get_opt(name).await.unwrap().filter(|machine| is_so(machine));
        until(&format!("machine {name} {what}"), look).await
    }

    async fn report(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.machine_objects().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A machine does as it was asked, or fails to.
    async fn obey(&self, name: &str, version: &str, validated: &str) {
        let running = (validated == "success").then_some(version);
        self.report(
            name,
            json!({
                "validated": {"state": validated, "since": TIME, "message": "check disk: exit code 1"},
                "version": {"wanted": version, "running": running, "runningSince": TIME},
            }),
        )
        .await;
    }

    async fn release(&self, name: &str, phase: &str) -> Release {
        let is_at = |release: &Release| {
            let status = release.status.as_ref();
            status.is_some_and(|own| own.phase == phase && own.observed_generation == release.metadata.generation)
        };
        let look = async || self.releases().get_opt(name).await.unwrap().filter(is_at);
        until(&format!("release {name} is {phase}"), look).await
    }

    async fn create_release(&self, name: &str, spec: Value) {
        let release = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.releases().create(&PostParams::default(), &release).await.unwrap();
    }

    async fn change_release(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.releases().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

fn asked(machine: &Machine) -> Option<&str> {
    machine.spec.version.as_deref()
}

#[tokio::test]
pub async fn machines_of_nodes_are_accounted_for_and_those_to_be_provisioned_anew_get_no_pods() {
    let cluster = Cluster::start_with(patient()).await;
    cluster.node("a", "1").await;
    cluster
        .until_machine("a", "is seen and accounted for", |own| own.status.is_some() && own.unaccounted().is_none())
        .await;
    let expected = Machine::new("b", MachineSpec { expected: true, ..MachineSpec::default() });
    cluster.machine_objects().create(&PostParams::default(), &expected).await.unwrap();
    cluster.until_machine("b", "was never seen", |own| own.unaccounted() == Some(NEVER_SEEN)).await;
    cluster.until_machine("a", "is one too many", |own| own.unaccounted() == Some(NOT_EXPECTED)).await;
    cluster.node("b", "1").await;
    let seen = cluster.until_machine("b", "is seen", |own| own.unaccounted().is_none()).await.status.unwrap().seen;
    assert_eq!(seen.unwrap().message, "", "that it has never joined is no longer true");
    let labels = Patch::Merge(json!({"metadata": {"labels": {"wave": "canary"}}}));
    cluster.nodes().patch("b", &PatchParams::default(), &labels).await.unwrap();
    cluster
        .until_machine("b", "has the labels of its Node", |own| {
            own.metadata.labels.as_ref().is_some_and(|own| own.get("wave").is_some_and(|wave| wave == "canary"))
        })
        .await;
    // What people call a machine stays, whatever its Node says.
    let own = Patch::Merge(json!({"metadata": {"labels": {"wave": "last"}}}));
    cluster.machine_objects().patch("b", &PatchParams::default(), &own).await.unwrap();
    let labels = Patch::Merge(json!({"metadata": {"labels": {"wave": "first", "rack": "7"}}}));
    cluster.nodes().patch("b", &PatchParams::default(), &labels).await.unwrap();
    let rack = |own: &Machine| own.metadata.labels.as_ref().and_then(|labels| labels.get("rack").cloned());
    let named = cluster.until_machine("b", "has the other label of its Node", |own| rack(own).is_some()).await;
    assert_eq!(named.metadata.labels.unwrap()["wave"], "last");
    let labels = Patch::Merge(json!({"metadata": {"labels": {"rack": null}}}));
    cluster.nodes().patch("b", &PatchParams::default(), &labels).await.unwrap();
    cluster.until_machine("b", "has it no longer", |own| rack(own).is_none()).await;

    let tainted = async |wanted: bool| {
        until("the taint follows", async || {
            let taints = cluster.nodes().get("a").await.unwrap().spec.unwrap_or_default().taints.unwrap_or_default();
            taints.iter().any(|taint| taint.key == REPROVISION_TAINT && taint.effect == "NoSchedule") == wanted
        })
        .await;
    };
    cluster.report("a", json!({"provisioned": {"state": "failed", "since": TIME}})).await;
    tainted(true).await;
    cluster.report("a", json!({"provisioned": {"state": "success", "since": TIME}})).await;
    tainted(false).await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_release_moves_machines_in_waves_halts_and_goes_on() {
    let cluster = Cluster::start_with(patient()).await;
    for name in ["a", "b", "c"] {
        cluster.node(name, "1").await;
        cluster
            .until_machine(name, "is seen", |own| own.status.as_ref().is_some_and(|status| status.seen.is_some()))
            .await;
        cluster
            .report(name, json!({"version": {"running": "v1"}, "validated": {"state": "success", "since": TIME}}))
            .await;
    }
    let waves = json!([{"machines": ["b"]}, {"upTo": "100%", "gates": [{"approval": true}]}]);
    cluster.create_release("all", json!({"version": "v2", "selector": {}, "waves": waves})).await;
    cluster.until_machine("b", "is asked first", |own| asked(own) == Some("v2")).await;
    cluster.obey("b", "v2", "success").await;
    let gated = cluster.release("all", "Gated").await;
    assert!(gated.status.unwrap().message.contains("nobody has approved it"));
    cluster.change_release("all", json!({"approval": {"version": "v2", "wave": 1}})).await;
    cluster.until_machine("a", "is asked next", |own| asked(own) == Some("v2")).await;
    cluster.obey("a", "v2", "failed").await;
    let stuck = cluster.release("all", "Stuck").await;
    assert_eq!(stuck.status.unwrap().failures[0].machine, "a");
    assert_eq!(asked(&cluster.machine_objects().get("c").await.unwrap()), None, "nothing more is started");

    // Another Release may not have the same machines.
    cluster.create_release("other", json!({"version": "v9", "selector": {}})).await;
    let refused = cluster.release("other", "Refused").await;
    let status = refused.status.unwrap();
    assert!(status.conditions.iter().any(|own| own.reason == OVERLAPS), "{:?}", status.conditions);
    assert!(status.message.contains("the Release \"all\""), "{}", status.message);
    cluster.releases().delete("other", &DeleteParams::default()).await.unwrap();

    cluster.obey("a", "v2", "success").await;
    cluster.until_machine("c", "is asked last", |own| asked(own) == Some("v2")).await;
    cluster.obey("c", "v2", "success").await;
    cluster.release("all", "Complete").await;

    // A newer version fails at the first machine and is rolled back.
    cluster.change_release("all", json!({"version": "v3", "onStuck": "Rollback"})).await;
    cluster.until_machine("b", "is asked for v3", |own| asked(own) == Some("v3")).await;
    cluster.obey("b", "v3", "failed").await;
    cluster.until_machine("b", "is asked to go back", |own| asked(own) == Some("v2")).await;
    cluster.obey("b", "v2", "success").await;
    let back = cluster.release("all", "RolledBack").await;
    let history: Vec<String> =
        back.status.unwrap().history.iter().map(|own| format!("{} {}", own.version, own.result)).collect();
    assert_eq!(history, ["v2 Complete", "v3 RolledBack"]);
    cluster.create_release("nobody", json!({"version": "v1", "selector": {"matchLabels": {"no": "one"}}})).await;
    assert!(cluster.release("nobody", "Refused").await.status.unwrap().message.contains("no Machine has the labels"));
    cluster.stop().await;
}

#[tokio::test]
pub async fn of_two_releases_of_one_second_the_later_one_is_refused_whatever_its_name() {
    let cluster = Cluster::start_with(patient()).await;
    cluster.node("m", "1").await;
    cluster.until_machine("m", "is seen", |own| own.status.as_ref().is_some_and(|own| own.seen.is_some())).await;
    let spec = json!({"version": "v2", "selector": {}});
    // Names fall, so that the last one would come first by name.
    for (round, names) in [["d", "c"], ["b", "a"]].into_iter().enumerate() {
        for name in names {
            cluster.create_release(name, spec.clone()).await;
        }
        let older = if round == 0 { names[0] } else { "d" };
        let refused = if round == 0 { &names[1..] } else { &names[..] };
        for name in refused {
            let status = cluster.release(name, "Refused").await.status.unwrap();
            assert!(status.message.contains(&format!("the Release {older:?}")), "{name}: {}", status.message);
        }
    }
    let machine = cluster.until_machine("m", "is asked", |own| asked(own).is_some()).await;
    assert_eq!(machine.spec.release.as_deref(), Some("d"));
    cluster.stop().await;
}
