//! OpenAPI of other API servers, among our own: their v3 documents are passed on, their v2 definitions merged.
//!
//! What a server says is fetched after a successful check, again once a minute, and only if its fingerprint changed. Of a v2
//! document its paths below the group and version count, and definitions that we do not have under the same name.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, StatusCode, header};
use mainstay_api::openapi::ExtraDefinitions;
use serde_json::Value;

use super::{Aggregator, api_services::RemoteService, proxy};
use crate::api::Api;

const MAX_AGE: Duration = Duration::from_secs(60);
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_INDEX: usize = 1 << 20;
const MAX_V2: usize = 4 << 20;

/// What a server told of its documents.
pub struct RemoteDocuments {
    fetched: Instant,
    /// Where its v3 document is, with its hash: `/openapi/v3/apis/<group>/<version>?hash=…`.
    pub v3_url: Option<String>,
    v2_etag: Option<HeaderValue>,
    v2: Arc<ExtraDefinitions>,
}

/// Asks a server for its documents, unless it was asked of late.
pub async fn refresh(api: &Api, remote: &RemoteService) {
    let known = api.aggregator.documents(&remote.name);
    if known.as_ref().is_some_and(|known| known.fetched.elapsed() < MAX_AGE) {
        return;
    }
    let Ok(fetched) = tokio::time::timeout(FETCH_TIMEOUT, fetch(api, remote, known.as_deref())).await else {
        tracing::debug!(api_service = remote.name, "the server of an APIService sends no OpenAPI in time");
        return;
    };
    let mut discovered = api.aggregator.discovered.write();
    discovered.entry(remote.name.clone()).or_default().documents = Some(Arc::new(fetched));
}

async fn fetch(api: &Api, remote: &RemoteService, known: Option<&RemoteDocuments>) -> RemoteDocuments {
    let RemoteService { group, version, .. } = remote;
    let index = proxy::fetch(api, remote, "/openapi/v3", "application/json", None, MAX_INDEX).await;
    let v3_url = index.ok().filter(|answer| answer.status() == StatusCode::OK).and_then(|answer| {
        let index: Value = serde_json::from_slice(answer.body()).ok()?;
        let url = index["paths"][format!("apis/{group}/{version}")]["serverRelativeURL"].as_str()?.to_owned();
        let path = url.split('?').next().unwrap_or_default();
        (path == format!("/openapi/v3/apis/{group}/{version}")).then_some(url)
    });
    let etag = known.and_then(|known| known.v2_etag.as_ref());
    let unchanged = || known.map(|known| known.v2.clone()).unwrap_or_default();
    let (v2, v2_etag) = match proxy::fetch(api, remote, "/openapi/v2", "application/json", etag, MAX_V2).await {
        Ok(answer) if answer.status() == StatusCode::OK => {
            let etag = answer.headers().get(header::ETAG).cloned();
            let parsed = serde_json::from_slice(answer.body()).unwrap_or_default();
            (Arc::new(of_group_version(parsed, group, version)), etag)
        }
        Ok(answer) if answer.status() == StatusCode::NOT_MODIFIED => (unchanged(), etag.cloned()),
        // It has none.
        Ok(_) => Default::default(),
        Err(_) => (unchanged(), etag.cloned()),
    };
    RemoteDocuments { fetched: Instant::now(), v3_url, v2_etag, v2 }
}

/// What concerns a group and version in a v2 document.
fn of_group_version(document: Value, group: &str, version: &str) -> ExtraDefinitions {
    let members = |name: &str| document[name].as_object().cloned().unwrap_or_default();
    let prefix = format!("/apis/{group}/{version}/");
    let paths: BTreeMap<String, Value> =
        members("paths").into_iter().filter(|(path, _)| path.starts_with(&prefix)).collect();
    ExtraDefinitions { paths, definitions: members("definitions").into_iter().collect() }
}

impl Aggregator {
    fn documents(&self, name: &str) -> Option<Arc<RemoteDocuments>> {
        self.discovered.read().get(name)?.documents.clone()
    }

    /// Where the v3 documents of other servers are, by their path in the index.
    pub fn v3_urls(&self, api: &Api) -> Vec<(String, String)> {
        let remotes = self.remotes(api);
        let urls = remotes.iter().filter_map(|(_, remote)| {
            let url = self.documents(&remote.name)?.v3_url.clone()?;
            Some((format!("apis/{}/{}", remote.group, remote.version), url))
        });
        urls.collect()
    }

    /// What other servers add to the v2 document.
    pub fn v2_definitions(&self, api: &Api) -> Vec<Arc<ExtraDefinitions>> {
        let remotes = self.remotes(api);
        let all = remotes.iter().filter_map(|(_, remote)| Some(self.documents(&remote.name)?.v2.clone()));
        all.filter(|extra| !extra.paths.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_describes_its_own_paths_and_no_others() {
        let document = json!({
            "paths": { "/apis/example.com/v1/foos": {}, "/api/v1/secrets": {}, "/apis/example.com/v1beta1/foos": {} },
            "definitions": { "com.example.v1.Foo": { "type": "object" } },
        });
        let extra = of_group_version(document, "example.com", "v1");
        assert_eq!(extra.paths.keys().collect::<Vec<_>>(), ["/apis/example.com/v1/foos"]);
        assert_eq!(extra.definitions.len(), 1);
        assert!(of_group_version(json!("garbage"), "example.com", "v1").paths.is_empty());
    }
}
