//! Programs that `tools/test-deps` fetches.

use std::path::{Path, PathBuf};

/// The path of a program, say `bin/kubectl-1.32`, below `.tools` or the directory that `MAINSTAY_TOOLS` names.
///
/// A test without its program fails: passing would claim something that nobody looked at.
#[track_caller]
pub fn tool(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels down");
    let tools = std::env::var_os("MAINSTAY_TOOLS").map_or_else(|| root.join(".tools"), PathBuf::from);
    let path = tools.join(name);
    assert!(path.exists(), "{} is missing: run tools/test-deps", path.display());
    path
}
