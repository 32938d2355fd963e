//! What `build.rs` makes of `proto/cri.proto`.

#![allow(clippy::all, missing_docs)]

tonic::include_proto!("runtime.v1");
