//! What bodies full of nothing cost: the time until they are refused, the memory, and what others notice of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;

use crate::{client::Target, report::Report, server::Spawned};

/// Empty items in a body of 2.7 MB.
const ITEMS: usize = 900_000;
const AT_ONCE: usize = 4;

fn bodies() -> [(&'static str, &'static str, String); 3] {
    let items = vec!["{}"; ITEMS].join(",");
    let pods = "/api/v1/namespaces/default/pods?dryRun=All";
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests?dryRun=All";
    let valid: Vec<String> = (0..19_000).map(|n| format!(r#"{{"name":"c{n}","image":"i"}}"#)).collect();
    [
        (
            "pod of 900,000 containers",
            pods,
            format!(r#"{{"metadata":{{"name":"x"}},"spec":{{"containers":[{items}]}}}}"#),
        ),
        (
            "CSR of 900,000 owners",
            requests,
            format!(
                r#"{{"metadata":{{"name":"x","ownerReferences":[{items}]}},"spec":{{"signerName":"a.b/c","request":""}}}}"#
            ),
        ),
        (
            "pod of 19,000 containers",
            pods,
            format!(r#"{{"metadata":{{"name":"x"}},"spec":{{"containers":[{}]}}}}"#, valid.join(",")),
        ),
    ]
}

async fn post(target: &Target, path: &str, body: Bytes) -> anyhow::Result<(StatusCode, Duration)> {
    let mut connection = target.connect().await?;
    let asked = Instant::now();
    let response = connection.send(Method::POST, path, body).await?;
    let code = response.status();
    response.into_body().collect().await?;
    Ok((code, asked.elapsed()))
}

pub async fn run(target: &Target, server: &Spawned, report: &Report) -> anyhow::Result<()> {
    for (what, path, body) in bodies() {
        let body = Bytes::from(body);
        server.reset_peak()?;
        let before = server.rss_mb()?;
        let (code, took) = post(target, path, body.clone()).await?;
        report.figure(&format!("{what}, {code}"), took.as_secs_f64() * 1e3, "ms", Some(("limit", 1000.0)));
        let grown = server.peak_mb()? - before;
        report.figure("  memory it took at most", grown, "MB", Some(("limit", 200.0)));
        let hostile: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (target, body) = (target.clone(), body.clone());
                tokio::spawn(async move { post(&target, path, body).await })
            })
            .collect();
        let mut other = target.connect().await?;
        let mut slowest = Duration::ZERO;
        while hostile.iter().any(|one| !one.is_finished()) {
            let asked = Instant::now();
            other.call(Method::GET, "/api/v1/namespaces/default", Bytes::new()).await?;
            slowest = slowest.max(asked.elapsed());
        }
        let mut broken = 0;
        for one in hostile {
            broken += usize::from(one.await?.is_err());
        }
        report.figure(&format!("  slowest GET beside {AT_ONCE} of them"), slowest.as_secs_f64() * 1e3, "ms", None);
        report.figure("  memory they took at most", server.peak_mb()? - before, "MB", None);
        report.note(&format!("  connections that broke: {broken}"));
    }
    Ok(())
}
