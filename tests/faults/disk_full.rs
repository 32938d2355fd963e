//! A disk without room.

use std::{fs, io::Write, path::Path, process::Command, time::Duration};

use super::support::{
    Answer, Client, Server, data_dir, mainstay,
    objects::{CONFIG_MAPS, config_map, large_config_map},
};
use crate::harness::eventually;

/// More small writes than the room that a refused large one leaves can take.
const SMALL_WRITES: usize = 40;

/// A file system of a few MiB; gone when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = data_dir();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(dir.path()).status();
        assert!(mounted.is_ok_and(|s| s.success()), "this test mounts a small file system and must run as root");
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = fs::File::options().append(true).create(true).open(self.filler()).expect("a file");
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn filler(&self) -> std::path::PathBuf {
        self.path().join("filler")
    }

    fn free(&self) {
        fs::remove_file(self.filler()).expect("remove the filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
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
    panic!("50 MB went into 16")
}

/// Where a large write found no room a small one may still find some, but not for ever: how many were taken.
#[track_caller]
fn until_refused(disk: &SmallDisk, mut write: impl FnMut(usize) -> Answer) -> usize {
    for n in 0..SMALL_WRITES {
        disk.fill();
        let answer = write(n);
        if answer.code == 507 {
            answer.refused(507, "InsufficientStorage");
            return n;
        }
        answer.granted();
    }
    panic!("{SMALL_WRITES} small writes went onto a full disk")
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let disk = SmallDisk::mount();
    let mut server = Server::start_in(&disk.path().join("data"), &[]);
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1"));
    client.post(CONFIG_MAPS, &config_map("before")).granted();
    for n in 0..SMALL_WRITES {
        client.post(CONFIG_MAPS, &config_map(&format!("spare-{n}"))).granted();
    }
    disk.fill();
    let taken = write_until_full(&mut client, "full");
    // Reads, watches and health go on, and every kind of write says the same.
    client.get(&format!("{CONFIG_MAPS}/before")).granted();
    assert_eq!(events.about("before")["type"], "ADDED");
    assert_eq!(client.get("/livez").code, 200);
    let ready = client.get("/readyz?verbose");
    assert_eq!(ready.code, 500, "{}", ready.text());
    assert!(ready.text().contains("[-]store-space failed: no space left on the store's disk"), "{}", ready.text());
    assert!(ready.text().contains("[+]store ok"), "{}", ready.text());
    assert_eq!(client.get("/readyz/store-space").code, 500);
    until_refused(&disk, |n| client.delete(&format!("{CONFIG_MAPS}/spare-{n}")));
    let patched = until_refused(&disk, |n| {
        let patch = serde_json::json!({"data": {"key": format!("patched {n}")}});
        client.patch(&format!("{CONFIG_MAPS}/before"), "merge-patch+json", &patch)
    });
    let stands = patched.checked_sub(1).map_or("value".to_owned(), |last| format!("patched {last}"));
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
    let said = server.said();
    assert_eq!(said.matches("the store's disk is full").count(), 1, "{said}");
    assert_eq!(said.matches("the store's disk has space again").count(), 1, "{said}");
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
    let disk = SmallDisk::mount();
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
    let disk = SmallDisk::mount();
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
    assert_eq!(server.ended_within(Duration::from_secs(10)).code(), Some(0));
}
