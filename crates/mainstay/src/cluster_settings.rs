//! Settings that all servers and machines of a cluster must share: pod range, service range, cluster domain, and how soon
//! a silent node is lost.
//!
//! The first server records its own in the ConfigMap `kube-system/mainstay-config`. Every later start of a server and
//! every start of an agent compares its own with them and refuses to go on if one differs: with two service ranges two
//! Services get one address, with two pod ranges nodes do not route to each other's pods. An agent that reaches no
//! server starts all the same, since its pods must not depend on one. Agents have no flags for the timings of node loss:
//! they take those that are recorded. To change a recorded setting, stop all servers but
//! one, delete the ConfigMap, and start everything with the new one.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use mainstay_api::{
    node_loss::Timing,
    wellknown::cluster_config::{NAME, NAMESPACE},
};
use mainstay_network::Range;

use crate::{cli::CommonOptions, exit::Exit};

/// How long an agent waits for a server to tell it the cluster's settings.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct ClusterSettings {
    pub pod_range: Range,
    pub service_range: Range,
    pub cluster_domain: String,
    /// The prefix length of each node's part of the pod range. Set at servers alone.
    node_pod_range_size: Option<u8>,
    /// Set at servers alone.
    timing: Option<Timing>,
}

/// A setting that is another here than in the cluster.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} is {own} here, but {recorded} in the rest of the cluster: start it with {flag} {recorded}")]
struct Difference {
    flag: &'static str,
    own: String,
    recorded: String,
}

impl ClusterSettings {
    pub fn from_options(common: &CommonOptions) -> Result<Self, Exit> {
        let (pod_range, service_range) = (common.pod_range, common.service_range);
        if pod_range.contains(service_range.base()) || service_range.contains(pod_range.base()) {
            return Err(Exit::Refused(anyhow!(
                "--service-range {service_range} and --pod-range {pod_range} overlap: an address must belong to a Service \
                 or to a pod"
            )));
        }
        let cluster_domain = common.cluster_domain.trim_end_matches('.').to_lowercase();
        Ok(Self { pod_range, service_range, cluster_domain, node_pod_range_size: None, timing: None })
    }

