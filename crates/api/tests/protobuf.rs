//! Protobuf against the project that defines it: its test data holds every kind with every field
//! set, as protobuf and as JSON.

use std::{fs, path::PathBuf};

use mainstay_api::{protobuf, registry::Registry, schema::Schema};
use serde_json::Value;

fn test_data() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels down").to_owned();
    let tools = std::env::var_os("MAINSTAY_TOOLS").map_or_else(|| root.join(".tools"), PathBuf::from);
    let data = tools.join("k8s-api/usr/share/gocode/src/k8s.io/api/testdata/HEAD");
    assert!(data.exists(), "{} is missing: run tools/test-deps", data.display());
    data
}

#[test]
fn every_kind_reads_the_same_from_protobuf_as_from_json() {
    let data = test_data();
    let schema = Schema::builtin();
    let mut compared = Vec::new();
    for d in Registry::builtin().iter() {
        let group = if d.group.is_empty() { "core" } else { &d.group };
        let file = data.join(format!("{group}.{}.{}", d.version, d.kind));
        let Ok(json) = fs::read(file.with_file_name(format!("{}.json", file.file_name().unwrap().to_str().unwrap())))
        else {
            continue; // younger than the data
        };
        let bytes =
            fs::read(file.with_file_name(format!("{}.pb", file.file_name().unwrap().to_str().unwrap()))).unwrap();
        let mut expected: Value = serde_json::from_slice(&json).unwrap();
        let mut decoded = protobuf::decode(&bytes).unwrap_or_else(|error| panic!("{}: {error}", d.kind));
        schema.conform(&d.schema, &mut expected).unwrap();
        let strange =
            schema.conform(&d.schema, &mut decoded).unwrap_or_else(|error| panic!("{}: {error}: {decoded:#}", d.kind));
        assert!(strange.is_empty(), "{}: {strange:?}", d.kind);
        assert_eq!(decoded, expected, "{}", d.kind);
        compared.push(d.kind.clone());
    }
    assert!(compared.len() > 40, "{compared:?}");
}
