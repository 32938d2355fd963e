//! Flags of a server that say how soon a silent machine is lost. Machines learn them from the cluster's settings.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use mainstay_api::node_loss::Timing;

use super::{duration, whole_seconds};
use crate::exit::Exit;

#[derive(Debug, Args)]
#[command(next_help_heading = "Losing machines")]
pub struct NodeLossOptions {
    /// How often machines renew their Leases, by which the cluster knows that they are alive. The same on all servers
    #[arg(long, env = "MAINSTAY_NODE_HEARTBEAT", value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub node_heartbeat: Duration,

    /// The conditions of a machine become Unknown after so long without a heartbeat. The same on all servers
    #[arg(long, env = "MAINSTAY_NODE_UNKNOWN_AFTER", value_name = "TIME", default_value = "8s", value_parser = duration)]
    pub node_unknown_after: Duration,

    /// How long pods that do not say otherwise stay on a machine that is unreachable or not ready. The same on all servers
    #[arg(long, env = "MAINSTAY_UNREACHABLE_TOLERATION", value_name = "TIME", default_value = "5s", value_parser = whole_seconds)]
    pub unreachable_toleration: Duration,

    /// A machine without contact to any server stops its unique pods after so long. The same on all servers
    #[arg(long, env = "MAINSTAY_FENCE_AFTER", value_name = "TIME", default_value = "6s", value_parser = duration)]
    pub fence_after: Duration,
}

impl NodeLossOptions {
    pub fn timing(&self) -> Result<Timing, Exit> {
        let timing = Timing {
            heartbeat: self.node_heartbeat,
            unknown_after: self.node_unknown_after,
            toleration: self.unreachable_toleration,
            fence_after: self.fence_after,
        };
        timing.check().map_err(|error| Exit::Refused(anyhow!(error)))?;
        Ok(timing)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        node_loss: NodeLossOptions,
    }

    fn timing(flags: &[&str]) -> Result<Timing, String> {
        let options = Options::try_parse_from([&["x"], flags].concat()).map_err(|error| error.to_string())?;
        options.node_loss.timing().map_err(|exit| match exit {
            Exit::Refused(error) | Exit::Failed(error) => error.to_string(),
            Exit::Usage(error) => error.to_string(),
            Exit::Code(code) => code.to_string(),
        })
    }

    #[test]
    fn the_flags_default_to_the_stock_timings() {
        assert_eq!(timing(&[]), Ok(Timing::default()));
    }

    #[test]
    fn timings_that_do_not_fit_together_are_refused_by_their_flags() {
        let wrong = |flags: &[&str]| timing(flags).unwrap_err();
        assert!(wrong(&["--unreachable-toleration", "1s"]).contains("--fence-after 6s"));
        assert!(wrong(&["--unreachable-toleration", "1500ms"]).contains("whole seconds"));
        assert!(wrong(&["--node-heartbeat", "soon"]).contains("must be a duration"));
        assert!(wrong(&["--node-unknown-after", "1000000h"]).contains("--node-unknown-after"));
    }
}
