//! Memory of custom objects beside that of as many ConfigMaps of the same size, each in a server of its own.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::{client::Target, load, report::Report, server::Spawned};

const CLIENTS: usize = 32;
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub async fn run(binary: &Path, definitions: usize, objects: usize, report: &Report) -> anyhow::Result<()> {
    let maps = {
        let server = Spawned::start(binary, None).await?;
        let target = Target::from_kubeconfig(&server.kubeconfig())?;
        load::fill(&target, "custom", objects).await?;
        let rss = server.rss_mb()?;
        server.stop().await?;
        rss
    };
    report.figure(&format!("custom: memory with {objects} ConfigMaps (RSS)"), maps, "MB", None);
    let server = Spawned::start(binary, None).await?;
    let target = Target::from_kubeconfig(&server.kubeconfig())?;
    define(&target, definitions).await?;
    let defined = server.rss_mb()?;
    report.figure(&format!("custom: memory with {definitions} CustomResourceDefinitions (RSS)"), defined, "MB", None);
    fill(&target, definitions, objects).await?;
    let custom = server.rss_mb()?;
    let name = format!("custom: memory with {definitions} definitions and {objects} objects (RSS)");
    report.figure(&name, custom, "MB", Some(("twice the ConfigMaps", maps * 2.0)));
    report.note(&format!("custom / ConfigMaps: {:.2} (limit 2)", custom / maps));
    server.stop().await?;
    Ok(())
}

/// Of the size and shape of a middling operator's: some hundred fields with descriptions, patterns and lists.
fn definition(n: usize) -> Value {
    let text = "What the field is for, in about as many words as the authors of operators write about their fields, more or less.";
    let field = |m: usize| {
        let schema = match m % 4 {
            0 => {
                json!({"type": "string", "description": text, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
            }
            1 => json!({"type": "integer", "description": text, "minimum": 0, "default": m}),
            2 => json!({"type": "array", "description": text, "items": {"type": "object", "properties": {
                "name": {"type": "string", "description": text}, "value": {"type": "string", "description": text},
            }}}),
            _ => json!({"type": "object", "description": text, "additionalProperties": {"type": "string"}}),
        };
        (format!("field{m}"), schema)
    };
    let mut fields: serde_json::Map<String, Value> = (0..120).map(field).collect();
    fields.insert("payload".to_owned(), json!({"type": "string"}));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("bench{n}s.bench.example.com")},
        "spec": {
            "group": "bench.example.com", "scope": "Namespaced", "names": {"plural": format!("bench{n}s"), "kind": format!("Bench{n}")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": fields},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
                "additionalPrinterColumns": [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            }],
        },
    })
}

async fn define(target: &Target, count: usize) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    for n in 0..count {
        connection.call(Method::POST, DEFINITIONS, definition(n).to_string().into()).await.context("define a kind")?;
    }
    Ok(())
}

async fn fill(target: &Target, definitions: usize, count: usize) -> anyhow::Result<()> {
    let namespace: Arc<str> = load::make_namespace(target).await?.into();
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (target, namespace) = (target.clone(), namespace.clone());
            tokio::spawn(async move {
                let mut connection = target.connect().await?;
                for n in (client..count).step_by(CLIENTS) {
                    let kind = n % definitions.max(1);
                    let path = format!("/apis/bench.example.com/v1/namespaces/{namespace}/bench{kind}s");
                    connection.call(Method::POST, &path, object(kind, n)).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// As large as the ConfigMaps; the defaults of the definition are written out so that both are stored alike.
fn object(kind: usize, n: usize) -> Bytes {
    let mut spec: serde_json::Map<String, Value> =
        (0..120).filter(|m| m % 4 == 1).map(|m| (format!("field{m}"), json!(m))).collect();
    spec.insert("payload".to_owned(), json!(format!("{n:016x}").repeat(36)));
    let object = json!({
        "apiVersion": "bench.example.com/v1", "kind": format!("Bench{kind}"), "metadata": {"name": format!("c{n:06}")}, "spec": spec,
    });
    object.to_string().into()
}
