//! Services with endpoints, templates that read them, and a pod for each template.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::config_template::ConfigTemplate;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Options;

const NAMESPACE: &str = "default";
/// Writes at the same time.
const AT_ONCE: usize = 16;

pub struct Scene {
    pub client: Client,
    pub options: Options,
}

impl Scene {
    fn api<K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create_all<K>(&self, objects: impl Iterator<Item = Value>) -> anyhow::Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + DeserializeOwned,
    {
        let api = self.api::<K>();
        let creates = objects.map(|object| {
            let api = api.clone();
            async move {
                let object: K = serde_json::from_value(object)?;
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        });
        stream::iter(creates).buffer_unordered(AT_ONCE).try_collect().await
    }

    pub async fn create_services(&self) -> anyhow::Result<()> {
        let services = self.options.services;
        self.create_all::<Service>((0..services).map(service)).await?;
        let each = self.options.endpoints.div_ceil(services);
        self.create_all::<EndpointSlice>((0..services).flat_map(|number| slices(number, each))).await
    }

    pub async fn create_templates(&self) -> anyhow::Result<()> {
        let Options { templates, services, .. } = self.options;
        self.create_all::<ConfigTemplate>((0..templates).map(|number| template(number, number % services))).await?;
        self.create_all::<Pod>((0..templates).map(pod)).await
    }

    /// From now on all templates read the same Service.
    pub async fn have_all_read_the_first(&self) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": { "inputs": template(0, 0)["spec"]["inputs"] } }));
        let api = self.api::<ConfigTemplate>();
        let writes = (0..self.options.templates).map(|number| {
            let (api, change) = (api.clone(), change.clone());
            async move { api.patch(&format!("t-{number}"), &PatchParams::default(), &change).await.map(drop) }
        });
        Ok(stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await?)
    }

    /// One address of the first Service becomes another.
    pub async fn change_first_service(&self, round: usize) -> anyhow::Result<()> {
        let slice = slices(0, self.options.endpoints.div_ceil(self.options.services)).next();
        let Some(mut slice) = slice else { anyhow::bail!("there are no endpoints") };
        slice["endpoints"][0]["addresses"] = json!([format!("10.255.{}.{}", round / 250, round % 250 + 1)]);
        let change = Patch::Merge(json!({ "endpoints": slice["endpoints"] }));
        self.api::<EndpointSlice>().patch("s-0-0", &PatchParams::default(), &change).await?;
        Ok(())
    }

    /// Until every template says that its consumers have what is rendered.
    pub async fn until_current(&self, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let is_current = |template: &ConfigTemplate| {
            let status = template.status.clone().unwrap_or_default();
            let conditions = &status.conditions;
            status.observed_generation == template.metadata.generation.unwrap_or_default()
                && conditions.iter().any(|own| own.type_ == "Current" && own.status == "True")
        };
        loop {
            let all = self.api::<ConfigTemplate>().list(&ListParams::default()).await?;
            let waiting: Vec<&ConfigTemplate> = all.iter().filter(|template| !is_current(template)).collect();
            let Some(first) = waiting.first() else { return Ok(()) };
            let said = first.status.as_ref().map(|status| status.conditions.clone());
            anyhow::ensure!(
                begun.elapsed() < patience,
                "{} templates are not current; {}: {said:?}",
                waiting.len(),
                first.name()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn service(number: usize) -> Value {
    json!({ "metadata": { "name": format!("s-{number}") }, "spec": { "ports": [{ "port": 80 }] } })
}

/// A hundred endpoints each, as the controllers make them.
fn slices(service: usize, endpoints: usize) -> impl Iterator<Item = Value> {
    (0..endpoints).step_by(100).enumerate().map(move |(part, first)| {
        let address = |at: usize| {
            let number = service * endpoints + at;
            format!("10.{}.{}.{}", number / 62_500 + 1, number / 250 % 250, number % 250 + 1)
        };
        let all: Vec<Value> = (first..endpoints.min(first + 100))
            .map(|at| json!({ "addresses": [address(at)], "conditions": { "ready": true } }))
            .collect();
        json!({
            "metadata": {
                "name": format!("s-{service}-{part}"), "labels": { "kubernetes.io/service-name": format!("s-{service}") },
            },
            "addressType": "IPv4", "endpoints": all, "ports": [{ "name": "", "port": 80 }],
        })
    })
}

fn template(number: usize, service: usize) -> Value {
    json!({
        "apiVersion": "mainstay.dev/v1", "kind": "ConfigTemplate", "metadata": { "name": format!("t-{number}") },
        "spec": {
            "inputs": [{ "name": "backend", "service": { "name": format!("s-{service}") } }],
            "template": format!("# {number}\n{{% for endpoint in backend.endpoints if endpoint.ready %}}\nserver {{{{ endpoint.address }}}}:80;\n{{% endfor %}}\n"),
            "output": { "configMap": { "name": format!("out-{number}"), "key": "app.conf" } },
            "consumers": [{ "selector": { "matchLabels": { "app": format!("app-{number}") } } }],
            "rollout": { "maxUnavailable": "100%" },
        },
    })
}

/// Bound to no node: pods of a node that does not exist are deleted after a while.
fn pod(number: usize) -> Value {
    json!({
        "metadata": { "name": format!("app-{number}"), "labels": { "app": format!("app-{number}"), "bench": "config" } },
        "spec": {
            "schedulerName": "nobody", "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "v", "configMap": { "name": format!("out-{number}") } }],
        },
    })
}
