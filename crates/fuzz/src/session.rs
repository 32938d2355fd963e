//! Runs a target over its corpus and over mutations of it.
//!
//! What is asked of every target: an input costs a bounded amount of CPU time, memory and stack. Time is that of the thread, so that a
//! busy machine fails nobody. The input at work is in a file, for the faults that end the process: a stack that overflows.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    time::Duration,
};

use fastrand::Rng;
use nix::time::{ClockId, clock_gettime};
use peak_alloc::PeakAlloc;

use crate::{mutate::mutate, targets::Target};

/// What one input may take besides what the target keeps; inputs have at most 16 KiB.
pub const MAX_MEMORY: usize = 96 << 20;

/// Of an unoptimized build.
pub const MAX_CPU_TIME: Duration = Duration::from_secs(8);

/// The stack of a worker of tokio, on which the server reads requests.
const STACK: usize = 2 << 20;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// How long a session goes on.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    Inputs(u64),
    Time(Duration),
}

/// Feeds a target with its corpus, then with mutations. Panics with the input if anything does not hold.
pub fn run(target: &'static Target, seed: u64, length: Length, scratch: &Path) {
    let corpus = read_corpus(target);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    fs::create_dir_all(scratch).expect("a directory for inputs");
    let at_work = scratch.join(format!("{}.input", target.name));
    let file = File::create(&at_work).expect("a file for the input at work");
    let session = move || {
        let inputs: Vec<Vec<u8>> = corpus.iter().map(|(_, bytes)| bytes.clone()).collect();
        for (path, input) in &corpus {
            feed(target, input, &file, &path.display().to_string());
        }
        let mut rng = Rng::with_seed(seed);
        let started = std::time::Instant::now();
        for round in 0u64.. {
            match length {
                Length::Inputs(most) if round >= most => break,
                Length::Time(longest) if started.elapsed() >= longest => break,
                Length::Inputs(_) | Length::Time(_) => {}
            }
            let input = mutate(&inputs, target.words, &mut rng);
            feed(target, &input, &file, &format!("mutation {round} of seed {seed}"));
        }
    };
    let thread = std::thread::Builder::new().name(target.name.to_owned()).stack_size(STACK).spawn(session);
    if let Err(panic) = thread.expect("a thread").join() {
        eprintln!("the input is in {}", at_work.display());
        panic::resume_unwind(panic);
    }
    let _ = fs::remove_file(&at_work);
}

fn feed(target: &Target, input: &[u8], file: &File, origin: &str) {
    file.set_len(0).and_then(|()| file.write_all_at(input, 0)).expect("write the input at work");
    let (before, started) = (ALLOCATOR.current_usage(), cpu_time());
    ALLOCATOR.reset_peak_usage();
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        eprintln!("{}: {origin} failed: {}", target.name, input.escape_ascii());
        panic::resume_unwind(panic);
    }
    let memory = ALLOCATOR.peak_usage().saturating_sub(before);
    assert!(memory <= MAX_MEMORY, "{}: {origin} took {memory} bytes: {}", target.name, input.escape_ascii());
    let spent = cpu_time().saturating_sub(started);
    assert!(spent <= MAX_CPU_TIME, "{}: {origin} took {spent:?}: {}", target.name, input.escape_ascii());
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The files of `corpus/<target>`, by name.
fn read_corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let listed = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a file of the corpus"))).collect()
}
