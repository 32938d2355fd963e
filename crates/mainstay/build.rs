//! How the program is linked, and which commit it is built of.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

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
    set_version();
}

/// What `/version` says. Outside a checkout, and where `git` is missing, it is as little as upstream says then.
///
/// The script runs again when a commit is made or checked out, not with every change of a file: then this crate would be
/// compiled every time. So the state of the tree is that of when the script ran.
fn set_version() {
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    // A copy of the sources within somebody else's checkout is not of its commit.
    let is_root = || {
        git(&root, &["rev-parse", "--show-toplevel"])
            .is_some_and(|top| root.canonicalize().is_ok_and(|root| root == Path::new(&top)))
    };
    let commit = is_root().then(|| git(&root, &["rev-parse", "HEAD"])).flatten();
    let (mut state, mut date) = (String::new(), None);
    if commit.is_some() {
        for file in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&root, &["rev-parse", "--git-path", file]).map(|path| root.join(path))
                && path.exists()
            {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
        let is_clean =
            git(&root, &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| list.is_empty());
        state = if is_clean { "clean" } else { "dirty" }.to_owned();
        // Of the commit, so that two builds of it are the same.
        date = git(&root, &["show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "HEAD"]);
    }
    let given = env::var("SOURCE_DATE_EPOCH").ok();
    let date = given.and_then(|seconds| format_date(&seconds)).or(date);
    println!("cargo:rustc-env=MAINSTAY_GIT_COMMIT={}", commit.unwrap_or_default());
    println!("cargo:rustc-env=MAINSTAY_GIT_TREE_STATE={state}");
    println!("cargo:rustc-env=MAINSTAY_BUILD_DATE={}", date.as_deref().unwrap_or("1970-01-01T00:00:00Z"));
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).env("TZ", "UTC").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn format_date(seconds: &str) -> Option<String> {
    let at = format!("@{}", seconds.parse::<u64>().ok()?);
    let output = Command::new("date").args(["-u", "-d", &at, "+%Y-%m-%dT%H:%M:%SZ"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
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
