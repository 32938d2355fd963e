//! The API verbs: one implementation of each, for every kind.

pub mod apply;
pub mod binding;
pub mod create;
pub mod delete;
pub mod delete_collection;
pub mod eviction;
pub mod get;
pub mod list;
pub mod patch;
pub mod placements;
pub mod refusal;
pub mod scale;
pub mod token;
pub mod update;
pub mod watch;

use bytes::Bytes;
use http::HeaderMap;

use crate::{
    admission::{Notes, Request},
    api::{Api, Target},
    auth::User,
    fence::Fence,
    http::{negotiate::Accepted, query::Query, reply::RowObject},
    objects::{field_tracking::FieldWriter, guaranteed_update::Part},
};

/// A request for a resource, understood: what the verbs work from.
pub struct Call<'a> {
    pub api: &'a Api,
    pub user: &'a User,
    pub target: Target,
    pub query: Query,
    pub accepted: Accepted,
    /// What rows carry, where the answer is a table.
    pub row: RowObject,
    pub headers: &'a HeaderMap,
    /// What admission says beside its verdict.
    pub notes: Notes,
    pub body: Bytes,
    /// The term of leadership under which the request was made, if it depends on one.
    pub fence: Option<&'a Fence>,
}

impl Call<'_> {
    /// Who sets the fields that this request changes.
    pub fn writer(&self, part: Part) -> FieldWriter {
        FieldWriter::from_request(&self.query, self.headers, self.user, part)
    }

    /// The write as admission sees it.
    pub fn admission(&self) -> Request<'_> {
        Request {
            api: self.api,
            user: self.user,
            target: &self.target,
            part: Part::Main,
            dry_run: self.query.dry_run,
            query: &self.query,
            notes: &self.notes,
            fence: self.fence,
        }
    }
}