    /// Refuses a size of which the pod range holds none.
    pub fn with_node_pod_range_size(self, bits: u8) -> Result<Self, Exit> {
        if bits < self.pod_range.bits() {
            return Err(Exit::Refused(anyhow!(
                "--node-pod-range-size {bits}: --pod-range {} is too small for a single node's part of that size",
                self.pod_range
            )));
        }
        Ok(Self { node_pod_range_size: Some(bits), ..self })
    }

    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing: Some(timing), ..self }
    }

    /// Flag, key in the ConfigMap, and value.
    fn entries(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut entries = vec![
            ("--pod-range", "podRange", self.pod_range.to_string()),
            ("--service-range", "serviceRange", self.service_range.to_string()),
            ("--cluster-domain", "clusterDomain", self.cluster_domain.clone()),
        ];
        let size = self.node_pod_range_size.map(|bits| ("--node-pod-range-size", "nodePodRangeSize", bits.to_string()));
        entries.extend(size);
        entries.extend(self.timing.iter().flat_map(Timing::to_settings));
        entries
    }

    /// A setting that is not recorded differs from none.
    fn differences(&self, recorded: &BTreeMap<String, String>) -> Vec<Difference> {
        let differing = self.entries().into_iter().filter_map(|(flag, key, own)| {
            let recorded = recorded.get(key).filter(|recorded| **recorded != own)?.clone();
            Some(Difference { flag, own, recorded })
        });
        differing.collect()
    }

    fn compare(&self, recorded: &ConfigMap) -> Result<(), Exit> {
        let differences = self.differences(recorded.data.as_ref().unwrap_or(&BTreeMap::new()));
        if differences.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = differences.iter().map(Difference::to_string).collect();
        Err(Exit::Refused(anyhow!("{} (recorded in ConfigMap {NAMESPACE}/{NAME})", lines.join("; "))))
    }

    /// Compares with what is recorded, if anything is.
    pub async fn check(&self, client: &Client) -> Result<(), Exit> {
        let recorded = config_maps(client).get_opt(NAME).await.context("read the cluster's settings")?;
        recorded.map_or(Ok(()), |recorded| self.compare(&recorded))
    }

    /// Records them for everybody who comes later, also those that an earlier version did not record. Another server may
    /// have been faster: then compares.
    pub async fn record(&self, client: &Client) -> Result<(), Exit> {
        let api = config_maps(client);
        let recorded = api.get_opt(NAME).await.context("read the cluster's settings")?;
        let mut data = recorded.as_ref().and_then(|recorded| recorded.data.clone()).unwrap_or_default();
        let known = data.len();
        for (_, key, value) in self.entries() {
            data.entry(key.to_owned()).or_insert(value);
        }
        let written = match recorded {
            Some(recorded) if data.len() == known => return self.compare(&recorded),
            Some(recorded) => {
                let config_map = ConfigMap { data: Some(data), ..recorded };
                api.replace(NAME, &PostParams::default(), &config_map).await
            }
            None => {
                let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
                api.create(&PostParams::default(), &ConfigMap { metadata, data: Some(data), ..ConfigMap::default() })
                    .await
            }
        };
        match written {
            Ok(recorded) => self.compare(&recorded),
            Err(kube::Error::Api(status)) if status.code == 409 => self.check(client).await,
            // A server must start on a full disk: there are pods to delete.
            Err(kube::Error::Api(status)) if status.code == 507 => {
                tracing::warn!("the store's disk is full: the cluster's settings are not recorded");
                Ok(())
            }
            Err(error) => Err(Exit::Failed(anyhow!(error).context("record the cluster's settings"))),
        }
    }

    /// For an agent: compares if a server answers. Returns the timings that the servers recorded, if they did.
    pub async fn check_as_node(&self, client: &Client) -> Result<Option<Timing>, Exit> {
        match tokio::time::timeout(PATIENCE, config_maps(client).get_opt(NAME)).await {
            Ok(Ok(Some(recorded))) => {
                self.compare(&recorded)?;
                Ok(Some(Timing::from_settings(&recorded.data.unwrap_or_default())))
            }
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot compare the cluster's settings with those of this machine");
                Ok(None)
            }
            Err(_) => {
                tracing::warn!("no server answers: this machine's settings are not compared with the cluster's");
                Ok(None)
            }
        }
    }
}

fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: &[&str]) -> Result<ClusterSettings, Exit> {
        #[derive(clap::Parser)]
        struct Options {
            #[command(flatten)]
            common: CommonOptions,
        }
        let options = <Options as clap::Parser>::try_parse_from([&["x"], flags].concat()).unwrap();
        ClusterSettings::from_options(&options.common)
    }

    fn recorded(settings: &ClusterSettings) -> BTreeMap<String, String> {
        settings.entries().into_iter().map(|(_, key, value)| (key.to_owned(), value)).collect()
    }

    #[test]
    fn ranges_that_overlap_are_refused() {
        let ranges = |pods: &str, services: &str| settings(&["--pod-range", pods, "--service-range", services]);
        assert!(ranges("10.244.0.0/16", "10.96.0.0/16").is_ok());
        for (pods, services) in [("10.96.0.0/16", "10.96.4.0/24"), ("10.96.4.0/24", "10.96.0.0/16")] {
            let Err(Exit::Refused(error)) = ranges(pods, services) else { panic!("accepted") };
            assert!(error.to_string().contains("--service-range"), "{error}");
        }
    }

    #[test]
    fn each_setting_that_differs_is_named_with_both_values_and_what_would_be_right() {
        let stock = settings(&[]).ok().unwrap();
        assert_eq!(stock.differences(&recorded(&stock)), []);
        assert_eq!(stock.differences(&BTreeMap::new()), [], "what is not recorded differs from nothing");
        let other = settings(&["--service-range", "10.97.0.0/16", "--cluster-domain", "Example.Org."]).ok().unwrap();
        let texts: Vec<String> = other.differences(&recorded(&stock)).iter().map(Difference::to_string).collect();
        assert_eq!(
            texts,
            [
                "--service-range is 10.97.0.0/16 here, but 10.96.0.0/16 in the rest of the cluster: start it with \
                 --service-range 10.96.0.0/16",
                "--cluster-domain is example.org here, but cluster.local in the rest of the cluster: start it with \
                 --cluster-domain cluster.local",
            ]
        );
    }
}
