//! Unmaps pages of the program's file that were not used lately, so that the process has mapped what it uses.
//!
//! The kernel maps sixteen pages for every one of code that is touched, and what only the start needs would stay mapped: of 60 MB of program about 40.
//! Every [`INTERVAL`] all pages of code and constants are unmapped. Those in use come back when they are touched, some hundred faults of a microsecond
//! each, and they come out of the page cache: nothing is read from the disk unless the kernel needed the memory for something else, as it could before.
//! Only pages that nobody can have written to are unmapped. If the kernel refuses, everything stays as it is.

use std::{fs, io, ops::Range, time::Duration};

use nix::{errno::Errno, libc};
use tokio_util::sync::CancellationToken;

/// When the start is over.
const FIRST: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(30);

/// Runs until `stop`.
pub async fn run(stop: CancellationToken) {
    let mut pause = FIRST;
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        pause = INTERVAL;
        match tokio::task::spawn_blocking(unmap_all).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return tracing::debug!(%error, "cannot unmap pages of the program; they stay mapped"),
            Err(_) => return,
        }
    }
}

fn unmap_all() -> io::Result<()> {
    let program = fs::read_link("/proc/self/exe")?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    for range in read_only_ranges(&maps, &program.to_string_lossy()) {
        unmap(range)?;
    }
    Ok(())
}

/// One line of `/proc/self/maps`, as far as it matters here.
struct Mapping {
    range: Range<usize>,
    is_code: bool,
    offset: u64,
}

impl Mapping {
    /// A mapping of the program that cannot be written to.
    fn parse(line: &str, program: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = match fields.next()? {
            "r-xp" => true,
            "r--p" => false,
            _ => return None,
        };
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let file = fields.nth(2)?.trim_start();
        let address = |text| usize::from_str_radix(text, 16).ok();
        (file == program).then_some(Self { range: address(start)?..address(end)?, is_code, offset })
    }
}

/// Code and the constants before it. What the loader wrote to and then protected lies behind the code, and is no longer as in the file.
fn read_only_ranges(maps: &str, program: &str) -> Vec<Range<usize>> {
    let mappings: Vec<Mapping> = maps.lines().filter_map(|line| Mapping::parse(line, program)).collect();
    let code = mappings.iter().filter(|mapping| mapping.is_code).map(|mapping| mapping.offset).min();
    let is_clean = |mapping: &Mapping| mapping.is_code || code.is_some_and(|code| mapping.offset < code);
    mappings.into_iter().filter(is_clean).map(|mapping| mapping.range).collect()
}

#[expect(unsafe_code, reason = "no library offers this call without an unsafe block")]
fn unmap(range: Range<usize>) -> io::Result<()> {
    let length = range.end.saturating_sub(range.start);
    // SAFETY: the range is a private mapping of a file that was never writable, so that a page that is touched again is read from the
    // file and is the same. It is not replaced meanwhile: nothing unmaps the program.
    let result = unsafe { libc::madvise(range.start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    Ok(Errno::result(result).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_constants_of_the_program_are_unmapped_and_nothing_that_was_written_to() {
        let maps = "\
00200000-01a00000 r--p 00000000 fe:00 42                         /usr/bin/main stay
01a00000-04a00000 r-xp 01800000 fe:00 42                         /usr/bin/main stay
04a00000-04b00000 r--p 04800000 fe:00 42                         /usr/bin/main stay
04b00000-04b10000 rw-p 04900000 fe:00 42                         /usr/bin/main stay
04b10000-04b20000 rw-p 00000000 00:00 0
7f0000000000-7f0000100000 r-xp 00000000 fe:00 43                 /lib/libc.so.6
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                  [vdso]
";
        assert_eq!(read_only_ranges(maps, "/usr/bin/main stay"), [0x20_0000..0x1a0_0000, 0x1a0_0000..0x4a0_0000]);
        assert!(read_only_ranges(maps, "/usr/bin/mainstay").is_empty());
    }

    #[test]
    fn the_program_goes_on_after_its_pages_were_unmapped() {
        let rules = || "constants and code".split(' ').map(str::len).sum::<usize>();
        let before = rules();
        unmap_all().expect("the kernel allows it");
        assert_eq!(rules(), before);
        let program = fs::read_link("/proc/self/exe").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!read_only_ranges(&maps, &program.to_string_lossy()).is_empty());
    }
}
