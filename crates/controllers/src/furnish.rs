//! What every namespace contains: the service account `default`, and the certificate by which
//! pods recognise the API server. Made when it is missing and corrected when it is wrong.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};

use crate::{
    failure::{self, Failure},
    runner::Queue,
    shell::{Controller, Plan},
};

pub const SERVICE_ACCOUNT: &str = "default";
pub const ROOT_CA: &str = "kube-root-ca.crt";
const CA_KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const WHAT_IT_IS: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
     distributions of Kubernetes clusters.";

pub struct Furnish {
    client: Client,
    pub queue: Arc<Queue<String>>,
    /// The certificate authority, as PEM.
    root_ca: Arc<str>,
}

impl Furnish {
    pub fn new(client: Client, root_ca: Arc<str>) -> Self {
        Self { client, queue: Queue::new(), root_ca }
    }

    fn accounts(&self, namespace: &str) -> Api<ServiceAccount> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn config_maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

pub struct World {
    account: bool,
    /// As found; its version fences a correction.
    certificate: Option<ConfigMap>,
    root_ca: Arc<str>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    CreateAccount,
    CreateCertificate {
        root_ca: Arc<str>,
    },
    /// Carries the version it corrects.
    CorrectCertificate(Box<ConfigMap>),
}

fn described() -> ObjectMeta {
    let annotations = [(DESCRIPTION.to_owned(), WHAT_IT_IS.to_owned())].into();
    ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
}

fn data(root_ca: &str) -> BTreeMap<String, String> {
    [(CA_KEY.to_owned(), root_ca.to_owned())].into()
}

fn plan(world: &World) -> Vec<Action> {
    let root_ca = || world.root_ca.clone();
    let account = (!world.account).then_some(Action::CreateAccount);
    let certificate = match &world.certificate {
        None => Some(Action::CreateCertificate { root_ca: root_ca() }),
        Some(found) if found.data.as_ref() == Some(&data(&world.root_ca)) => None,
        Some(found) => {
            let mut correct = ConfigMap { data: Some(data(&world.root_ca)), binary_data: None, ..found.clone() };
            correct.metadata.annotations.get_or_insert_default().extend(described().annotations.unwrap_or_default());
            Some(Action::CorrectCertificate(Box::new(correct)))
        }
    };
    account.into_iter().chain(certificate).collect()
}

impl Controller for Furnish {
    const NAME: &'static str = "furnish";
    type Key = String;
    type World = World;
    type Action = Action;
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, Failure> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace =
            namespaces.get_metadata_opt(name).await.map_err(Failure::when(format!("get namespace {name}")))?;
        if namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            return Ok(None);
        }
        let doing = || format!("look into namespace {name}");
        let account = self.accounts(name).get_metadata_opt(SERVICE_ACCOUNT).await.map_err(Failure::when(doing()))?;
        let certificate = self.config_maps(name).get_opt(ROOT_CA).await.map_err(Failure::when(doing()))?;
        Ok(Some(World { account: account.is_some(), certificate, root_ca: self.root_ca.clone() }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, namespace: &String, action: Action) -> Result<(), Failure> {
        let (what, result) = match action {
            Action::CreateAccount => {
                let metadata = ObjectMeta { name: Some(SERVICE_ACCOUNT.to_owned()), ..ObjectMeta::default() };
                let account = ServiceAccount { metadata, ..ServiceAccount::default() };
                let result = self.accounts(namespace).create(&PostParams::default(), &account).await;
                ("create the service account", result.map(drop))
            }
            Action::CreateCertificate { root_ca } => {
                let metadata = ObjectMeta { name: Some(ROOT_CA.to_owned()), ..described() };
                let map = ConfigMap { metadata, data: Some(data(&root_ca)), ..ConfigMap::default() };
                let result = self.config_maps(namespace).create(&PostParams::default(), &map).await;
                ("publish the certificate", result.map(drop))
            }
            Action::CorrectCertificate(map) => {
                let result = self.config_maps(namespace).replace(ROOT_CA, &PostParams::default(), &map).await;
                ("correct the certificate", result.map(drop))
            }
        };
        match result {
            Ok(()) => Ok(()),
            // Made by someone else, or the namespace ended: either is heard of.
            Err(error) if [409, 404].iter().any(|code| failure::is(&error, *code)) => Ok(()),
            Err(error) if terminating(&error) => Ok(()),
            Err(error) => Err(Failure::new(format!("{what} in {namespace}"), error)),
        }
    }
}

fn terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(account: bool, content: Option<&str>) -> World {
        let certificate = content.map(|ca| ConfigMap { data: Some(data(ca)), ..ConfigMap::default() });
        World { account, certificate, root_ca: "CA".into() }
    }

    #[test]
    fn what_is_missing_is_made() {
        assert_eq!(
            plan(&world(false, None)),
            [Action::CreateAccount, Action::CreateCertificate { root_ca: "CA".into() }]
        );
    }

    #[test]
    fn what_is_right_is_left_alone() {
        assert_eq!(plan(&world(true, Some("CA"))), []);
    }

    #[test]
    fn another_certificate_is_corrected() {
        let plan = plan(&world(true, Some("old")));
        let [Action::CorrectCertificate(map)] = &plan[..] else { panic!("{plan:?}") };
        assert_eq!(map.data, Some(data("CA")));
    }
}
