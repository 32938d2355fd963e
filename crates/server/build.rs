//! Generates the messages to KMS plugins. `protox` is a protobuf compiler in Rust, so building needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/kms.proto");
    let files = protox::compile(["proto/kms.proto"], ["proto"])?;
    prost_build::Config::new().btree_map(["."]).compile_fds(files)?;
    Ok(())
}
