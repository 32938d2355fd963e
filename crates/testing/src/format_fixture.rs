//! Fixtures of formats: what a version wrote to disk, committed, so that all later ones are held to reading it.

use std::{fs, path::Path};

/// The fixture `testdata/<name>` of a crate, after comparing it with what this program writes: JSON, one value or one per line, in
/// which the version of the writer does not count. A fixture never changes: a new layout gets a new number and a new fixture, which
/// `MAINSTAY_WRITE_FIXTURES=1` writes if it is missing.
pub fn format_fixture(crate_dir: &str, name: &str, written: &[u8]) -> Vec<u8> {
    let path = Path::new(crate_dir).join("testdata").join(name);
    if std::env::var_os("MAINSTAY_WRITE_FIXTURES").is_some() && !path.exists() {
        fs::create_dir_all(path.parent().expect("a parent")).expect("make the directory of fixtures");
        fs::write(&path, written).expect("write a fixture");
    }
    let fixture = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (expected, found) = (values(&fixture), values(written));
    assert_eq!(found, expected, "what is written is not {} any more: give it a new number", path.display());
    fixture
}

fn values(text: &[u8]) -> Vec<serde_json::Value> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parsed = lines.map(|line| serde_json::from_slice(line).expect("a line of JSON"));
    parsed
        .map(|mut value: serde_json::Value| {
            if let Some(object) = value.as_object_mut() {
                object.remove("writtenBy");
            }
            value
        })
        .collect()
}
