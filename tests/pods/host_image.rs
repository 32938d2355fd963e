//! What pods of the image `host` see of the machine: its programs, and no instance's data directory.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
};

use serde_json::json;

use super::{once, printed};
use crate::harness::{Kubectl, Version, eventually};

/// A server of another instance.
struct OtherInstance(Child);

impl Drop for OtherInstance {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_data_directory_of_another_instance_is_hidden() {
    let k = Kubectl::with_pods(Version::V1_32);
    // The image shows nothing of /tmp, so there it could not be seen anyway.
    let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir_in("/var/lib").expect("make a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("open it");
    let data_dir = dir.path().join("data");
    let _other = OtherInstance(
        Command::new(env!("CARGO_BIN_EXE_mainstay"))
            .args(["server", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start another instance"),
    );
    eventually("the other instance has a store", || data_dir.join("store/store.db").exists().then_some(()));
    fs::write(dir.path().join("beside"), "").expect("write a file");
    let list =
        format!("ls {parent}; ls -A {data}; ls /etc/passwd", parent = dir.path().display(), data = data_dir.display());
    k.create(&once("list", &list, json!({}), json!({})));
    assert_eq!(printed(&k, "list"), "beside\ndata\n/etc/passwd");
}

#[test]
fn files_that_other_users_may_not_read_are_not_shown() {
    let k = Kubectl::with_pods(Version::V1_32);
    let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir_in("/var/lib").expect("make a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("close it");
    fs::write(dir.path().join("secret"), "key").expect("write a file");
    let closed = dir.path().display();
    let list = format!("id -u; ls -A /root {closed}; cat /etc/shadow 2>/dev/null || echo none; ls /etc/passwd");
    k.create(&once("list", &list, json!({}), json!({})));
    assert_eq!(printed(&k, "list"), format!("0\n/root:\n\n{closed}:\nnone\n/etc/passwd"));
}
