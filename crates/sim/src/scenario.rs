//! One measurement from beginning to end: machines come, pods are created, bound and ready, and it grows quiet again.

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
    fleet::{Access, Fleet, Pace, Settings},
    ledger::{Counts, Ledger},
    load::{self, Batch, Took},
    process::Process,
    progress::{Progress, grouped},
};

const NAMESPACE: &str = "sim";
/// How long nothing may happen to any pod before we say that it is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this long without news of pods, all that was to be said of them has been said.
const SETTLED: Duration = Duration::from_millis(1500);

#[derive(Clone, Debug)]
pub struct Plan {
    pub machines: Settings,
    /// How many pods are created, in each round.
    pub pods: usize,
    /// Once more, with machines that offer nothing until all pods are there.
    pub backlog: bool,
    /// Replicas of a Deployment that is scaled up from nothing; 0 for none.
    pub deployment: usize,
    /// How long to look at the CPU once everything rests; no look if it is zero.
    pub idle: Duration,
}

/// What is measured, and how it is reached.
pub struct World {
    pub access: Access,
    /// Those who create pods; one connection each.
    pub clients: Vec<Client>,
    /// Whose memory and CPU are looked at, if it is on this machine.
    pub server: Option<Process>,
}

/// Runs the plan. `say` hears every figure as it is found.
pub async fn run(
    world: &World,
    plan: &Plan,
    progress: Progress,
    stop: CancellationToken,
    say: impl Fn(&crate::figures::Figure),
) -> anyhow::Result<Figures> {
    check(plan)?;
    let ledger = Arc::new(Ledger::default());
    let (done, started) = (AtomicUsize::new(0), Instant::now());
    let registering = Fleet::register(world.access.clone(), plan.machines.clone(), ledger.clone(), &done);
    let at = || done.load(Relaxed);
    let fleet = progress.during("machines registered", plan.machines.count, at, registering).await;
    let fleet = fleet.context("register machines")?;
    let mut run = Run { world, plan, progress, fleet: fleet.clone(), figures: Figures::default(), say };
    run.note("machines registered in", started.elapsed().as_secs_f64(), "s");
    let ended = stop.child_token();
    let machines = tokio::spawn(fleet.run(ended.clone()));
    let measured = stop.run_until_cancelled(run.rounds()).await;
    ended.cancel();
    machines.await.context("the machines ended badly")?;
    match measured {
        Some(measured) => measured?,
        None => return Err(anyhow!("stopped before the end")),
    }
    Ok(run.figures)
}

fn check(plan: &Plan) -> anyhow::Result<()> {
    let shape = &plan.machines.shape;
    ensure!(plan.machines.count > 0, "there must be at least one machine");
    let each = shape.pods.min(shape.cpu / 100).min(shape.memory / (500 << 20)).max(0);
    let room = plan.machines.count.saturating_mul(usize::try_from(each).unwrap_or(0));
    let most = plan.pods.max(plan.deployment);
    ensure!(
        most <= room,
        "{} pods do not fit on {} machines: each has room for {each} (a pod takes 100m cpu and 500Mi memory)",
        grouped(most),
        grouped(plan.machines.count),
    );
    Ok(())
}

struct Run<'a, S> {
    world: &'a World,
    plan: &'a Plan,
    progress: Progress,
    fleet: Arc<Fleet>,
    figures: Figures,
    say: S,
}

