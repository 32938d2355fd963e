//! Secrets get the token of the service account that they name, and go with it.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use mainstay_controllers::{Settings, TokenSignError, TokenSigner, TokenSubject};
use serde_json::json;

use crate::cluster::{Cluster, ROOT_CA, until};

/// Names whose token it would be.
struct NamingSigner;

impl TokenSigner for NamingSigner {
    fn sign<'a>(&'a self, subject: &'a TokenSubject) -> BoxFuture<'a, Result<String, TokenSignError>> {
        let TokenSubject { namespace, account, account_uid, secret } = subject;
        let token = format!("{namespace}/{account}/{account_uid}/{secret}");
        async { Ok(token) }.boxed()
    }
}

fn secret(name: &str, account: &str) -> Secret {
    let annotations = json!({ "kubernetes.io/service-account.name": account });
    let metadata = json!({ "name": name, "annotations": annotations });
    serde_json::from_value(json!({ "metadata": metadata, "type": "kubernetes.io/service-account-token" })).unwrap()
}

#[tokio::test]
pub async fn a_secret_gets_the_token_of_its_account_and_goes_with_it() {
    let settings = Settings { token_signer: Some(Arc::new(NamingSigner)), ..Settings::default() };
    let cluster = Cluster::start_as(settings).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    let bot = serde_json::from_value(json!({ "metadata": { "name": "bot" } })).unwrap();
    let bot = accounts.create(&PostParams::default(), &bot).await.expect("create an account");
    let uid = bot.metadata.uid.expect("a uid");
    secrets.create(&PostParams::default(), &secret("full", "bot")).await.expect("create a secret");
    let expected = format!("default/bot/{uid}/full");
    until("it has its token", async || {
        let data = secrets.get("full").await.expect("the secret").data.unwrap_or_default();
        let text = |key: &str| data.get(key).map(|value| String::from_utf8_lossy(&value.0).into_owned());
        text("token").as_ref() == Some(&expected)
            && text("ca.crt").as_deref() == Some(ROOT_CA)
            && text("namespace").as_deref() == Some("default")
    })
    .await;
    secrets.create(&PostParams::default(), &secret("stray", "nobody")).await.expect("create a secret");
    let gone = async |name: &str| secrets.get_opt(name).await.expect("get a secret").is_none();
    until("a secret of no account is gone", async || gone("stray").await).await;
    accounts.delete("bot", &DeleteParams::default()).await.expect("delete the account");
    until("the secret goes with its account", async || gone("full").await).await;
    cluster.stop().await;
}
