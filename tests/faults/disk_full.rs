//! A disk without room.

use std::{ops::Deref, process::Command};

use super::support::{
    Client, Server, data_dir, mainstay,
    objects::{CONFIG_MAPS, config_map, large_config_map},
};
use crate::harness::{SmallDisk, eventually};

/// More small writes than the room that a refused large one leaves can take.
const SMALL_WRITES: usize = 40;

/// A file system of its own, in a directory that goes with it.
struct Disk {
    disk: SmallDisk,
    _dir: tempfile::TempDir,
}

impl Disk {
    fn mount(size: &str) -> Self {
        let dir = data_dir();
        Self { disk: SmallDisk::mount(dir.path(), size), _dir: dir }
    }
}

impl Deref for Disk {
    type Target = SmallDisk;
    fn deref(&self) -> &SmallDisk {
        &self.disk
    }
}

/// Writes until a write is refused, and returns how many were taken.
#[track_caller]
fn write_until_full(client: &mut Client, prefix: &str) -> usize {
    for n in 0..1000 {
        let answer = client.post(CONFIG_MAPS, &large_config_map(&format!("{prefix}-{n}"), 50_000));
        if answer.code != 201 {
            let status = answer.refused_saying(507, "InsufficientStorage", "no space left on the store's disk");
            assert!(status["message"].as_str().is_some_and(|m| m.contains("free some space")), "{status}");
            return n;
        }
    }
    panic!("50 MB went onto a full disk")
}

#[test]
fn a_full_disk_refuses_growth_serves_the_rest_and_recovers() {
    let disk = Disk::mount("64m");
    let mut server = Server::start_in(&disk.path().join("data"), &[]);
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    client.post(CONFIG_MAPS, &config_map("before")).granted();
    for n in 0..SMALL_WRITES {
        client.post(CONFIG_MAPS, &config_map(&format!("spare-{n}"))).granted();
    }
    disk.fill();
    let taken = write_until_full(&mut client, "full");
    // Reads, watches and health go on.
    client.get(&format!("{CONFIG_MAPS}/before")).granted();
    assert_eq!(events.about("before")["type"], "ADDED");
    assert_eq!(client.get("/livez").code, 200);
    let ready = client.get("/readyz?verbose");
    assert_eq!(ready.code, 500, "{}", ready.text());
    assert!(ready.text().contains("[-]store-space failed: no space left on the store's disk"), "{}", ready.text());
    assert!(ready.text().contains("[+]store ok"), "{}", ready.text());
    assert_eq!(client.get("/readyz/store-space").code, 500);
    // What makes the store no larger goes on, whoever takes the room meanwhile.
    for n in 0..SMALL_WRITES {
        disk.fill();
        client.delete(&format!("{CONFIG_MAPS}/spare-{n}")).granted();
        let patch = serde_json::json!({"data": {"key": format!("patched {n}")}});
        client.patch(&format!("{CONFIG_MAPS}/before"), "merge-patch+json", &patch).granted();
    }
    let larger = serde_json::json!({"data": {"key": "x".repeat(20_000)}});
    let refused = client.patch(&format!("{CONFIG_MAPS}/before"), "merge-patch+json", &larger);
    refused.refused(507, "InsufficientStorage");
    client.post(CONFIG_MAPS, &config_map("small")).refused(507, "InsufficientStorage");
    let stands = format!("patched {}", SMALL_WRITES - 1);
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/before")).granted()["data"]["key"], stands);

    disk.free();
    eventually("writes are taken again", || (client.post(CONFIG_MAPS, &config_map("after")).code == 201).then_some(()));
    assert_eq!(events.about("after")["type"], "ADDED");
    let mut count = 0;
    eventually("the server is ready again", || {
        count += 1;
        let written = serde_json::json!({"data": {"count": count.to_string()}});
        client.patch(&format!("{CONFIG_MAPS}/after"), "merge-patch+json", &written).granted();
        (client.get("/readyz").code == 200).then_some(())
    });
    let printed = server.log();
    assert_eq!(printed.matches("the store's disk is full").count(), 1, "{printed}");
    assert_eq!(printed.matches("the store's disk has space again").count(), 1, "{printed}");
    server.kill();
    server.start_again();
    for n in 0..taken {
        client.get(&format!("{CONFIG_MAPS}/full-{n}")).granted();
    }
    client.get(&format!("{CONFIG_MAPS}/full-{taken}")).refused(404, "NotFound");
    client.get(&format!("{CONFIG_MAPS}/after")).granted();
    server.assert_well();
}

#[test]
fn a_disk_that_may_not_be_written_is_refused_by_name() {
    let disk = Disk::mount("16m");
    let data = disk.path().join("data");
    drop(Server::start_in(&data, &[]));
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.path()).status();
    assert!(remounted.is_ok_and(|s| s.success()), "cannot mount for reading only");
    let path = data.to_str().expect("UTF-8");
    let output = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", path]);
    assert!(matches!(output.code, 1 | 2), "{output}");
    assert!(output.stderr.contains(path) && output.stderr.contains("Read-only"), "{output}");
}

#[test]
fn a_server_killed_on_a_full_disk_starts_again_with_everything() {
    let disk = Disk::mount("16m");
    let mut server = Server::start_in(&disk.path().join("data"), &[]);
    let mut client = server.client();
    disk.fill();
    let taken = write_until_full(&mut client, "full");
    server.kill();
    server.start_again();
    for n in 0..taken {
        client.get(&format!("{CONFIG_MAPS}/full-{n}")).granted();
    }
    client.post(CONFIG_MAPS, &large_config_map("more", 500_000)).refused(507, "InsufficientStorage");
    disk.free();
    eventually("writes are taken again", || (client.post(CONFIG_MAPS, &config_map("after")).code == 201).then_some(()));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_store_on_a_disk_of_its_own_does_not_mind_a_full_one_and_is_found_by_all_commands() {
    let (disk, elsewhere) = (Disk::mount("16m"), data_dir());
    let (data, store) = (disk.path().join("data"), elsewhere.path().join("store"));
    let mut server = Server::start_in(&data, &["--store-dir", store.to_str().expect("UTF-8")]);
    disk.fill();
    let mut client = server.client();
    for n in 0..20 {
        client.post(CONFIG_MAPS, &large_config_map(&format!("c{n}"), 50_000)).granted();
    }
    assert!(store.join("store.db").is_file());
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&store.metadata().expect("a directory").permissions()) & 0o7777,
        0o700
    );
    let (data, backup) = (data.to_str().expect("UTF-8"), elsewhere.path().join("backup"));
    let backup = backup.to_str().expect("UTF-8");
    mainstay(&["backup", backup, "--data-dir", data]).ok();
    server.kill();
    let closed = format!("{backup}-closed");
    mainstay(&["backup", &closed, "--data-dir", data]).ok();
    let printed = mainstay(&["restore", backup, "--data-dir", data, "--force"]).ok();
    assert!(printed.starts_with("Restored "), "{printed}");
    let mut again = Server::start_in(data.as_ref(), &[]);
    again.client().get(&format!("{CONFIG_MAPS}/c19")).granted();
    again.kill();
    let another = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", data, "--store-dir", "/nowhere/else"]);
    assert!(
        another.code == 1 && another.stderr.contains("--store-dir") && another.stderr.contains("move"),
        "{another}"
    );
}
