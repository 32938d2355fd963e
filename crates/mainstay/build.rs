//! How the program is linked.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A program that can be loaded anywhere has its tables of addresses written at every start, which makes them memory of
    // its own: megabytes in each of the hundreds of shims on a machine. At a fixed place they are shared.
    println!("cargo:rustc-link-arg-bins=-no-pie");
    // Generic code that several crates instantiate for the same types is there once for each of them. LLD, the linker that comes with Rust, has
    // functions of which every instruction is the same be one. Nothing in the program compares addresses of functions.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") && has_lld() {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Whether this Rust links with an LLD of its own; compilers of distributions may not.
fn has_lld() -> bool {
    let variable = |name| env::var(name).unwrap_or_default();
    let target = variable("TARGET");
    if target != "x86_64-unknown-linux-gnu" {
        return false;
    }
    let sysroot = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    PathBuf::from(sysroot).join("lib/rustlib").join(target).join("bin/gcc-ld/ld.lld").exists()
}
