//! Generates the etcd client's messages. `protox` is a protobuf compiler in Rust, so building
//! needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/etcd.proto");
    let files = protox::compile(["proto/etcd.proto"], ["proto"])?;
    let mut build = tonic_prost_build::configure().build_server(false).build_transport(false);
    // A value on its way out is shared with the caller, not copied. On the way in, values are
    // vectors of their own: slices would keep the whole message they came in alive.
    build = build.bytes(".etcdserverpb.PutRequest.value");
    build.compile_fds(files)?;
    Ok(())
}
