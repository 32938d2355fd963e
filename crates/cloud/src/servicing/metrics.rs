//! Metrics of servicing, by the names that Kubernikus gave them: how many machines are updated or wait for it, and of which versions they are.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use mainstay_controllers::runtime::metrics::Registry;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};

use super::plan::{ServicedNode, ServicingWorld, Update, needs};

/// What machines report is theirs: of each version so many letters are shown, and of each Kluster so many versions.
const LONGEST_VERSION: usize = 64;
const MOST_VERSIONS: usize = 16;
const OTHER: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KlusterLabel {
    kluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabels {
    kluster: String,
    version: String,
}

/// How many machines have which version.
type VersionCounts = BTreeMap<String, i64>;

/// Cheap to clone: all clones count together.
#[derive(Clone, Default)]
pub struct ServicingMetrics {
    updating: Family<KlusterLabel, Gauge>,
    waiting: Family<KlusterLabel, Gauge>,
    kubelets: Family<VersionLabels, Gauge>,
    systems: Family<VersionLabels, Gauge>,
    /// What was shown of a Kluster last, so that it can be taken back.
    shown: Arc<Mutex<HashMap<String, [VersionCounts; 2]>>>,
}

impl ServicingMetrics {
    /// Metrics that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let help = "Machines that are being updated";
        registry.register("kubernikus_servicing_nodes_state_updating", help, own.updating.clone());
        let help = "Machines that wait for an update";
        registry.register("kubernikus_servicing_nodes_state_waiting", help, own.waiting.clone());
        let help = "Machines by the version of their agent";
        registry.register("kubernikus_servicing_nodes_version_kubelet", help, own.kubelets.clone());
        let help = "Machines by their system";
        registry.register("kubernikus_servicing_nodes_version_osimage", help, own.systems.clone());
        own
    }

    pub fn show(&self, kluster: &str, world: &ServicingWorld) {
        let is_updating = |node: &&ServicedNode| node.updating_since().is_some();
        let waits = |node: &&ServicedNode| {
            let has_need = [Update::Replace, Update::Reboot].iter().any(|update| needs(world, node, *update));
            has_need && !is_updating(node)
        };
        let count = |of: usize| i64::try_from(of).unwrap_or(i64::MAX);
        let label = KlusterLabel { kluster: kluster.to_owned() };
        self.updating.get_or_create(&label).set(count(world.nodes.iter().filter(is_updating).count()));
        self.waiting.get_or_create(&label).set(count(world.nodes.iter().filter(waits).count()));
        let versions = [
            count_versions(world.nodes.iter().map(|node| node.kubelet_version.as_str())),
            count_versions(world.nodes.iter().map(|node| node.os_image.as_str())),
        ];
        let mut shown = self.shown.lock();
        let before = shown.insert(kluster.to_owned(), versions.clone()).unwrap_or_default();
        for (family, (before, now)) in [&self.kubelets, &self.systems].into_iter().zip(before.iter().zip(&versions)) {
            before.keys().filter(|version| !now.contains_key(*version)).for_each(|version| {
                family.remove(&version_labels(kluster, version));
            });
            now.iter().for_each(|(version, count)| {
                family.get_or_create(&version_labels(kluster, version)).set(*count);
            });
        }
    }

    /// The Kluster is no more, or is not serviced now.
    pub fn forget(&self, kluster: &str) {
        let label = KlusterLabel { kluster: kluster.to_owned() };
        self.updating.remove(&label);
        self.waiting.remove(&label);
        let shown = self.shown.lock().remove(kluster).unwrap_or_default();
        for (family, versions) in [&self.kubelets, &self.systems].into_iter().zip(&shown) {
            versions.keys().for_each(|version| _ = family.remove(&version_labels(kluster, version)));
        }
    }
}

fn version_labels(kluster: &str, version: &str) -> VersionLabels {
    VersionLabels { kluster: kluster.to_owned(), version: version.to_owned() }
}

fn count_versions<'a>(versions: impl Iterator<Item = &'a str>) -> VersionCounts {
    let mut counts = BTreeMap::new();
    for version in versions {
        let mut version: String = version.chars().filter(|each| !each.is_control()).take(LONGEST_VERSION).collect();
        if !counts.contains_key(&version) && counts.len() >= MOST_VERSIONS {
            OTHER.clone_into(&mut version);
        }
        *counts.entry(version).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use mainstay_api::cloud::kluster::KlusterPhase;

    use super::*;

    fn world(kubelets: &[&str]) -> ServicingWorld {
        let node = |kubelet: &&str| ServicedNode {
            kubelet_version: (*kubelet).to_owned(),
            os_image: "Debian".to_owned(),
            allow_replace: true,
            ready: true,
            ..ServicedNode::default()
        };
        ServicingWorld {
            phase: KlusterPhase::Running,
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            zone: TimeZone::UTC,
            api_version: "v1.37.0".to_owned(),
            stable_system: None,
            nodes: kubelets.iter().map(node).collect(),
        }
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("a text");
        text
    }

    #[test]
    fn machines_are_counted_by_state_and_version_and_leave_no_series() {
        let mut registry = Registry::default();
        let metrics = ServicingMetrics::register(&mut registry);
        metrics.show("kate", &world(&["v1.36.0", "v1.36.0", "v1.37.0"]));
        let shown = text(&registry);
        for line in [
            "kubernikus_servicing_nodes_state_waiting{kluster=\"kate\"} 2",
            "kubernikus_servicing_nodes_state_updating{kluster=\"kate\"} 0",
            "kubernikus_servicing_nodes_version_kubelet{kluster=\"kate\",version=\"v1.36.0\"} 2",
            "kubernikus_servicing_nodes_version_osimage{kluster=\"kate\",version=\"Debian\"} 3",
        ] {
            assert!(shown.contains(line), "{line} is not in {shown}");
        }
        metrics.show("kate", &world(&["v1.37.0"]));
        assert!(!text(&registry).contains("v1.36.0"));
        metrics.forget("kate");
        assert!(!text(&registry).contains("kate"), "{}", text(&registry));
    }

    #[test]
    fn what_machines_say_makes_no_more_than_so_many_series() {
        let names: Vec<String> = (0..1000).map(|n| format!("v{n}{}", "x".repeat(1000))).collect();
        let counts = count_versions(names.iter().map(String::as_str));
        assert_eq!((counts.len(), counts[OTHER]), (MOST_VERSIONS + 1, 984));
        assert!(counts.keys().all(|version| version.len() <= LONGEST_VERSION));
    }
}
