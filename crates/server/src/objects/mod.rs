//! API objects: from request bodies to the store, and from the store to the wire.
//!
//! * [`request_object`]: request bodies to objects; [`large_work`]: large ones away from the worker threads
//! * [`metadata`]: the fields all kinds share; [`filter`]: label and field selectors
//! * [`guaranteed_update`]: read, change, compare-and-set; [`scale_view`]: what `/scale` shows of an object
//! * [`field_tracking`]: managed fields of every write; [`kind_types`]: the types that server-side apply walks along
//! * [`object`]: stored bytes to wire bytes; [`keys`]: where objects are stored
//! * [`store_cache`]: objects of a few kinds in memory, current with the store
//! * [`json_members`], [`json_prune`]: parts of a JSON document without parsing the rest

pub mod field_tracking;
pub mod filter;
pub mod guaranteed_update;
pub mod json_members;
pub mod json_prune;
pub mod keys;
pub mod kind_types;
pub mod large_work;
pub mod metadata;
pub mod object;
pub mod request_object;
pub mod scale_view;
pub mod store_cache;
