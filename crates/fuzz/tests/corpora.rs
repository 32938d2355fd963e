//! Every target over its corpus and some thousand mutations of it, the same every time. `FUZZ_SECONDS` makes a session that long instead, from a
//! random seed.

use std::{path::Path, time::Duration};

use mainstay_fuzz::{TARGETS, session};

/// Mutations per target: seconds of an unoptimized build.
const MUTATIONS: u64 = 1500;

fn run(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    match std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()) {
        None => session::run(target, 1, session::Length::Inputs(MUTATIONS), &scratch),
        Some(seconds) => {
            let seed = fastrand::u64(..);
            println!("{name}: seed {seed}");
            session::run(target, seed, session::Length::Time(Duration::from_secs(seconds)), &scratch);
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)) })*

        #[test]
        fn every_target_is_run() {
            let run: &[&str] = &[$(stringify!($name)),*];
            let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(run, all);
        }
    };
}

targets! {
    json_body yaml_body quantity json_patch merge_patch strategic_patch label_selector field_selector apply managed_fields crd_schema
    json_path pattern cel protobuf_body protobuf_stored continue_token query_string path jwt client_certificate certificate_request
    spdy_frames spdy_connection dns_query dns_upstream_answer requests
}
