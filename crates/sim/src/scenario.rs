//! Runs one measurement: registers nodes, creates pods, waits until they are bound and ready, and measures idle CPU.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::{
    figures::Figures,
    fleet::{Access, Fleet, FleetActivity, Settings},
    load::{self, Batch},
    pod_times::{Counts, PodTimes},
    process::Process,
    progress::{Progress, grouped},
};

const NAMESPACE: &str = "sim";
/// The measurement fails if no pod makes progress for this long.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// CPU is measured over this long to find out whether the server is still busy.
const QUIET_PERIOD: Duration = Duration::from_millis(1500);

#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: Settings,
    /// How many pods are created, in each round.
    pub pods: usize,
    /// A second round in which nodes offer nothing until all pods are created.
    pub backlog: bool,
    /// Replicas of a Deployment that is scaled up from zero; 0 for none.
    pub deployment: usize,
    /// How long to measure idle CPU; zero not to.
    pub idle: Duration,
}

/// The cluster that is measured, and how it is reached.
pub struct ClusterUnderTest {
    pub access: Access,
    /// The clients that create pods, with one connection each.
    pub clients: Vec<Client>,
    /// Whose memory and CPU are measured, if it runs on this machine.
    pub server: Option<Process>,
}

/// Runs the plan. `on_figure` is called with every figure as it is measured.
pub async fn run(
    cluster: &ClusterUnderTest,
    plan: &Plan,
    progress: Progress,
    stop: CancellationToken,
    on_figure: impl Fn(&crate::figures::Figure),
) -> anyhow::Result<Figures> {
    check_capacity(plan)?;
    let pod_times = Arc::new(PodTimes::default());
    let (done, started) = (AtomicUsize::new(0), Instant::now());
    let registering = Fleet::register(cluster.access.clone(), plan.nodes.clone(), pod_times.clone(), &done);
    let at = || done.load(Relaxed);
    let fleet = progress.show_while("nodes registered", plan.nodes.count, at, registering).await;
    let fleet = fleet.context("register nodes")?;
    let mut run = ScenarioRun { cluster, plan, progress, fleet: fleet.clone(), figures: Figures::default(), on_figure };
    run.record("nodes registered in", started.elapsed().as_secs_f64(), "s");
    let ended = stop.child_token();
    let running = tokio::spawn(fleet.run(ended.clone()));
    let measured = stop.run_until_cancelled(run.rounds()).await;
    ended.cancel();
    running.await.context("the nodes ended badly")?;
    match measured {
        Some(measured) => measured?,
        None => return Err(anyhow!("stopped before the end")),
    }
    Ok(run.figures)
}

fn check_capacity(plan: &Plan) -> anyhow::Result<()> {
    let template = &plan.nodes.template;
    ensure!(plan.nodes.count > 0, "there must be at least one node");
    let each = template.pods.min(template.cpu / 100).min(template.memory / (500 << 20)).max(0);
    let room = plan.nodes.count.saturating_mul(usize::try_from(each).unwrap_or(0));
    let most = plan.pods.max(plan.deployment);
    ensure!(
        most <= room,
        "{} pods do not fit on {} nodes: each has room for {each} (a pod takes 100m cpu and 500Mi memory)",
        grouped(most),
        grouped(plan.nodes.count),
    );
    Ok(())
}

struct ScenarioRun<'a, S> {
    cluster: &'a ClusterUnderTest,
    plan: &'a Plan,
    progress: Progress,
    fleet: Arc<Fleet>,
    figures: Figures,
    on_figure: S,
}

