//! One service account floods the server with LISTs: what others notice of it, and what the flooder is told.
//!
//! The flooder is a process of its own, so that those who measure do not wait for the threads that read its lists.

use std::{
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, process::Command};

use crate::{client::Target, load, report::Report};

/// Objects in the list that is flooded with.
const LISTED: usize = 2_000;
/// What others do: GETs and creates, one after the other with a pause, each by a user of its own.
const OTHERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(5);

/// The variable in which the flooding process finds its token.
const TOKEN: &str = "FLOOD_TOKEN";

/// The token of a service account that may read and write what a namespace usually has.
pub async fn make_account(admin: &Target, namespace: &str, name: &str) -> anyhow::Result<String> {
    let mut connection = admin.connect().await?;
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let account = json!({ "metadata": { "name": name } });
    connection.call(Method::POST, &path, account.to_string().into()).await?;
    // What `edit` is put together of, which is there without controllers too.
    for role in ["system:aggregate-to-edit", "system:aggregate-to-view"] {
        let binding = json!({
            "metadata": { "name": format!("{namespace}-{name}-{role}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "namespace": namespace, "name": name }],
        });
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        connection.call(Method::POST, bindings, binding.to_string().into()).await?;
    }
    let review = json!({ "spec": { "expirationSeconds": 3600 } });
    let made = connection.call(Method::POST, &format!("{path}/{name}/token"), review.to_string().into()).await?;
    let made: Value = serde_json::from_slice(&made)?;
    Ok(made["status"]["token"].as_str().context("no token in the answer")?.to_owned())
}

#[derive(Default)]
struct Answers {
    served: AtomicUsize,
    refused: AtomicUsize,
    refused_with_retry_after: AtomicUsize,
}

/// Sends LISTs over its connection until told to stop, and does not wait when it is refused.
async fn flood(target: Target, path: Arc<str>, answers: Arc<Answers>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    while !stop.load(Relaxed) {
        let response = connection.send(Method::GET, &path, Bytes::new()).await?;
        let (code, retry) = (response.status(), response.headers().contains_key("retry-after"));
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        match code.as_u16() {
            429 => {
                answers.refused.fetch_add(1, Relaxed);
                answers.refused_with_retry_after.fetch_add(usize::from(retry), Relaxed);
            }
            _ => _ = answers.served.fetch_add(1, Relaxed),
        }
    }
    Ok(())
}

/// The times of what others do for so long, in milliseconds, sorted.
async fn others(targets: &[Target], namespace: &str, time: Duration, salt: &str) -> anyhow::Result<Vec<f64>> {
    let tasks: Vec<_> = targets
        .iter()
        .cloned()
        .enumerate()
        .map(|(client, target)| {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            let salt = salt.to_owned();
            tokio::spawn(async move {
                let mut connection = target.connect().await?;
                let (end, mut times, mut n) = (Instant::now() + time, Vec::new(), 0);
                while Instant::now() < end {
                    let began = Instant::now();
                    if n % 10 == 0 {
                        let map = json!({ "metadata": { "name": format!("o-{salt}-{client}-{n}") } });
                        connection.call(Method::POST, &path, map.to_string().into()).await?;
                    } else {
                        connection.drain(Method::GET, &format!("{path}/c000001")).await?;
                    }
                    times.push(began.elapsed().as_secs_f64() * 1e3);
                    n += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

fn percentile(sorted: &[f64], q: f64) -> f64 {
    sorted.get(((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// What the flooding process does: LISTs over so many connections until its standard input ends; then prints the counts.
pub async fn flood_until_told(kubeconfig: &Path, path: &str, connections: usize) -> anyhow::Result<()> {
    let token = std::env::var(TOKEN).with_context(|| format!("{TOKEN} is not set"))?;
    let target = Target::from_kubeconfig(kubeconfig)?.with_token(&token);
    let (answers, stop) = (Arc::new(Answers::default()), Arc::new(AtomicBool::new(false)));
    let path: Arc<str> = path.into();
    let floods: Vec<_> = (0..connections)
        .map(|_| tokio::spawn(flood(target.clone(), path.clone(), answers.clone(), stop.clone())))
        .collect();
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    stop.store(true, Relaxed);
    let mut broken = 0;
    for flood in floods {
        broken += usize::from(!matches!(tokio::time::timeout(Duration::from_secs(30), flood).await, Ok(Ok(Ok(())))));
    }
    let count = |counter: &AtomicUsize| counter.load(Relaxed);
    println!(
        "{}",
        json!({
            "served": count(&answers.served),
            "refused": count(&answers.refused),
            "refusedWithRetryAfter": count(&answers.refused_with_retry_after),
            "broken": broken,
        })
    );
    Ok(())
}

pub async fn run(
    target: &Target,
    kubeconfig: &Path,
    connections: usize,
    time: Duration,
    report: &Report,
) -> anyhow::Result<()> {
    let namespace = load::fill(target, "the flood", LISTED).await?;
    let token = make_account(target, &namespace, "flooder").await?;
    let mut users = Vec::new();
    for n in 0..OTHERS {
        users.push(target.with_token(&make_account(target, &namespace, &format!("other{n}")).await?));
    }
    others(&users, &namespace, time / 4, "warm").await?;
    let idle = others(&users, &namespace, time, "idle").await?;
    let mut flooder = Command::new(std::env::current_exe()?)
        .args(["--flood", &connections.to_string(), "--kubeconfig"])
        .arg(kubeconfig)
        .args(["--flooder", &format!("/api/v1/namespaces/{namespace}/configmaps")])
        .env(TOKEN, token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    tokio::time::sleep(time / 4).await; // until all are connected
    let during = others(&users, &namespace, time, "flood").await?;
    drop(flooder.stdin.take());
    let printed = flooder.wait_with_output().await?.stdout;
    let counts: Value =
        serde_json::from_slice(&printed).context("the flooding process did not say what was answered")?;
    let (calm, busy) = (percentile(&idle, 0.99), percentile(&during, 0.99));
    report.note(&format!("flood: {connections} connections LIST {LISTED} objects; {OTHERS} others GET and create"));
    report.figure("  others, idle, p50", percentile(&idle, 0.5), "ms", None);
    report.figure("  others, idle, p99", calm, "ms", None);
    report.figure("  others, during the flood, p50", percentile(&during, 0.5), "ms", None);
    report.figure("  others, during the flood, p99", busy, "ms", Some(("limit: 10 x idle", 10.0 * calm)));
    let count = |name: &str| counts[name].as_f64().unwrap_or(f64::NAN);
    report.figure("  LISTs served", count("served"), "", None);
    report.figure("  LISTs refused with 429", count("refused"), "", None);
    report.figure("  of them with Retry-After", count("refusedWithRetryAfter"), "", None);
    report.figure("  flooding connections that broke", count("broken"), "", None);
    Ok(())
}
