//! One target under libFuzzer: the one that the variable `FUZZ_TARGET` names. Built by `tools/fuzz`.
#![no_main]

use std::sync::LazyLock;

use mainstay_fuzz::{TARGETS, Target};

static CHOSEN: LazyLock<&'static Target> = LazyLock::new(|| {
    let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let chosen = TARGETS.iter().find(|target| target.name == wanted);
    chosen.unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("FUZZ_TARGET is {wanted:?}; it must be one of {}", names.join(", "))
    })
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (CHOSEN.run)(data));
