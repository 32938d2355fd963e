//! The simulator, as a program: what makes it deterministic holds for a whole process.

use std::process::{Command, Output};

/// What CI runs. More: `cargo run -p mainstay-sim -- seeds 1000000`.
const SEEDS: &str = "30";

fn simulator(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay-sim"));
    command.args(arguments).env_remove("RUST_LOG").output().expect("run the simulator")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn one_seed_is_one_run() {
    let runs: Vec<String> = ["7", "7", "8"].iter().map(|seed| text(&simulator(&["hash", seed]))).collect();
    assert_eq!(runs[0].trim().len(), 16, "{}", runs[0]);
    assert_eq!(runs[0], runs[1], "two runs of one seed");
    assert_ne!(runs[0], runs[2], "runs of two seeds");
}

#[test]
fn a_replay_is_the_same_run_and_can_be_read() {
    let (hash, replay) = (text(&simulator(&["hash", "3"])), text(&simulator(&["replay", "3"])));
    assert!(replay.contains(hash.trim()), "the hash is that of another run");
    assert!(replay.contains("FAULT: ") && replay.contains("converged and at rest"), "{replay}");
}

#[test]
fn no_invariant_is_broken() {
    let ran = text(&simulator(&["seeds", SEEDS]));
    assert!(ran.contains(&format!("{SEEDS} seeds from 0, 0 broke an invariant")), "{ran}");
}

/// With few seeds each: `tests/README.md` says how many it took.
#[test]
fn it_is_noticed_when_a_safeguard_is_taken_away() {
    for safeguard in ["fencing", "drain", "budget", "lease-term"] {
        let ran = text(&simulator(&["seeds", "60", "--most", "1", "--without", safeguard]));
        assert!(ran.contains("to see it: "), "without {safeguard}: {ran}");
    }
}
