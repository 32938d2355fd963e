//! `mainstay convert unit`: what it writes is accepted by the API.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::harness::{
    Kubectl, Version,
    command::{Output, run},
};

fn unit(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../units/testdata").join(name)
}

fn convert(files: &[&str], flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(["convert", "unit"]).args(files.iter().map(|file| unit(file))).args(flags);
    run(command, "mainstay convert unit", "", Duration::from_secs(60))
}

#[test]
fn manifests_of_units_are_accepted_by_the_api() {
    let instances = ["--instance", "web@1", "--instance", "web@2"];
    let output = convert(&["web@.service", "db.service", "collector.service"], &instances);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("collector.service:5: ExecReload="), "{output}");
    let k = Kubectl::start(Version::V1_32);
    k.ok("label namespace default pod-security.kubernetes.io/enforce=privileged");
    let applied = k.apply(&output.stdout);
    for object in ["service/web", "statefulset.apps/web", "deployment.apps/db", "daemonset.apps/collector"] {
        assert!(applied.contains(&format!("{object} created")), "{applied}");
    }
    // A second conversion of the same units changes nothing.
    let again = k.apply(&convert(&["web@.service", "db.service", "collector.service"], &instances).stdout);
    assert_eq!(again.matches("unchanged").count(), 4, "{again}");
}

#[test]
fn what_has_no_translation_fails_if_asked_to_and_nonsense_is_refused() {
    let strict = convert(&["collector.service"], &["--strict"]);
    assert!(strict.code == 1 && strict.stdout.is_empty(), "{strict}");
    assert!(strict.stderr.contains("4 lines have no translation"), "{strict}");
    let template = convert(&["web@.service"], &[]);
    assert!(template.code == 1 && template.stderr.contains("give instances of it, such as web@1"), "{template}");
    let stranger = convert(&["web@.service"], &["--instance", "db@1"]);
    assert!(stranger.code == 1 && stranger.stderr.contains("db@1.service is an instance of none"), "{stranger}");
    assert_eq!(convert(&["missing.service"], &[]).code, 2);
    assert_eq!(convert(&[], &[]).code, 64);
}
