//! Compiles the protobuf messages; `protox` does it without a `protoc` on the machine.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/openapi_v2.proto"], ["proto"])?;
    prost_build::compile_fds(files)?;
    Ok(())
}
