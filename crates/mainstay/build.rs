//! How the program is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A program that can be loaded anywhere has its tables of addresses written at every start, which makes them memory of
    // its own: megabytes in each of the hundreds of shims on a machine. At a fixed place they are shared.
    println!("cargo:rustc-link-arg-bins=-no-pie");
}
