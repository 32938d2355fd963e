//! The kinds Mainstay serves, and everything about them that needs no I/O:
//! descriptors, schema, defaulting, validation, patches, selectors and table columns.
//!
//! * [`descriptor`]: what one resource is; [`registry`]: all of them
//! * [`groups`]: the API groups: descriptors, defaulting and validation, table columns
//! * [`validation`]: what the groups' validation shares
//! * [`convert`]: two served versions of one stored kind
//! * [`crd`]: custom kinds: from a CustomResourceDefinition to a descriptor
//! * [`table`]: what tables for `kubectl get` are built of
//! * [`schema`]: what fields the kinds have; [`decode`], [`patch`], [`selector`], [`quantity`]: the
//!   languages that requests are written in; [`encode`]: YAML in responses
//! * [`apply`]: server-side apply: managed fields, merging, conflicts
//! * [`openapi`]: the documents that clients learn the API from
//! * [`matching`]: what selectors, affinities and tolerations mean
//! * [`pod`], [`ports`], [`node`], [`resources`], [`duration`], [`wellknown`]: rules and names that several parts must agree on
//! * [`heal`]: how pods are healed, as their annotation says
//! * [`needs`]: what a pod needs before it starts, as its annotation says
//! * [`exclusive`]: what only one pod of a set does at a time, as its annotation says
//! * [`config_versions`]: which versions of ConfigMaps and Secrets a pod reads
//! * [`quota`]: what a ResourceQuota counts
//! * [`references`]: which objects a pod refers to
//! * [`node_loss`]: when a silent node counts as lost, and what may then be started elsewhere
//! * [`config_template`]: the kind ConfigTemplate: configuration that is rendered and reaches pods in waves
//! * [`machine_file`]: the kind MachineFile: a version of such configuration that a machine has as a file
//! * [`own_object`]: kinds of our own: [`machine`], [`release`] (and its checks: [`release_gate`]), [`cloud`], [`config_template`],
//!   [`machine_file`]; those in which nodes report about themselves: [`offer`], [`service_table`]
//! * [`pod_range_routes`]: what a route controller, servers and agents agree on about routes to pod ranges
//! * [`roles`]: parts of machines that are reserved, and which of them a pod may use
//! * [`narrow`]: kinds of which only a few fields are read
//! * [`text_decoders`]: decoders that several crates share
//! * [`service`]: what Services ask for in annotations of ours
//! * [`int_or_percent`]: a number, or a percentage of another
//! * [`field`]: field paths and field errors in the API's own words

pub mod apply;
pub mod cinder;
pub mod cloud;
pub mod config_template;
pub mod config_versions;
pub mod convert;
pub mod crd;
pub mod decode;
pub mod descriptor;
pub mod duration;
pub mod encode;
pub mod exclusive;
pub mod field;
pub mod groups;
pub mod heal;
pub mod host_service;
pub mod int_or_percent;
pub mod machine;
pub mod machine_file;
pub mod matching;
pub mod narrow;
pub mod needs;
pub mod node;
pub mod node_loss;
pub mod offer;
pub mod openapi;
pub mod own_object;
pub mod patch;
pub mod pod;
pub mod pod_range_routes;
pub mod ports;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod references;
pub mod registry;
pub mod release;
pub mod release_gate;
pub mod resources;
pub mod roles;
pub mod schema;
pub mod selector;
pub mod service;
pub mod service_table;
pub mod signing_request;
pub mod strategy;
pub mod table;
pub mod text_decoders;
pub mod validation;
pub mod wellknown;

pub use k8s_openapi;
