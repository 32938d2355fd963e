//! A directory tree as hostile containers make it: deeper than a path can name, or a stack can hold.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::Path,
};

/// Makes so many directories named `d` within each other below `top`, and a file of 64 KiB in the last one.
pub fn deep_directories(top: &Path, levels: usize) {
    let mut directory = File::open(top).expect("open the directory");
    for _ in 0..levels {
        let next = format!("/proc/self/fd/{}/d", directory.as_raw_fd());
        fs::create_dir(&next).expect("make a directory");
        directory = File::open(&next).expect("open the directory");
    }
    fs::write(format!("/proc/self/fd/{}/file", directory.as_raw_fd()), [1; 64 << 10]).expect("write a file");
}
