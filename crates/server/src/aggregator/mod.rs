//! API aggregation: groups and versions that another server of the cluster serves, registered by an APIService.
//!
//! * [`api_services`]: which group and version is served by whom, with priorities; the snapshot that requests look at
//! * [`registration`]: an APIService for every group and version that this server serves itself
//! * [`availability`]: the condition `Available` of each APIService, and what its server says of its resources
//! * [`proxy`]: passes requests on, as whom they were authenticated; [`remote_headers`] says so to the other server
//! * [`trust`]: publishes whose word the other servers may take for that
//! * [`extra_openapi`]: the documents of other servers, among our own
//!
//! As upstream, an APIService with a Service goes before a CustomResourceDefinition of the same group and version. Groups and
//! versions of built-in kinds are always served here: an APIService cannot take them away, so none can lock out its own repair.
//! Requests are authorized before they are passed on. Nothing that the client says in `X-Remote-*` headers gets through. Whoever asks,
//! a part of this server included, gets the whole answer within `--request-timeout` or an error; only streams last longer.

pub mod api_services;
pub mod availability;
pub mod extra_openapi;
pub mod proxy;
pub mod registration;
pub mod remote_headers;
pub mod trust;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use mainstay_store::Revision;
use mainstay_tls::RotatingCertificate;
use parking_lot::RwLock;
use serde_json::Value;

pub use self::proxy::{RemoteRequest, is_stream, is_upgrade};
use self::{api_services::RemoteService, extra_openapi::RemoteDocuments};
use crate::{api::Api, http::route::Route, objects::store_cache::StoreCache};

pub const GROUP: &str = "apiregistration.k8s.io";
pub const PLURAL: &str = "apiservices";
pub const COLLECTION: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// What is known of the servers that APIServices name.
pub struct Aggregator {
    /// The APIServices.
    pub(crate) objects: StoreCache,
    /// As whom this server calls others, where it does.
    identity: OnceLock<FrontProxy>,
    /// By the name of the APIService and its revision, so that TLS is set up once.
    remotes: RwLock<HashMap<String, (Revision, Arc<RemoteService>)>>,
    /// By the name of the APIService.
    discovered: RwLock<HashMap<String, Discovered>>,
}

/// The certificate that this server presents to others, and the authority that signed it.
pub struct FrontProxy {
    pub certificate: Arc<RotatingCertificate>,
    pub authority: String,
}

/// What the server of an APIService last said.
#[derive(Clone, Default)]
struct Discovered {
    /// Its `APIResourceList`.
    resources: Option<Arc<Value>>,
    documents: Option<Arc<RemoteDocuments>>,
}

impl Aggregator {
    pub fn new(registry: &mainstay_api::registry::Registry) -> Self {
        Self {
            objects: StoreCache::new(registry, &[(GROUP, PLURAL)]),
            identity: OnceLock::new(),
            remotes: RwLock::default(),
            discovered: RwLock::default(),
        }
    }

    pub fn set_front_proxy(&self, identity: FrontProxy) {
        let _ = self.identity.set(identity); // it is set once
    }

    pub fn front_proxy(&self) -> Option<&FrontProxy> {
        self.identity.get()
    }
}

/// Who else serves what a path asks for; a path below its group and version is a resource, however long.
pub fn find_remote<'p>(api: &Api, path: &'p str, route: Route<'p>) -> (Route<'p>, Option<Arc<RemoteService>>) {
    let found = match &route {
        Route::Resource(resource) => api.aggregator.remote(api, &resource.group, &resource.version),
        Route::GroupVersion { group, version } => api.aggregator.remote(api, group, version),
        Route::Other => {
            let mut segments = path.strip_prefix("/apis/").unwrap_or_default().split('/');
            let (group, version) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
            let found = api.aggregator.remote(api, group, version);
            let route = if found.is_some() { Route::parse_prefix(path).unwrap_or(route) } else { route };
            return (route, found);
        }
        Route::Groups { .. } | Route::Group(_) => None,
    };
    (route, found)
}
