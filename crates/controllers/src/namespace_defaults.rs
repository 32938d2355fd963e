//! Namespace defaults: the service account `default` and the ConfigMap `kube-root-ca.crt` of every namespace.
//!
//! Created when missing and corrected when changed. Pods need the first to run and the second to recognise the API
//! server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams};

use crate::runtime::{
    ApiError, Context, Controller, Limits, Plan, Runnable, context::resync_every, error, metadata_watch::MetadataEvent,
};

pub const SERVICE_ACCOUNT: &str = mainstay_api::wellknown::DEFAULT_SERVICE_ACCOUNT;
pub const ROOT_CA: &str = mainstay_api::wellknown::ROOT_CA_CONFIG_MAP;
const CA_KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIPTION_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
     distributions of Kubernetes clusters.";

/// How often every namespace is looked at even if nothing changes.
const RESYNC: Duration = Duration::from_secs(600);

pub struct NamespaceDefaults {
    context: Arc<Context>,
    /// The certificate authority of the API server, as PEM.
    root_ca: Arc<str>,
}

pub fn controller(context: &Arc<Context>, root_ca: Arc<str>) -> Runnable {
    let queue = context.queue::<NamespaceDefaults>();
    let (add, namespaces) = (queue.clone(), context.caches.namespaces.clone());
    let add_all =
        move || namespaces.all().iter().for_each(|one| add.add(one.metadata.name.clone().unwrap_or_default()));
    context.caches.namespaces.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none()) {
                queue.add(change.key.name.clone());
            }
        }
    });
    context.metadata.on_event({
        let queue = queue.clone();
        move |resource, event| {
            let (MetadataEvent::Applied(meta) | MetadataEvent::Deleted(meta)) = event else { return };
            let name = meta.name.as_deref().unwrap_or_default();
            let ours = (resource.is_named("", "serviceaccounts") && name == SERVICE_ACCOUNT)
                || (resource.is_named("", "configmaps") && name == ROOT_CA);
            if let Some(namespace) = meta.namespace.as_ref().filter(|_| ours) {
                queue.add(namespace.clone());
            }
        }
    });
    let defaults = NamespaceDefaults { context: context.clone(), root_ca };
    context.runnable(Arc::new(defaults), queue, Limits::default()).alongside(resync_every(RESYNC, add_all))
}

impl NamespaceDefaults {
    fn accounts(&self, namespace: &str) -> Api<ServiceAccount> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn config_maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.context.client.clone(), namespace)
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

fn described_meta() -> ObjectMeta {
    let annotations = [(DESCRIPTION.to_owned(), DESCRIPTION_TEXT.to_owned())].into();
    ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
}

fn ca_data(root_ca: &str) -> BTreeMap<String, String> {
    [(CA_KEY.to_owned(), root_ca.to_owned())].into()
}

fn plan(world: &World) -> Vec<Action> {
    let root_ca = || world.root_ca.clone();
    let account = (!world.account).then_some(Action::CreateAccount);
    let certificate = match &world.certificate {
        None => Some(Action::CreateCertificate { root_ca: root_ca() }),
        Some(found) if found.data.as_ref() == Some(&ca_data(&world.root_ca)) => None,
        Some(found) => {
            let mut correct = ConfigMap { data: Some(ca_data(&world.root_ca)), binary_data: None, ..found.clone() };
            correct
                .metadata
                .annotations
                .get_or_insert_default()
                .extend(described_meta().annotations.unwrap_or_default());
            Some(Action::CorrectCertificate(Box::new(correct)))
        }
    };
    account.into_iter().chain(certificate).collect()
}

impl Controller for NamespaceDefaults {
    const NAME: &'static str = "root_ca_cert_publisher";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
        let namespace =
            namespaces.get_metadata_opt(name).await.map_err(ApiError::when(format!("get namespace {name}")))?;
        if namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            return Ok(None);
        }
        let doing = || format!("read the defaults of namespace {name}");
        let account = self.accounts(name).get_metadata_opt(SERVICE_ACCOUNT).await.map_err(ApiError::when(doing()))?;
        let certificate = self.config_maps(name).get_opt(ROOT_CA).await.map_err(ApiError::when(doing()))?;
        Ok(Some(World { account: account.is_some(), certificate, root_ca: self.root_ca.clone() }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, namespace: &String, action: Action) -> Result<(), ApiError> {
        let (what, result) = match action {
            Action::CreateAccount => {
                let metadata = ObjectMeta { name: Some(SERVICE_ACCOUNT.to_owned()), ..ObjectMeta::default() };
                let account = ServiceAccount { metadata, ..ServiceAccount::default() };
                let result = self.accounts(namespace).create(&PostParams::default(), &account).await;
                ("create the service account", result.map(drop))
            }
            Action::CreateCertificate { root_ca } => {
                let metadata = ObjectMeta { name: Some(ROOT_CA.to_owned()), ..described_meta() };
                let map = ConfigMap { metadata, data: Some(ca_data(&root_ca)), ..ConfigMap::default() };
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
            // Somebody else was faster, or the namespace is gone: the next change tells.
            Err(error) if [409, 404].iter().any(|code| error::has_code(&error, *code)) => Ok(()),
            Err(error) if error::is_namespace_terminating(&error) => Ok(()),
            Err(error) => Err(ApiError::new(format!("{what} in {namespace}"), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(account: bool, content: Option<&str>) -> World {
        let certificate = content.map(|ca| ConfigMap { data: Some(ca_data(ca)), ..ConfigMap::default() });
        World { account, certificate, root_ca: "CA".into() }
    }

    #[test]
    fn what_is_missing_is_created() {
        assert_eq!(
            plan(&world(false, None)),
            [Action::CreateAccount, Action::CreateCertificate { root_ca: "CA".into() }]
        );
    }

    #[test]
    fn what_is_correct_is_left_alone() {
        assert_eq!(plan(&world(true, Some("CA"))), []);
    }

    #[test]
    fn another_certificate_is_corrected() {
        let plan = plan(&world(true, Some("old")));
        let [Action::CorrectCertificate(map)] = &plan[..] else { panic!("{plan:?}") };
        assert_eq!(map.data, Some(ca_data("CA")));
    }
}
