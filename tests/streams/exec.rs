use std::process::Command;

use crate::{
    cluster::{Cluster, KUBECTLS, PATIENCE, tool},
    command,
};

#[test]
fn a_command_has_its_streams_and_its_exit_code() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    for k in KUBECTLS {
        let output = cluster.run_with(k, "exec web -- sh -c 'echo out; echo err >&2; exit 3'", "");
        assert_eq!((output.stdout.as_str(), output.code), ("out\n", 3), "{output}");
        assert!(output.stderr.contains("err\n"), "{output}");
        assert!(output.stderr.contains("command terminated with exit code 3"), "{output}");
        assert_eq!(cluster.ok(k, "exec web -- echo 'a  b'"), "a  b\n");
        let refused = cluster.refused(k, "exec web -- /no/such/program");
        assert!(refused.contains("/no/such/program"), "{refused}");
    }
}

#[test]
fn input_goes_in_and_its_end_is_seen() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let long = "0123456789abcde\n".repeat(64 * 1024);
    for k in KUBECTLS {
        assert_eq!(cluster.run_with(k, "exec -i web -- cat", "hello\n").ok(), "hello\n");
        let back = cluster.run_with(k, "exec -i web -- cat", &long).ok();
        assert!(back == long, "{} bytes of {} came back", back.len(), long.len());
        assert_eq!(cluster.run_with(k, "exec -i web -- wc -c", &long).ok().trim(), long.len().to_string());
        // A process that reads nothing does not hold up who writes.
        assert_eq!(cluster.run_with(k, "exec -i web -- true", &long).code, 0);
    }
}

#[test]
fn much_output_comes_whole() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    for k in KUBECTLS {
        let much = cluster.ok(k, "exec web -- sh -c 'head -c 20000000 /dev/zero | tr \"\\0\" x'");
        assert_eq!(much.len(), 20_000_000);
    }
}

#[test]
fn a_terminal_is_passed_through_with_its_size() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    for k in KUBECTLS {
        let line =
            format!("stty cols 91 rows 17; {} exec -it web -- sh -c 'test -t 0 && echo terminal'", tool(k).display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("HOME", cluster.home()).env("KUBECONFIG", cluster.kubeconfig());
        let output = command::run(script, &line, "", PATIENCE);
        assert!(output.stdout.contains("terminal\r\n"), "{output}");
        let sizes: Vec<_> = cluster.runtime.sizes.lock().drain(..).collect();
        assert!(sizes.iter().any(|size| (size.width, size.height) == (91, 17)), "{k}: {sizes:?}");
    }
}

#[test]
fn attaching_is_talking_to_the_process_itself() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    for k in KUBECTLS {
        let output = cluster.run_with(k, "attach -i web", "one\ntwo\n");
        assert_eq!(output.stdout, "heard one\nheard two\n", "{output}");
        assert_eq!(output.code, 0, "{output}");
    }
}

#[test]
fn files_are_copied_in_and_out() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    for (index, k) in KUBECTLS.into_iter().enumerate() {
        let inside = cluster.home().join(format!("inside-{index}"));
        std::fs::create_dir(&inside).unwrap();
        let content: String = (0..200_000).map(|n| format!("{n}\n")).collect();
        std::fs::write(cluster.home().join("here"), &content).unwrap();
        cluster.ok(k, &format!("cp here web:{}/there", inside.display()));
        assert!(std::fs::read_to_string(inside.join("there")).unwrap() == content);
        cluster.ok(k, &format!("cp web:{}/there back-{index}", inside.display()));
        assert!(std::fs::read_to_string(cluster.home().join(format!("back-{index}"))).unwrap() == content);
    }
}

#[test]
fn a_container_that_does_not_run_is_named() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    cluster.runtime.fake.exit("web/a", 0);
    for k in KUBECTLS {
        let refused = cluster.refused(k, "exec web -- true");
        assert!(refused.contains("container not found (\"a\")"), "{refused}");
    }
}
