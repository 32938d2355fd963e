//! What each path of the REST API does.

use std::{future::Future, sync::Arc};

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::{
    kluster::{ACCOUNT_LABEL, TERMINATION_PROTECTION},
    kubernikus::GROUP,
};
use mainstay_errors::error_chain;
use serde_json::{Value, json};

use super::{
    model::{change, new_object, object_name, shown, shown_event},
    policy::{Operation, is_allowed},
};
use crate::{
    klusters::{self, kubeconfig_secret},
    openstack::{CloudError, SecretText, Session, identity::TokenInfo},
};

/// Where tokens are judged: Keystone, or a test.
pub trait TokenValidator: Send + Sync + 'static {
    /// What a token says; nothing if it is not valid.
    fn validate(&self, token: &SecretText) -> impl Future<Output = Result<Option<TokenInfo>, CloudError>> + Send;
}

impl TokenValidator for Session {
    async fn validate(&self, token: &SecretText) -> Result<Option<TokenInfo>, CloudError> {
        self.identity().validate_token(token).await
    }
}

#[derive(Clone, Debug)]
pub struct FacadeSettings {
    /// The namespace of all Klusters that are made here.
    pub namespace: String,
    /// Shown at `/info`.
    pub version: String,
}

pub struct Facade<V> {
    client: Client,
    validator: V,
    /// For what a project has in the cloud; nothing is shown without it.
    session: Option<Session>,
    settings: FacadeSettings,
}

/// An answer that is not the one wished for.
#[derive(Debug)]
pub struct FacadeError {
    pub code: StatusCode,
    pub message: String,
}

type FacadeResult = Result<(StatusCode, Value), FacadeError>;

fn refuse(code: StatusCode, message: impl Into<String>) -> FacadeError {
    FacadeError { code, message: message.into() }
}

/// What the Kubernetes API answered. A 422 is a bad request here: its message names the field.
fn from_kube(failure: kube::Error) -> FacadeError {
    match failure {
        kube::Error::Api(status) => {
            let code = match status.code {
                422 => StatusCode::BAD_REQUEST,
                code => StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY),
            };
            refuse(code, status.message.clone())
        }
        other => {
            tracing::warn!(error = error_chain(&other), "the API did not answer the façade");
            refuse(StatusCode::SERVICE_UNAVAILABLE, "the API does not answer")
        }
    }
}

/// Somebody with a valid token of a project.
struct Caller {
    token: TokenInfo,
    project: String,
    roles: Vec<String>,
}

impl Caller {
    fn may(&self, operation: Operation) -> Result<(), FacadeError> {
        match is_allowed(operation, &self.roles) {
            true => Ok(()),
            false => Err(refuse(StatusCode::FORBIDDEN, "your roles in this project do not allow this")),
        }
    }
}

impl<V: TokenValidator> Facade<V> {
    pub fn new(client: Client, validator: V, session: Option<Session>, settings: FacadeSettings) -> Arc<Self> {
        Arc::new(Self { client, validator, session, settings })
    }

