//! SIGUSR1: writes the state of scheduler, controllers and agent to the log, for when the API cannot be asked.
//!
//! The scheduler tells what its debug pages tell, controllers their queues and results, the agent every sandbox and container that its
//! runtime holds. One log line per fact, so that none is too long for whoever collects them.

use kube::Client;
use mainstay_agent::agent::AgentState;
use mainstay_errors::error_chain;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Pages of the scheduler.
const PAGES: [&str; 3] = ["scheduler/podqueue", "scheduler/podstore", "registry/tasks"];
/// What controllers count; only what is not zero is told.
const CONTROLLER_METRICS: [&str; 4] = [
    "workqueue_depth",
    "workqueue_retries_total",
    "workqueue_unfinished_work_seconds",
    "controller_runtime_reconcile_total",
];
/// More lines of one part than this are only counted.
const MOST_LINES: usize = 2_000;

/// The parts of this process that have a state.
#[derive(Default)]
pub struct StateDump {
    pub server: Option<Client>,
    pub agent: Option<AgentState>,
}

impl StateDump {
    pub async fn run(self, stop: CancellationToken) {
        let Ok(mut asked) = signal(SignalKind::user_defined1()) else { return };
        while let Some(Some(())) = stop.run_until_cancelled(asked.recv()).await {
            tracing::info!(signal = "SIGUSR1", "state begins");
            if let Some(client) = &self.server {
                dump_server(client).await;
            }
            if let Some(agent) = &self.agent {
                let lines = agent.describe().await;
                write_lines("agent", "runtime", lines.iter().map(String::as_str));
            }
            tracing::info!("state ends");
        }
    }
}

async fn dump_server(client: &Client) {
    for page in PAGES {
        match text(client, &format!("/debug/{page}")).await {
            Ok(text) => write_lines("scheduler", page, text.lines()),
            Err(why) => tracing::info!(part = "scheduler", page, why, "state is not available"),
        }
    }
    match text(client, "/metrics").await {
        Ok(text) => write_lines("controllers", "metrics", text.lines().filter(|line| is_controller_fact(line))),
        Err(why) => tracing::info!(part = "controllers", why, "state is not available"),
    }
}

async fn text(client: &Client, path: &str) -> Result<String, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    client.request_text(request).await.map_err(|error| error_chain(&error))
}

fn is_controller_fact(line: &str) -> bool {
    let Some((series, value)) = line.rsplit_once(' ') else { return false };
    let name = series.split('{').next().unwrap_or_default();
    CONTROLLER_METRICS.contains(&name) && value.parse::<f64>().is_ok_and(|value| value != 0.0)
}

fn write_lines<'a>(part: &str, page: &str, lines: impl Iterator<Item = &'a str>) {
    let mut more = 0usize;
    for (number, line) in lines.filter(|line| !line.is_empty()).enumerate() {
        if number < MOST_LINES {
            tracing::info!(part, page, line, "state");
        } else {
            more += 1;
        }
    }
    if more > 0 {
        tracing::info!(part, page, more, "state has more lines");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_controllers_have_counted_is_told() {
        assert!(is_controller_fact(r#"workqueue_depth{name="deployment"} 3"#));
        assert!(!is_controller_fact(r#"workqueue_depth{name="deployment"} 0"#));
        assert!(!is_controller_fact("# HELP workqueue_depth Depth."));
        assert!(!is_controller_fact("apiserver_request_total 3"));
    }
}
