//! Files that are not as they were left, and backups.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use super::support::{
    Server, data_dir, mainstay,
    objects::{CONFIG_MAPS, config_map, large_config_map, version},
};

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").args(["-r", text(from), text(to)]).status();
    assert!(done.is_ok_and(|s| s.success()), "cannot copy {}", from.display());
}

/// A data directory with objects in it, stopped in order, with a backup where backups are looked for.
fn prepared(dir: &Path) -> (std::path::PathBuf, std::path::PathBuf, Value) {
    let data = dir.join("data");
    let mut server = Server::start_in(&data, &[]);
    let mut client = server.client();
    for n in 0..50 {
        client.post(CONFIG_MAPS, &large_config_map(&format!("c{n}"), 3_000)).granted();
    }
    let backups = data.join("store/backups");
    fs::create_dir_all(&backups).expect("make a directory");
    let backup = backups.join("first");
    mainstay(&["backup", text(&backup), "--data-dir", text(&data)]).ok();
    let items = client.get(CONFIG_MAPS).granted()["items"].clone();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    (data, backup, items)
}

#[test]
fn a_truncated_store_is_refused_by_name_with_the_backup_to_use() {
    let dir = data_dir();
    let (data, backup, _) = prepared(dir.path());
    let file = data.join("store/store.db");
    let length = fs::metadata(&file).expect("the store").len();
    fs::OpenOptions::new().write(true).open(&file).and_then(|f| f.set_len(length / 2)).expect("truncate");
    let output = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", text(&data)]);
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains(text(&file)) && output.stderr.contains("damaged"), "{output}");
    assert!(output.stderr.contains(&format!("the newest usable backup is {}", backup.display())), "{output}");
    assert!(!output.stderr.contains("panicked"), "{output}");
}

#[test]
fn a_flipped_bit_is_refused_by_name_or_was_nowhere_that_matters() {
    let dir = data_dir();
    let (data, backup, items) = prepared(dir.path());
    let length = fs::metadata(data.join("store/store.db")).expect("the store").len();
    let mut refusals = 0;
    for flip in 0..12 {
        let damaged = dir.path().join(format!("flip-{flip}"));
        copy(&data, &damaged);
        let file = damaged.join("store/store.db");
        let mut bytes = fs::read(&file).expect("the store");
        let at = usize::try_from(length * (2 * flip + 1) / 24).expect("a small file");
        bytes[at] ^= 1 << (flip % 8);
        fs::write(&file, bytes).expect("write");
        let started = Command::new(env!("CARGO_BIN_EXE_mainstay"))
            .args(["backup", text(&dir.path().join(format!("copy-{flip}"))), "--data-dir", text(&damaged)])
            .output()
            .expect("run mainstay");
        if started.status.success() {
            let server = Server::start_in(&damaged, &[]);
            assert_eq!(server.client().get(CONFIG_MAPS).granted()["items"], items, "byte {at} was damaged unnoticed");
            continue;
        }
        let output = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", text(&damaged)]);
        assert_eq!(output.code, 1, "{output}");
        let advice = damaged.join("store/backups").join(backup.file_name().expect("a name"));
        assert!(output.stderr.contains(text(&file)) && output.stderr.contains(text(&advice)), "{output}");
        refusals += 1;
    }
    assert!(refusals >= 6, "only {refusals} of 12 flips were noticed");
}

#[test]
fn a_damaged_store_is_brought_back_from_its_backup() {
    let dir = data_dir();
    let (data, backup, items) = prepared(dir.path());
    fs::write(data.join("store/store.db"), "garbage").expect("write");
    assert_eq!(mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", text(&data)]).code, 1);
    let refused = mainstay(&["restore", text(&backup), "--data-dir", text(&data)]);
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr.contains("--force"), "{refused}");
    let printed = mainstay(&["restore", text(&backup), "--data-dir", text(&data), "--force"]).ok();
    assert!(printed.starts_with("Restored "), "{printed}");
    let server = Server::start_in(&data, &[]);
    let there = server.client().get(CONFIG_MAPS).granted();
    let names = |items: &Value| -> Vec<Value> {
        items.as_array().expect("items").iter().map(|item| item["metadata"]["name"].clone()).collect()
    };
    assert_eq!(names(&there["items"]), names(&items));
}

#[test]
fn a_backup_of_a_running_server_is_complete_and_restores_elsewhere() {
    let dir = data_dir();
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("kept")).granted();
    let then = version(&client.get(CONFIG_MAPS).granted());
    let file = dir.path().join("backup");
    let printed = mainstay(&["backup", text(&file), "--data-dir", text(server.data())]).ok();
    assert!(printed.starts_with("Backed up ") && printed.contains(text(&file)), "{printed}");
    client.post(CONFIG_MAPS, &config_map("later")).granted();

    let elsewhere = dir.path().join("elsewhere");
    mainstay(&["restore", text(&file), "--data-dir", text(&elsewhere)]).ok();
    let restored = Server::start_in(&elsewhere, &[]);
    let mut client = restored.client();
    client.get(&format!("{CONFIG_MAPS}/kept")).granted();
    client.get(&format!("{CONFIG_MAPS}/later")).refused(404, "NotFound");
    // Nobody who saw the old revisions may mistake the new ones for them.
    assert!(version(&client.get(CONFIG_MAPS).granted()) > then);
}

#[test]
fn backup_and_restore_refuse_what_would_lose_data() {
    let dir = data_dir();
    let (data, backup, _) = prepared(dir.path());
    let again = mainstay(&["backup", text(&backup), "--data-dir", text(&data)]);
    assert_eq!(again.code, 1, "{again}");
    assert!(again.stderr.contains("exists already"), "{again}");
    let nowhere = mainstay(&["backup", text(&dir.path().join("b")), "--data-dir", text(&dir.path().join("nothing"))]);
    assert_eq!(nowhere.code, 1, "{nowhere}");
    assert!(!dir.path().join("b").exists());
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, "garbage").expect("write");
    let bad = mainstay(&["restore", text(&garbage), "--data-dir", text(&data), "--force"]);
    assert_eq!(bad.code, 1, "{bad}");
    assert!(bad.stderr.contains(text(&garbage)), "{bad}");
    let missing = mainstay(&["restore", text(&dir.path().join("missing")), "--data-dir", text(&data), "--force"]);
    assert!(matches!(missing.code, 1 | 2), "{missing}");
    let mut server = Server::start_in(&data, &[]);
    let running = mainstay(&["restore", text(&backup), "--data-dir", text(&data), "--force"]);
    assert_eq!(running.code, 1, "{running}");
    assert!(running.stderr.contains("in use by process"), "{running}");
    server.client().get(&format!("{CONFIG_MAPS}/c49")).granted();
    server.assert_well();
}