    /// Answers a request; `body` is what it brought.
    pub async fn answer(&self, method: &Method, path: &str, token: Option<&str>, body: &[u8]) -> FacadeResult {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method, segments.as_slice()) {
            (&Method::GET, ["info"]) => return Ok((StatusCode::OK, json!({"version": self.settings.version}))),
            (&Method::GET, ["api"]) => return Ok((StatusCode::OK, json!({"versions": ["v1"]}))),
            _ => {}
        }
        let ["api", "v1", rest @ ..] = segments.as_slice() else {
            return Err(refuse(StatusCode::NOT_FOUND, "no such path"));
        };
        let caller = self.authenticate(token).await?;
        match (method.as_str(), rest) {
            ("GET", ["openstack", "metadata"]) => self.show_metadata(&caller).await,
            ("GET", ["clusters"]) => self.list(&caller).await,
            ("POST", ["clusters"]) => self.create(&caller, body).await,
            ("GET", ["clusters", name]) => self.show(&caller, name).await,
            ("PUT", ["clusters", name]) => self.update(&caller, name, body).await,
            ("DELETE", ["clusters", name]) => self.terminate(&caller, name).await,
            ("GET", ["clusters", name, "credentials"]) => self.credentials(&caller, name).await,
            ("GET", ["clusters", name, "info"]) => self.info(&caller, name).await,
            ("GET", ["clusters", name, "events"]) => self.events(&caller, name).await,
            (_, ["clusters"] | ["clusters", _] | ["openstack", "metadata"]) => {
                Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "the method is not allowed here"))
            }
            _ => Err(refuse(StatusCode::NOT_FOUND, "no such path")),
        }
    }

    async fn authenticate(&self, token: Option<&str>) -> Result<Caller, FacadeError> {
        let unauthorized = || refuse(StatusCode::UNAUTHORIZED, "X-Auth-Token has no valid token of a project");
        let token = token.filter(|token| !token.is_empty()).ok_or_else(unauthorized)?;
        let found = self.validator.validate(&SecretText::new(token)).await.map_err(|failure| {
            tracing::warn!(error = error_chain(&failure), "Keystone cannot judge a token");
            refuse(StatusCode::SERVICE_UNAVAILABLE, "Keystone does not answer")
        })?;
        let token = found.ok_or_else(unauthorized)?;
        let project = token.project.as_ref().map(|project| project.id.clone()).ok_or_else(unauthorized)?;
        let roles = token.roles.iter().map(|role| role.name.clone()).collect();
        Ok(Caller { token, project, roles })
    }

    fn klusters(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, "v1", "Kluster");
        let resource = ApiResource::from_gvk_with_plural(&kind, "klusters");
        Api::namespaced_with(self.client.clone(), &self.settings.namespace, &resource)
    }

    /// The project's own Kluster of this name, whoever else has one.
    async fn find(&self, caller: &Caller, name: &str) -> Result<(String, Value), FacadeError> {
        let missing = || refuse(StatusCode::NOT_FOUND, "no such cluster in this project");
        let is_name =
            !name.is_empty() && name.len() <= 20 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let object = object_name(name, &caller.project);
        let found = if is_name { self.klusters().get_opt(&object).await.map_err(from_kube)? } else { None };
        let found = serde_json::to_value(found.ok_or_else(missing)?).unwrap_or_default();
        match found["metadata"]["labels"][ACCOUNT_LABEL] == caller.project.as_str() {
            true => Ok((object, found)),
            false => Err(missing()),
        }
    }

    async fn list(&self, caller: &Caller) -> FacadeResult {
        caller.may(Operation::ListClusters)?;
        let of_project = ListParams::default().labels(&format!("{ACCOUNT_LABEL}={}", caller.project));
        let found = self.klusters().list(&of_project).await.map_err(from_kube)?;
        let objects = found.items.iter().map(|object| serde_json::to_value(object).unwrap_or_default());
        Ok((StatusCode::OK, objects.map(|object| shown(&object)).collect()))
    }

    async fn show(&self, caller: &Caller, name: &str) -> FacadeResult {
        caller.may(Operation::ShowCluster)?;
        let (_, object) = self.find(caller, name).await?;
        Ok((StatusCode::OK, shown(&object)))
    }

    async fn create(&self, caller: &Caller, body: &[u8]) -> FacadeResult {
        caller.may(Operation::CreateCluster)?;
        let body = parse(body)?;
        let name = body["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "name: Required value"))?;
        let object = new_object(&body, name, &caller.project, &caller.token);
        let object: DynamicObject = serde_json::from_value(object).map_err(|_| malformed())?;
        let params = PostParams { field_manager: Some("kubernikus".to_owned()), ..PostParams::default() };
        let created = self.klusters().create(&params, &object).await.map_err(from_kube)?;
        Ok((StatusCode::CREATED, shown(&serde_json::to_value(created).unwrap_or_default())))
    }

    async fn update(&self, caller: &Caller, name: &str, body: &[u8]) -> FacadeResult {
        caller.may(Operation::UpdateCluster)?;
        let body = parse(body)?;
        let (object, found) = self.find(caller, name).await?;
        let mut patch = change(&body);
        patch["metadata"] =
            json!({"uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]});
        let params = PatchParams { field_manager: Some("kubernikus".to_owned()), ..PatchParams::default() };
        let changed = self.klusters().patch(&object, &params, &Patch::Merge(patch)).await.map_err(from_kube)?;
        Ok((StatusCode::OK, shown(&serde_json::to_value(changed).unwrap_or_default())))
    }

    async fn terminate(&self, caller: &Caller, name: &str) -> FacadeResult {
        caller.may(Operation::TerminateCluster)?;
        let (object, found) = self.find(caller, name).await?;
        let protection = found["metadata"]["annotations"][TERMINATION_PROTECTION].as_str().unwrap_or_default();
        if !protection.is_empty() {
            return Err(refuse(StatusCode::FORBIDDEN, "the cluster is protected from termination"));
        }
        self.klusters().delete(&object, &DeleteParams::background()).await.map(drop).map_err(from_kube)?;
        Ok((StatusCode::ACCEPTED, Value::Null))
    }

    async fn credentials(&self, caller: &Caller, name: &str) -> FacadeResult {
        caller.may(Operation::GetCredentials)?;
        let (object, _) = self.find(caller, name).await?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        let secret = secrets.get_opt(&kubeconfig_secret(&object)).await.map_err(from_kube)?;
        let text = secret.and_then(|secret| {
            let text = secret.data?.remove(klusters::KUBECONFIG)?;
            String::from_utf8(text.0).ok()
        });
        match text {
            Some(text) => Ok((StatusCode::OK, json!({"kubeconfig": text}))),
            None => Err(refuse(StatusCode::CONFLICT, "the cluster has no credentials yet; it is not Running")),
        }
    }

    async fn info(&self, caller: &Caller, name: &str) -> FacadeResult {
        caller.may(Operation::GetInfo)?;
        let (_, object) = self.find(caller, name).await?;
        let command = format!(
            "kubectl config set-cluster {name} --server={}",
            object["status"]["apiserver"].as_str().unwrap_or_default()
        );
        Ok((StatusCode::OK, json!({"setupCommand": command, "binaries": []})))
    }

    async fn events(&self, caller: &Caller, name: &str) -> FacadeResult {
        caller.may(Operation::GetEvents)?;
        let (object, found) = self.find(caller, name).await?;
        let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
        let selector = format!("involvedObject.kind=Kluster,involvedObject.name={object},involvedObject.uid={uid}");
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        let events = events.list(&ListParams::default().fields(&selector)).await.map_err(from_kube)?;
        Ok((StatusCode::OK, events.items.iter().map(shown_event).collect()))
    }

    async fn show_metadata(&self, caller: &Caller) -> FacadeResult {
        caller.may(Operation::GetOpenStackMetadata)?;
        let unavailable = |failure: CloudError| {
            tracing::warn!(error = error_chain(&failure), "the cloud did not answer the façade");
            refuse(StatusCode::SERVICE_UNAVAILABLE, "the cloud does not answer")
        };
        let Some(session) = &self.session else {
            return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "no cloud is configured"));
        };
        let project = klusters::observe_project(session, &caller.project).await.map_err(unavailable)?;
        let flavors = session.compute().list_flavors().await.map_err(unavailable)?;
        let zones = session.compute().list_availability_zones().await.map_err(unavailable)?;
        let routers = project.routers.iter().map(|router| {
            let networks = router.networks.iter().map(|network| {
                json!({"id": network.id, "subnets": network.subnets.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()})
            });
            json!({"id": router.id, "externalNetworkID": router.external_network, "networks": networks.collect::<Vec<_>>()})
        });
        let flavors =
            flavors.iter().map(|own| json!({"id": own.id, "name": own.name, "ram": own.ram, "vcpus": own.vcpus}));
        Ok((
            StatusCode::OK,
            json!({
                "routers": routers.collect::<Vec<_>>(),
                "flavors": flavors.collect::<Vec<_>>(),
                "availabilityZones": zones.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
                "securityGroups": project.security_groups.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
                "keyPairs": [],
            }),
        ))
    }
}

fn malformed() -> FacadeError {
    refuse(StatusCode::BAD_REQUEST, "the body is not a JSON object of a cluster")
}

fn parse(body: &[u8]) -> Result<Value, FacadeError> {
    serde_json::from_slice(body).ok().filter(Value::is_object).ok_or_else(malformed)
}

#[cfg(test)]
mod tests;