impl<S: Fn(&crate::figures::Figure)> Run<'_, S> {
    fn note(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let figure = self.figures.add(name, value, unit);
        (self.say)(figure);
    }

    fn ledger(&self) -> &Arc<Ledger> {
        self.fleet.ledger()
    }

    async fn rounds(&mut self) -> anyhow::Result<()> {
        load::namespace(&self.world.access.admin, NAMESPACE).await?;
        if self.plan.pods > 0 {
            self.as_they_come().await?;
            self.memory("with these pods")?;
        }
        if self.plan.pods > 0 && self.plan.backlog {
            self.clean_up("a").await?;
            self.place_a_backlog().await?;
        }
        if self.plan.deployment > 0 {
            if self.plan.pods > 0 {
                self.clean_up(if self.plan.backlog { "b" } else { "a" }).await?;
            }
            self.scale_up().await?;
        }
        self.rest().await
    }

    fn batch(&self, prefix: &str) -> Batch {
        Batch { namespace: NAMESPACE.to_owned(), prefix: prefix.to_owned(), count: self.plan.pods }
    }

    /// Pods are created while machines offer.
    async fn as_they_come(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        let created = self.create("a").await?;
        self.placed("pods bound").await?;
        let per_second = |taken: Duration| self.plan.pods as f64 / taken.as_secs_f64();
        let (bound, _) = self.ledger().last();
        let bound = bound.map_or(Duration::ZERO, |at| at.saturating_duration_since(started));
        let (created, bound) = (per_second(created), per_second(bound));
        self.note("pods created", created, "/s");
        self.note("pods bound while they are created", bound, "/s");
        self.latencies();
        self.ready("pods", started).await
    }

    fn latencies(&mut self) {
        let spans = self.ledger().create_to_bound();
        for q in [50.0, 99.0] {
            self.note(format!("created to bound, p{q:.0}"), spans.percentile(q).as_secs_f64() * 1e3, "ms");
        }
    }

    async fn create(&self, prefix: &str) -> anyhow::Result<Duration> {
        let done = Arc::new(AtomicUsize::new(0));
        let (clients, ledger) = (&self.world.clients, self.ledger());
        let batch = self.batch(prefix);
        let creating = load::create(clients, &batch, ledger, &done);
        let Took(taken) = self.progress.during("pods created", self.plan.pods, || done.load(Relaxed), creating).await?;
        Ok(taken)
    }

    /// Returns once all pods have a machine.
    async fn placed(&self, what: &str) -> anyhow::Result<()> {
        let wanted = self.plan.pods;
        self.until(what, wanted, |counts| counts.bound).await
    }

    async fn ready(&mut self, what: &str, since: Instant) -> anyhow::Result<()> {
        if self.plan.machines.start_delay.is_none() {
            return Ok(());
        }
        let wanted = self.plan.pods;
        self.until("pods ready", wanted, |counts| counts.ready).await?;
        let taken = self.ledger().last().1.map_or(Duration::ZERO, |at| at.saturating_duration_since(since));
        self.note(format!("{what} ready"), wanted as f64 / taken.as_secs_f64(), "/s");
        let spans = self.ledger().create_to_ready();
        for q in [50.0, 99.0] {
            self.note(format!("created to ready, p{q:.0}"), spans.percentile(q).as_secs_f64() * 1e3, "ms");
        }
        Ok(())
    }

    /// All pods are there before any machine offers.
    async fn place_a_backlog(&mut self) -> anyhow::Result<()> {
        self.fleet.set_pace(Pace::Held).await;
        let created = self.create("b").await?;
        self.note("pods created with no machine offering", self.plan.pods as f64 / created.as_secs_f64(), "/s");
        self.settled().await?;
        let released = Instant::now();
        self.fleet.set_pace(Pace::Offering).await;
        self.placed("pods bound from a backlog").await?;
        let bound = self.ledger().last().0.map_or(Duration::ZERO, |at| at.saturating_duration_since(released));
        self.note("pods bound from a backlog", self.plan.pods as f64 / bound.as_secs_f64(), "/s");
        if self.plan.machines.start_delay.is_some() {
            self.until("pods ready", self.plan.pods, |counts| counts.ready).await?;
            let ready = self.ledger().last().1.map_or(Duration::ZERO, |at| at.saturating_duration_since(released));
            self.note("pods ready from a backlog", self.plan.pods as f64 / ready.as_secs_f64(), "/s");
        }
        Ok(())
    }

    /// Waits until nothing more is written about pods, and nobody computes.
    async fn settled(&self) -> anyhow::Result<()> {
        let waiting = async {
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline {
                match self.world.server {
                    None => return tokio::time::sleep(4 * SETTLED).await,
                    Some(process) if process.busy(SETTLED).await.is_ok_and(|percent| percent < 20.0) => return,
                    Some(_) => {}
                }
            }
        };
        self.progress.during("waiting until it is quiet", 1, || 0, waiting).await;
        Ok(())
    }

    async fn clean_up(&mut self, prefix: &str) -> anyhow::Result<()> {
        let done = Arc::new(AtomicUsize::new(0));
        let started = Instant::now();
        let batch = self.batch(prefix);
        let deleting = load::delete(&self.world.clients, &batch, &done);
        self.progress.during("pods deleted", self.plan.pods, || done.load(Relaxed), deleting).await?;
        self.until("pods gone", self.plan.pods, |counts| counts.gone).await?;
        self.note("pods deleted", self.plan.pods as f64 / started.elapsed().as_secs_f64(), "/s");
        self.ledger().clear();
        self.settled().await
    }

    /// A Deployment grows from nothing to all its replicas.
    async fn scale_up(&mut self) -> anyhow::Result<()> {
        const NAME: &str = "web";
        let (admin, replicas) = (&self.world.access.admin, self.plan.deployment);
        load::deployment(admin, NAMESPACE, NAME).await?;
        self.settled().await?;
        let started = Instant::now();
        load::scale(admin, NAMESPACE, NAME, replicas).await?;
        self.until("replicas bound", replicas, |counts| counts.bound).await?;
        let (bound, _) = self.ledger().last();
        let bound = bound.map_or(Duration::ZERO, |at| at.saturating_duration_since(started));
        self.note(format!("a Deployment of {} bound in", grouped(replicas)), bound.as_secs_f64(), "s");
        if self.plan.machines.start_delay.is_some() {
            self.until("replicas ready", replicas, |counts| counts.ready).await?;
            while load::ready_replicas(admin, NAMESPACE, NAME).await? < replicas {
                ensure!(started.elapsed() < 2 * PATIENCE, "the Deployment never said that all replicas are ready");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let taken = started.elapsed().as_secs_f64();
            self.note(format!("a Deployment of {} reported ready in", grouped(replicas)), taken, "s");
        }
        Ok(())
    }

    fn memory(&mut self, when: &str) -> anyhow::Result<()> {
        if let Some(process) = self.world.server {
            let (now, highest) = process.memory()?;
            self.note(format!("memory {when}"), now, "MB");
            self.note("memory at its highest", highest, "MB");
        }
        Ok(())
    }

    /// What it costs to do nothing.
    async fn rest(&mut self) -> anyhow::Result<()> {
        let (Some(process), idle) = (self.world.server, self.plan.idle) else { return Ok(()) };
        if idle.is_zero() {
            return Ok(());
        }
        self.settled().await?;
        let measuring = "measuring idle CPU";
        let busy = self.progress.during(measuring, 1, || 0, process.busy(idle)).await?;
        self.note("CPU idle, machines renewing their offers", busy, "% of a core");
        // Offers that are not renewed are cleared away; that is not what is to be measured.
        self.fleet.set_pace(Pace::Held).await;
        self.fleet.set_pace(Pace::Quiet).await;
        self.settled().await?;
        let busy = self.progress.during(measuring, 1, || 0, process.busy(idle)).await?;
        self.note("CPU idle, machines quiet", busy, "% of a core");
        self.memory("at the end")
    }

    /// Returns once so many pods have come so far, or says why they do not.
    async fn until(&self, what: &str, wanted: usize, reached: impl Fn(Counts) -> usize) -> anyhow::Result<()> {
        let ledger = self.ledger();
        let at = || reached(ledger.counts());
        let waiting = async {
            loop {
                let before = ledger.counts();
                let enough = ledger.until(|counts| reached(counts) >= wanted);
                if tokio::time::timeout(PATIENCE, enough).await.is_ok() {
                    return Ok(());
                }
                if ledger.counts() == before {
                    return Err(self.stuck(what, at(), wanted).await);
                }
            }
        };
        self.progress.during(what, wanted, at, waiting).await
    }

    async fn stuck(&self, what: &str, at: usize, wanted: usize) -> anyhow::Error {
        let why = load::why_waiting(&self.world.access.admin, NAMESPACE).await;
        let why = why.map_or_else(String::new, |why| format!(". A pod that waits, {why}"));
        let (at, wanted) = (grouped(at), grouped(wanted));
        anyhow!("{what}: {at} of {wanted}, and nothing happened for {} s{why}", PATIENCE.as_secs())
    }
}
