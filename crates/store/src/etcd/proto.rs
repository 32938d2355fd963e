//! What `build.rs` makes of `proto/etcd.proto`.

#![allow(clippy::all, missing_docs)]

tonic::include_proto!("etcdserverpb");
