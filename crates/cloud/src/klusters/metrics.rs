//! Metrics of Klusters, under the names that Kubernikus has.

use std::{collections::BTreeSet, sync::Arc};

use mainstay_api::cloud::kluster::{Kluster, KlusterPhase};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

const PHASES: [KlusterPhase; 5] = [
    KlusterPhase::Pending,
    KlusterPhase::Creating,
    KlusterPhase::Running,
    KlusterPhase::Upgrading,
    KlusterPhase::Terminating,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    kluster_id: String,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct InfoLabels {
    kluster_name: String,
    kluster_namespace: String,
    kluster_version: String,
    project_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KlusterLabel {
    kluster: String,
}

#[derive(Clone)]
pub struct KlusterMetrics {
    phases: Family<PhaseLabels, Gauge>,
    info: Family<InfoLabels, Gauge>,
    boot_duration: Histogram,
    migration_errors: Family<KlusterLabel, Counter>,
    /// What was said of a Kluster last, so that it can be taken back.
    known: Arc<Mutex<BTreeSet<(String, InfoLabels)>>>,
}

impl Default for KlusterMetrics {
    fn default() -> Self {
        Self {
            phases: Family::default(),
            info: Family::default(),
            boot_duration: Histogram::new([15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0]),
            migration_errors: Family::default(),
            known: Arc::default(),
        }
    }
}

impl KlusterMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        registry.register("kubernikus_kluster_status_phase", "The phase of each Kluster", own.phases.clone());
        registry.register("kubernikus_kluster_info", "Facts of each Kluster", own.info.clone());
        let help = "Seconds from the creation of a Kluster until it is Running";
        registry.register("kubernikus_kluster_boot_duration", help, own.boot_duration.clone());
        let help = "Migrations of Klusters that failed";
        registry.register("kubernikus_migration_errors", help, own.migration_errors.clone());
        own
    }

    pub fn observe_kluster(&self, kluster: &Kluster) {
        let id = kluster_id(kluster);
        for phase in PHASES {
            let labels = PhaseLabels { kluster_id: id.clone(), phase: phase.text() };
            self.phases.get_or_create(&labels).set(i64::from(kluster.phase() == phase));
        }
        let status = kluster.status.as_ref();
        let info = InfoLabels {
            kluster_name: kluster.name().to_owned(),
            kluster_namespace: kluster.metadata.namespace.clone().unwrap_or_default(),
            kluster_version: status.map(|status| status.version.clone()).unwrap_or_default(),
            project_id: kluster.spec.openstack.project_id.clone(),
        };
        let mut known = self.known.lock();
        if known.contains(&(id.clone(), info.clone())) {
            return;
        }
        self.forget_info(&mut known, &id);
        self.info.get_or_create(&info).set(1);
        known.insert((id, info));
    }

    fn forget_info(&self, known: &mut BTreeSet<(String, InfoLabels)>, id: &str) {
        known.retain(|(other, info)| {
            let is_kept = other != id;
            if !is_kept {
                self.info.remove(info);
            }
            is_kept
        });
    }

    /// The Kluster is no more.
    pub fn forget_kluster(&self, kluster: &Kluster) {
        let id = kluster_id(kluster);
        for phase in PHASES {
            self.phases.remove(&PhaseLabels { kluster_id: id.clone(), phase: phase.text() });
        }
        self.migration_errors.remove(&KlusterLabel { kluster: id.clone() });
        self.forget_info(&mut self.known.lock(), &id);
    }

    pub fn count_migration_error(&self, kluster: &Kluster) {
        self.migration_errors.get_or_create(&KlusterLabel { kluster: kluster_id(kluster) }).inc();
    }

    pub fn observe_boot(&self, seconds: f64) {
        self.boot_duration.observe(seconds);
    }
}

fn kluster_id(kluster: &Kluster) -> String {
    format!("{}/{}", kluster.metadata.namespace.as_deref().unwrap_or_default(), kluster.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kluster_that_is_gone_leaves_no_series() {
        let mut registry = Registry::default();
        let metrics = KlusterMetrics::register(&mut registry);
        let mut kluster = Kluster::new("k", Default::default());
        metrics.observe_kluster(&kluster);
        kluster.status =
            Some(mainstay_api::cloud::kluster::KlusterStatus { version: "1.37.0".to_owned(), ..Default::default() });
        metrics.observe_kluster(&kluster);
        metrics.count_migration_error(&kluster);
        let text = |registry: &Registry| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).expect("a text");
            text
        };
        let shown = text(&registry);
        assert_eq!(shown.matches("kubernikus_kluster_info{").count(), 1, "{shown}");
        assert!(shown.contains("kubernikus_kluster_status_phase{kluster_id=\"/k\",phase=\"Pending\"} 1"), "{shown}");
        assert!(shown.contains("kubernikus_migration_errors_total{kluster=\"/k\"} 1"), "{shown}");
        metrics.forget_kluster(&kluster);
        assert_eq!(text(&registry).matches("kluster_id").count(), 0);
    }
}
