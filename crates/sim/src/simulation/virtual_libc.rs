//! Clocks and randomness of the simulator's process: `clock_gettime` and `getrandom` as this program defines them.
//!
//! The linker prefers these definitions to those of libc. So `Instant::now`, `Timestamp::now`, new uids and the order of every
//! `HashMap` follow from the seed and from the virtual time of the runtime, in code that knows nothing of a simulation. Until
//! [`enter`] is called both ask the kernel.
//!
//! Addresses are the last thing that differs from process to process, and some hashers take their seed from one:
//! [`without_address_randomization`] starts the program anew with a fixed layout.

#![expect(
    unsafe_code,
    reason = "the symbols that std calls have C's signatures; fork and personality have no safe wrapper"
)]

use std::{
    os::unix::process::CommandExt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use nix::libc::{self, c_int, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};

use super::server_clock;

/// What the clocks show at the start: some time in 2027, and a machine that has been up for a while.
const WALL_START: i64 = 1_800_000_000;
const BOOT_START: i64 = 100_000;

static ENTERED: AtomicBool = AtomicBool::new(false);
/// Set while the runtime is asked for its time, which must not ask back.
static ASKING: AtomicBool = AtomicBool::new(false);
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// From now on clocks and randomness are virtual.
pub fn enter() {
    ENTERED.store(true, Relaxed);
}

/// Everything random from here on follows from this.
pub fn seed(seed: u64) {
    RANDOM.store(seed, Relaxed);
    fastrand::seed(seed);
}

fn next_random() -> u64 {
    // SplitMix64.
    let state = RANDOM.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

/// Time since the start of the runtime, as tokio's paused clock has it; zero outside of a runtime.
fn elapsed() -> Duration {
    use std::sync::OnceLock;
    static START: OnceLock<tokio::time::Instant> = OnceLock::new();
    if tokio::runtime::Handle::try_current().is_err() || ASKING.swap(true, Relaxed) {
        return Duration::ZERO;
    }
    let now = tokio::time::Instant::now();
    let elapsed = now - *START.get_or_init(|| now);
    ASKING.store(false, Relaxed);
    elapsed
}

/// # Safety
/// As of libc's: `out` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, out: *mut timespec) -> c_int {
    if !ENTERED.load(Relaxed) {
        // SAFETY: the kernel checks both arguments.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) as c_int };
    }
    let elapsed = elapsed();
    let mut nanoseconds = elapsed.as_nanos() as i64;
    nanoseconds += match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => WALL_START * 1_000_000_000 + server_clock::error(elapsed),
        _ => BOOT_START * 1_000_000_000,
    };
    let time =
        timespec { tv_sec: nanoseconds.div_euclid(1_000_000_000), tv_nsec: nanoseconds.rem_euclid(1_000_000_000) };
    // SAFETY: the caller's promise.
    unsafe { out.write(time) };
    0
}

/// # Safety
/// As of libc's: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !ENTERED.load(Relaxed) {
        // SAFETY: the kernel checks all arguments.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as ssize_t };
    }
    if !buffer.is_null() {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&next_random().to_le_bytes()[..chunk.len()]);
        }
    }
    length as ssize_t
}

/// Runs this program anew with a fixed address layout, unless it has one. Where the system does not allow that, it goes on as it
/// is: runs of one process still agree.
pub fn without_address_randomization() {
    // SAFETY: changes nothing but this process's flags.
    let flags = unsafe { libc::personality(0xffff_ffff) };
    if flags == -1 || flags & libc::ADDR_NO_RANDOMIZE != 0 {
        return;
    }
    // SAFETY: as above.
    if unsafe { libc::personality((flags | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) } == -1 {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let error = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
        eprintln!("cannot start anew without address randomization: {error}");
    }
}

/// A copy of this process that runs `work` and ends with what it returns. The process has one thread, so the copy is whole:
/// runtime, tasks and timers go on in it as they were.
pub fn fork(work: impl FnOnce() -> i32) -> nix::Result<nix::unistd::Pid> {
    // SAFETY: one thread.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(child),
        nix::unistd::ForkResult::Child => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
            // SAFETY: ends the process without the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
    }
}
