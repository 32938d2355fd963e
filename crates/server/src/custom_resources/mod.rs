//! Custom resources: from stored CustomResourceDefinitions to kinds that are served.
//!
//! * [`served_kinds`]: the built-in kinds and those of definitions, as one immutable snapshot that requests look at
//! * [`follow`]: keeps the snapshot up to date with the store, and the status of definitions with the names that are free
//! * [`webhook_conversion`]: conversion between versions by a webhook
//! * [`deletion`]: deletes all objects of a definition that is being deleted, then the definition
//!
//! A definition takes effect with the commit that writes it: whoever gets the answer to the write finds the kind served.

pub mod deletion;
pub mod follow;
pub mod served_kinds;
pub mod webhook_conversion;

use bytes::Bytes;
use mainstay_api::{crd, descriptor::Descriptor};
use mainstay_store::{Op, Txn};
use serde_json::Value;

use crate::{
    admission::{Notes, Request},
    api::{self, Api, Target},
    auth::User,
    http::query::Query,
    objects::guaranteed_update::Part,
};

/// Where definitions are stored.
pub const PREFIX: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

pub fn is_definition(d: &Descriptor) -> bool {
    d.group == crd::GROUP && d.plural == crd::PLURAL
}

/// Completes a definition that is about to be written with the status that follows from it and from the names that others have.
pub fn set_status(api: &Api, d: &Descriptor, definition: &mut Value) {
    if is_definition(d) {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let taken = api.served.taken_names(group, name);
        definition["status"] = crd::status::plan(definition, &taken, api::now());
    }
}

/// The definitions that a transaction writes, or deletes. Mostly none.
pub fn written_definitions(txn: &Txn) -> Vec<(String, Option<Bytes>)> {
    let name = |key: &str| key.strip_prefix(PREFIX).map(str::to_owned);
    let written = txn.ops.iter().filter_map(|op| match op {
        Op::Put { key, value } => Some((name(key)?, Some(value.clone()))),
        Op::Delete { key } => Some((name(key)?, None)),
    });
    written.collect()
}

/// Who writes on behalf of definitions: a part of the server itself.
struct Writer {
    user: User,
    query: Query,
    notes: Notes,
}

impl Writer {
    fn new() -> Self {
        Self { user: User::internal("custom-resources"), query: Query::default(), notes: Notes::default() }
    }

    fn request<'a>(&'a self, api: &'a Api, target: &'a Target) -> Request<'a> {
        let Self { user, query, notes } = self;
        Request { api, user, target, part: Part::Main, dry_run: false, query, notes, fence: None }
    }
}
