//! Generates the client of CRI runtimes. `protox` is a protobuf compiler in Rust, so building needs
//! no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/cri.proto");
    let files = protox::compile(["proto/cri.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(files)?;
    // A program that can be loaded anywhere has its tables of addresses written at every start: memory of its own for each
    // of the hundreds of shims on a machine. As `crates/mainstay` does.
    println!("cargo:rustc-link-arg-bins=-no-pie");
    Ok(())
}