impl<S: Fn(&crate::figures::Figure)> ScenarioRun<'_, S> {
    fn record(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let figure = self.figures.add(name, value, unit);
        (self.on_figure)(figure);
    }

    fn pod_times(&self) -> &Arc<PodTimes> {
        self.fleet.pod_times()
    }

    async fn rounds(&mut self) -> anyhow::Result<()> {
        load::create_namespace(&self.cluster.access.admin, NAMESPACE).await?;
        if self.plan.pods > 0 {
            self.measure_arriving_pods().await?;
            self.record_memory("with these pods")?;
        }
        if self.plan.pods > 0 && self.plan.backlog {
            self.delete_pods("a").await?;
            self.measure_backlog().await?;
        }
        if self.plan.deployment > 0 {
            if self.plan.pods > 0 {
                self.delete_pods(if self.plan.backlog { "b" } else { "a" }).await?;
            }
            self.measure_deployment().await?;
        }
        self.measure_idle_cpu().await
    }

    fn batch(&self, prefix: &str) -> Batch {
        Batch { namespace: NAMESPACE.to_owned(), prefix: prefix.to_owned(), count: self.plan.pods }
    }

    /// Pods are created while nodes offer.
    async fn measure_arriving_pods(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        let created = self.create_pods("a").await?;
        self.wait_until_bound("pods bound").await?;
        let per_second = |taken: Duration| self.plan.pods as f64 / taken.as_secs_f64();
        let (bound, _) = self.pod_times().last_bound_and_ready();
        let bound = bound.map_or(Duration::ZERO, |at| at.saturating_duration_since(started));
        let (created, bound) = (per_second(created), per_second(bound));
        self.record("pods created", created, "/s");
        self.record("pods bound while they are created", bound, "/s");
        self.record_bind_latencies();
        self.wait_until_ready("pods", started).await
    }

    fn record_bind_latencies(&mut self) {
        let durations = self.pod_times().create_to_bound();
        for q in [50.0, 99.0] {
            self.record(format!("created to bound, p{q:.0}"), durations.percentile(q).as_secs_f64() * 1e3, "ms");
        }
    }

    async fn create_pods(&self, prefix: &str) -> anyhow::Result<Duration> {
        let done = Arc::new(AtomicUsize::new(0));
        let (clients, pod_times) = (&self.cluster.clients, self.pod_times());
        let batch = self.batch(prefix);
        let creating = load::create_pods(clients, &batch, pod_times, &done);
        let taken = self.progress.show_while("pods created", self.plan.pods, || done.load(Relaxed), creating).await?;
        Ok(taken)
    }

    /// Returns once all pods are bound.
    async fn wait_until_bound(&self, what: &str) -> anyhow::Result<()> {
        let wanted = self.plan.pods;
        self.wait_for_pods(what, wanted, |counts| counts.bound).await
    }

    async fn wait_until_ready(&mut self, what: &str, since: Instant) -> anyhow::Result<()> {
        if self.plan.nodes.start_delay.is_none() {
            return Ok(());
        }
        let wanted = self.plan.pods;
        self.wait_for_pods("pods ready", wanted, |counts| counts.ready).await?;
        let taken =
            self.pod_times().last_bound_and_ready().1.map_or(Duration::ZERO, |at| at.saturating_duration_since(since));
        self.record(format!("{what} ready"), wanted as f64 / taken.as_secs_f64(), "/s");
        let durations = self.pod_times().create_to_ready();
        for q in [50.0, 99.0] {
            self.record(format!("created to ready, p{q:.0}"), durations.percentile(q).as_secs_f64() * 1e3, "ms");
        }
        Ok(())
    }

    /// All pods are created before any node offers.
    async fn measure_backlog(&mut self) -> anyhow::Result<()> {
        self.fleet.set_activity(FleetActivity::HeartbeatsOnly).await;
        let created = self.create_pods("b").await?;
        self.record("pods created with no node offering", self.plan.pods as f64 / created.as_secs_f64(), "/s");
        self.wait_until_quiet().await?;
        let released = Instant::now();
        self.fleet.set_activity(FleetActivity::Offering).await;
        self.wait_until_bound("pods bound from a backlog").await?;
        let bound = self
            .pod_times()
            .last_bound_and_ready()
            .0
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(released));
        self.record("pods bound from a backlog", self.plan.pods as f64 / bound.as_secs_f64(), "/s");
        if self.plan.nodes.start_delay.is_some() {
            self.wait_for_pods("pods ready", self.plan.pods, |counts| counts.ready).await?;
            let ready = self
                .pod_times()
                .last_bound_and_ready()
                .1
                .map_or(Duration::ZERO, |at| at.saturating_duration_since(released));
            self.record("pods ready from a backlog", self.plan.pods as f64 / ready.as_secs_f64(), "/s");
        }
        Ok(())
    }

    /// Waits until the server is no longer busy.
    async fn wait_until_quiet(&self) -> anyhow::Result<()> {
        let waiting = async {
            let deadline = Instant::now() + PROGRESS_TIMEOUT;
            while Instant::now() < deadline {
                match self.cluster.server {
                    None => return tokio::time::sleep(4 * QUIET_PERIOD).await,
                    Some(process) if process.busy(QUIET_PERIOD).await.is_ok_and(|percent| percent < 20.0) => return,
                    Some(_) => {}
                }
            }
        };
        self.progress.show_while("waiting until it is quiet", 1, || 0, waiting).await;
        Ok(())
    }

    async fn delete_pods(&mut self, prefix: &str) -> anyhow::Result<()> {
        let done = Arc::new(AtomicUsize::new(0));
        let started = Instant::now();
        let batch = self.batch(prefix);
        let deleting = load::delete_pods(&self.cluster.clients, &batch, &done);
        self.progress.show_while("pods deleted", self.plan.pods, || done.load(Relaxed), deleting).await?;
        self.wait_for_pods("pods gone", self.plan.pods, |counts| counts.gone).await?;
        self.record("pods deleted", self.plan.pods as f64 / started.elapsed().as_secs_f64(), "/s");
        self.pod_times().clear();
        self.wait_until_quiet().await
    }

    /// A Deployment is scaled from zero to all its replicas.
    async fn measure_deployment(&mut self) -> anyhow::Result<()> {
        const NAME: &str = "web";
        let (admin, replicas) = (&self.cluster.access.admin, self.plan.deployment);
        load::create_deployment(admin, NAMESPACE, NAME).await?;
        self.wait_until_quiet().await?;
        let started = Instant::now();
        load::scale_deployment(admin, NAMESPACE, NAME, replicas).await?;
        self.wait_for_pods("replicas bound", replicas, |counts| counts.bound).await?;
        let (bound, _) = self.pod_times().last_bound_and_ready();
        let bound = bound.map_or(Duration::ZERO, |at| at.saturating_duration_since(started));
        self.record(format!("a Deployment of {} bound in", grouped(replicas)), bound.as_secs_f64(), "s");
        if self.plan.nodes.start_delay.is_some() {
            self.wait_for_pods("replicas ready", replicas, |counts| counts.ready).await?;
            while load::ready_replicas(admin, NAMESPACE, NAME).await? < replicas {
                ensure!(
                    started.elapsed() < 2 * PROGRESS_TIMEOUT,
                    "the Deployment never said that all replicas are ready"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let taken = started.elapsed().as_secs_f64();
            self.record(format!("a Deployment of {} reported ready in", grouped(replicas)), taken, "s");
        }
        Ok(())
    }

    fn record_memory(&mut self, when: &str) -> anyhow::Result<()> {
        if let Some(process) = self.cluster.server {
            let (now, highest) = process.memory()?;
            self.record(format!("memory {when}"), now, "MB");
            self.record("memory at its highest", highest, "MB");
        }
        Ok(())
    }

    async fn measure_idle_cpu(&mut self) -> anyhow::Result<()> {
        let (Some(process), idle) = (self.cluster.server, self.plan.idle) else { return Ok(()) };
        if idle.is_zero() {
            return Ok(());
        }
        self.wait_until_quiet().await?;
        let measuring = "measuring idle CPU";
        let busy = self.progress.show_while(measuring, 1, || 0, process.busy(idle)).await?;
        self.record("CPU idle, nodes renewing their offers", busy, "% of a core");
        // Withdrawn first, so that the deletion of expired offers is not measured.
        self.fleet.set_activity(FleetActivity::HeartbeatsOnly).await;
        self.fleet.set_activity(FleetActivity::Silent).await;
        self.wait_until_quiet().await?;
        let busy = self.progress.show_while(measuring, 1, || 0, process.busy(idle)).await?;
        self.record("CPU idle, nodes quiet", busy, "% of a core");
        self.record_memory("at the end")
    }

    /// Returns once `wanted` pods have reached a state; fails if there is no progress.
    async fn wait_for_pods(&self, what: &str, wanted: usize, reached: impl Fn(Counts) -> usize) -> anyhow::Result<()> {
        let pod_times = self.pod_times();
        let at = || reached(pod_times.counts());
        let waiting = async {
            loop {
                let before = pod_times.counts();
                let enough = pod_times.wait_for(|counts| reached(counts) >= wanted);
                if tokio::time::timeout(PROGRESS_TIMEOUT, enough).await.is_ok() {
                    return Ok(());
                }
                if pod_times.counts() == before {
                    return Err(self.no_progress_error(what, at(), wanted).await);
                }
            }
        };
        self.progress.show_while(what, wanted, at, waiting).await
    }

    async fn no_progress_error(&self, what: &str, at: usize, wanted: usize) -> anyhow::Error {
        let reason = load::unscheduled_reason(&self.cluster.access.admin, NAMESPACE).await;
        let reason = reason.map_or_else(String::new, |reason| format!(". A pod that waits, {reason}"));
        let (at, wanted) = (grouped(at), grouped(wanted));
        anyhow!("{what}: {at} of {wanted}, and nothing happened for {} s{reason}", PROGRESS_TIMEOUT.as_secs())
    }
}
