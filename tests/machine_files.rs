//! Configuration that is rendered from the cluster into files of the machine itself.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use crate::harness::{Kubectl, Version, eventually};

/// A machine whose own configuration file allows one directory, and whose command on a change fails for what says "bad".
struct Machine {
    directory: tempfile::TempDir,
    k: Kubectl,
}

impl Machine {
    fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
        let at = directory.path().display();
        fs::create_dir(directory.path().join("etc")).expect("make a directory");
        let config = format!(
            "[[machine-files]]\ndirectory = \"{at}/etc\"\nnamespaces = [\"default\"]\n\
             on-change = [\"/bin/sh\", \"-c\", \"cat $MAINSTAY_FILE >> {at}/ran; ! grep -q bad $MAINSTAY_FILE\"]\n"
        );
        let path = directory.path().join("machine.toml");
        fs::write(&path, config).expect("write the configuration");
        let k = Kubectl::with_pods_and(Version::V1_32, &["--config", &path.display().to_string()]);
        Self { directory, k }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path_of(name)).unwrap_or_default()
    }

    fn until_reads(&self, name: &str, content: &str) {
        eventually(&format!("{name} is {content:?}"), || (self.read(name) == content).then_some(()));
    }

    /// A template of a ConfigMap or Secret `settings` with one file.
    fn create_template(&self, name: &str, input: &str, output: &str, path: &str) {
        self.k.create(&format!(
            r#"
apiVersion: mainstay.dev/v1
kind: ConfigTemplate
metadata: {{name: {name}}}
spec:
  inputs: [{{name: settings, {input}: {{name: settings}}}}]
  template: "mode={{{{ settings.mode }}}}\n"
  output: {{{output}: {{name: {name}, key: app.conf}}}}
  consumers:
  - machines: {{path: {path:?}, mode: "0644"}}
"#
        ));
    }

    fn until_reason(&self, template: &str, reason: &str) -> String {
        let field = |field: &str| {
            let path = format!("{{.status.conditions[?(@.type==\"Current\")].{field}}}");
            self.k.value(&format!("configtemplate {template}"), &path)
        };
        eventually(&format!("{template} is {reason}"), || (field("reason") == reason).then(|| field("message")))
    }

    fn set_mode(&self, mode: &str) {
        self.k.ok(&format!(r#"patch configmap settings --type=merge -p '{{"data":{{"mode":"{mode}"}}}}'"#));
    }
}

#[test]
fn a_template_reaches_a_file_of_the_machine_and_a_bad_one_is_taken_back() {
    let mut machine = Machine::start();
    machine.k.ok("create configmap settings --from-literal=mode=good");
    let path = machine.path_of("etc/app.conf");
    machine.create_template("app", "configMap", "configMap", &path.display().to_string());
    machine.until_reads("etc/app.conf", "mode=good\n");
    machine.until_reason("app", "Current");
    assert_eq!(fs::metadata(&path).expect("the file").permissions().mode() & 0o7777, 0o644);
    machine.set_mode("better");
    machine.until_reads("etc/app.conf", "mode=better\n");
    machine.until_reason("app", "Current");
    machine.set_mode("bad");
    let message = machine.until_reason("app", "RolledBack");
    assert!(message.contains("node/") && message.contains("CommandFailed: exit code 1"), "{message}");
    machine.until_reads("etc/app.conf", "mode=better\n");
    eventually("the machine has the good version again", || {
        (machine.read("ran") == "mode=good\nmode=better\nmode=bad\nmode=better\n").then_some(())
    });
    let table = machine.k.ok("get machinefiles");
    assert!(table.contains(&path.display().to_string()) && table.contains("Current"), "{table}");

    // A file that the machine does not allow, and one that an administrator made.
    machine.create_template("outside", "configMap", "configMap", "/etc/mainstay-test-outside");
    let message = machine.until_reason("outside", "MachinesFailed");
    assert!(message.contains("PathNotAllowed: /etc/mainstay-test-outside is not below a directory"), "{message}");
    fs::write(machine.path_of("etc/theirs"), "theirs").expect("write a file");
    machine.create_template("theirs", "configMap", "configMap", &machine.path_of("etc/theirs").display().to_string());
    let message = machine.until_reason("theirs", "MachinesFailed");
    assert!(message.contains("Conflict: ") && message.contains("was made or changed by somebody else"), "{message}");
    assert_eq!(machine.read("etc/theirs"), "theirs");

    // The file stays while there is no server, and goes with its template.
    machine.k.cluster.kill();
    assert_eq!(machine.read("etc/app.conf"), "mode=better\n");
    machine.k.cluster.start_again();
    machine.k.ok("delete configtemplate app");
    eventually("the file is removed", || (!path.exists()).then_some(()));
}

#[test]
fn a_secret_reaches_a_file_without_being_shown_elsewhere() {
    let machine = Machine::start();
    machine.k.ok("create secret generic settings --from-literal=mode=s3cret");
    machine.create_template("app", "secret", "secret", &machine.path_of("etc/app.conf").display().to_string());
    machine.until_reads("etc/app.conf", "mode=s3cret\n");
    machine.until_reason("app", "Current");
    for what in ["machinefiles", "configtemplates", "configmaps", "events"] {
        let shown = machine.k.ok(&format!("get {what} -o yaml"));
        assert!(!shown.contains("s3cret"), "{what}: {shown}");
    }
    assert!(!machine.k.cluster.log().contains("s3cret"));
}
