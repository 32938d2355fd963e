//! kubectl, in the versions that people have.

use std::process::Command;

use serde_json::Value;

use super::{
    Cluster, Following, PATIENCE,
    command::{self, Output},
    tool, words,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1_20,
    V1_32,
    /// The newest that Debian has.
    Newest,
}

/// A kubectl and the cluster it talks to.
pub struct Kubectl {
    version: Version,
    pub cluster: Cluster,
}

impl Kubectl {
    #[track_caller]
    pub fn start(version: Version) -> Self {
        Self::of(version, Cluster::start())
    }

    /// Of a cluster in which pods really run.
    #[track_caller]
    pub fn with_pods(version: Version) -> Self {
        Self::with_pods_and(version, &[])
    }

    /// The same, started with more flags.
    #[track_caller]
    pub fn with_pods_and(version: Version, flags: &[&str]) -> Self {
        Self::of(version, Cluster::with_pods(flags))
    }

    /// The same with the data directory on a file system of this size.
    #[track_caller]
    pub fn with_pods_on_disk(version: Version, size: &str, flags: &[&str]) -> Self {
        Self::of(version, Cluster::with_pods_on_disk(size, flags))
    }

    #[track_caller]
    pub fn of(version: Version, cluster: Cluster) -> Self {
        let kubectl = Self { version, cluster };
        kubectl.program(); // missing? then say so first
        kubectl
    }

    /// Whether this one is new enough for what came after 1.20.
    pub fn is_recent(&self) -> bool {
        self.version != Version::V1_20
    }

    #[track_caller]
    fn program(&self) -> std::path::PathBuf {
        tool(match self.version {
            Version::V1_20 => "bin/kubectl-1.20",
            Version::V1_32 => "bin/kubectl-1.32",
            Version::Newest => "bin/kubectl-newest",
        })
    }

    #[track_caller]
    fn command(&self, args: &[String]) -> (Command, String) {
        let mut command = Command::new(self.program());
        command
            .args(args)
            .env("HOME", self.cluster.home())
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .current_dir(self.cluster.home());
        (command, format!("kubectl ({:?}) {}", self.version, args.join(" ")))
    }

    /// Runs a command line to its end, with this on its standard input.
    #[track_caller]
    pub fn run_with(&self, line: &str, input: &str) -> Output {
        let (command, name) = self.command(&words::split(line));
        command::run(command, &name, input, PATIENCE * 2)
    }

    #[track_caller]
    pub fn run(&self, line: &str) -> Output {
        self.run_with(line, "")
    }

    /// What a command printed; it must succeed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        self.run(line).ok().trim_end().to_owned()
    }

    /// What a command complained about; it must fail.
    #[track_caller]
    pub fn refused(&self, line: &str) -> String {
        self.run(line).refused().trim_end().to_owned()
    }

    /// What a command printed as JSON.
    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        let output = self.ok(line);
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{line}: {error}:\n{output}"))
    }

    /// One value of one object or list, by JSONPath.
    #[track_caller]
    pub fn value(&self, what: &str, path: &str) -> String {
        self.ok(&format!("get {what} -o 'jsonpath={path}'"))
    }

    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.run_with("apply -f -", manifest).ok().trim_end().to_owned()
    }

    #[track_caller]
    pub fn create(&self, manifest: &str) -> String {
        self.run_with("create -f -", manifest).ok().trim_end().to_owned()
    }

    /// Starts a command that goes on until dropped.
    #[track_caller]
    pub fn follow(&self, line: &str) -> Following {
        let (command, name) = self.command(&words::split(line));
        Following::start(command, &name)
    }

    /// Runs a command line with an editor that does this to the file: a script for sed.
    #[track_caller]
    pub fn edit(&self, line: &str, sed: &str) -> Output {
        let script = self.cluster.file("edit.sed", sed);
        let (mut command, name) = self.command(&words::split(line));
        command.env("KUBE_EDITOR", format!("sed -i -f {script}"));
        command::run(command, &name, "", PATIENCE * 2)
    }
}
