//! The program that is to take over: copied first, so that what was checked is what runs, then checked, then installed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use mainstay_files::remove_file_if_exists;

use crate::exit::Exit;

/// For each of the two commands that are asked of it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Of an ELF header: everything up to the machine it is for.
const ELF_HEADER: usize = 20;

/// The program that runs now.
pub struct InstalledProgram {
    path: PathBuf,
    version: String,
    mode: u32,
}

impl InstalledProgram {
    pub fn read(path: &Path) -> Result<Self, Exit> {
        let metadata = fs::metadata(path).with_context(|| format!("read {}", path.display()))?;
        // Whoever it was replaced by meanwhile, the name is what is replaced again.
        let version = run_version(path).unwrap_or_else(|_| "an unknown version".to_owned());
        Ok(Self { path: path.to_owned(), version, mode: metadata.mode() & 0o777 })
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn old(&self) -> PathBuf {
        beside(&self.path, "old")
    }

    pub fn put_back(&self) -> io::Result<()> {
        fs::rename(self.old(), &self.path)?;
        sync_directory(&self.path)
    }
}

/// A copy beside the installed program. Removed when dropped, unless it was installed.
pub struct Candidate {
    source: PathBuf,
    copy: PathBuf,
    version: String,
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.copy);
    }
}

impl Candidate {
    pub fn copy(source: &Path, installed: &InstalledProgram) -> Result<Self, Exit> {
        let refused = |why: String| Exit::Refused(anyhow!("--binary {}: {why}", source.display()));
        let mut file = File::open(source).map_err(|error| refused(error.to_string()))?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(refused("is not a file".to_owned()));
        }
        check_machine(&mut file, &installed.path).map_err(refused)?;
        let copy = beside(&installed.path, "new");
        let candidate = Self { source: source.to_owned(), copy, version: String::new() };
        let copied = File::open(source).and_then(|mut from| {
            let _ = fs::remove_file(&candidate.copy); // left by one that was killed
            let mode = installed.mode | 0o500;
            let mut to = OpenOptions::new().write(true).create_new(true).mode(mode).open(&candidate.copy)?;
            io::copy(&mut from, &mut to)?;
            to.sync_all()
        });
        // Closed by now: a file that somebody may write to cannot be executed.
        copied.with_context(|| format!("copy {} to {}", source.display(), candidate.copy.display()))?;
        Ok(candidate)
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs it: is it a Mainstay, and does it read what is in the data directory?
    pub fn check(&mut self, data_dir: &Path) -> Result<(), Exit> {
        let source = self.source.clone();
        let refused = |why: String| Exit::Refused(anyhow!("--binary {}: {why}", source.display()));
        self.version = run_version(&self.copy).map_err(refused)?;
        let mut check = Command::new(&self.copy);
        check.arg("check-data").arg("--data-dir").arg(data_dir);
        let output = run_briefly(check).map_err(|error| refused(format!("cannot be run: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it says nothing").trim_start_matches("mainstay: ").to_owned();
        Err(refused(match output.status.code() {
            Some(1) => said,
            Some(64) => format!(
                "it cannot check the data directory (is it older than Mainstay {}?): {said}",
                mainstay_files::VERSION
            ),
            _ => format!("`check-data` ended with {}: {said}", output.status),
        }))
    }

    pub fn same_content(&self, installed: &InstalledProgram) -> Result<bool, Exit> {
        let same = || -> io::Result<bool> {
            if fs::metadata(&self.copy)?.len() != fs::metadata(&installed.path)?.len() {
                return Ok(false);
            }
            let (mut a, mut b) = (File::open(&self.copy)?, File::open(&installed.path)?);
            let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            loop {
                let read = a.read(&mut left)?;
                if read == 0 {
                    return Ok(true);
                }
                b.read_exact(&mut right[..read])?;
                if left[..read] != right[..read] {
                    return Ok(false);
                }
            }
        };
        Ok(same().context("compare it with the program that runs")?)
    }

    /// Takes the program's name, which exists at every moment; the old program stays beside it. Returns the version.
    pub fn install(self, installed: &InstalledProgram) -> Result<String, Exit> {
        let install = || -> io::Result<()> {
            let old = installed.old();
            remove_file_if_exists(&old)?;
            fs::hard_link(&installed.path, &old)?;
            fs::rename(&self.copy, &installed.path)?;
            sync_directory(&installed.path)
        };
        install().with_context(|| format!("replace {}", installed.path.display()))?;
        Ok(self.version.clone())
    }
}

/// An ELF file for the machine that the installed program is for.
fn check_machine(file: &mut File, installed: &Path) -> Result<(), String> {
    let header = |file: &mut File| -> io::Result<[u8; ELF_HEADER]> {
        let mut header = [0; ELF_HEADER];
        file.read_exact(&mut header).map(|()| header)
    };
    let found = header(file).map_err(|_| "is not a program".to_owned())?;
    if !found.starts_with(b"\x7fELF") {
        return Err("is not a program (no ELF file)".to_owned());
    }
    let own = File::open(installed).and_then(|mut own| header(&mut own)).map_err(|error| error.to_string())?;
    // Class and byte order, and the machine.
    if (found[4], found[5], &found[18..]) != (own[4], own[5], &own[18..]) {
        return Err(format!("is a program for another kind of machine than this one ({})", std::env::consts::ARCH));
    }
    Ok(())
}

/// `mainstay 0.1.0`.
fn run_version(program: &Path) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("--version");
    let output = run_briefly(command).map_err(|error| format!("cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().strip_prefix("mainstay ") {
        Some(version) if output.status.success() && !version.contains(char::is_whitespace) => {
            Ok(format!("Mainstay {version}"))
        }
        _ => Err(format!("is not a Mainstay: `--version` says {:?}", text.lines().next().unwrap_or_default())),
    }
}

/// A command with a time limit, and with no more output than pipes hold.
fn run_briefly(mut command: Command) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let since = Instant::now();
    while child.try_wait()?.is_none() {
        if since.elapsed() > COMMAND_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output()
}

fn beside(program: &Path, suffix: &str) -> PathBuf {
    let mut name = program.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    program.with_file_name(name)
}

fn sync_directory(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refusal(source: &Path, installed: &InstalledProgram) -> String {
        match Candidate::copy(source, installed) {
            Err(Exit::Refused(error)) => error.to_string(),
            Err(_) => panic!("another failure"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn what_is_no_program_for_this_machine_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("mainstay");
        fs::copy("/bin/true", &program).unwrap();
        let installed = InstalledProgram { path: program, version: "Mainstay 1".to_owned(), mode: 0o755 };
        let file = dir.path().join("file");
        assert!(refusal(&file, &installed).contains("No such file"));
        fs::write(&file, "#!/bin/sh\n# a script that is long enough\n").unwrap();
        assert!(refusal(&file, &installed).contains("no ELF file"));
        fs::write(&file, "").unwrap();
        assert!(refusal(&file, &installed).contains("is not a program"));
        assert!(refusal(dir.path(), &installed).contains("is not a file"));
        let mut other = fs::read("/bin/true").unwrap();
        other[18] ^= 0x55;
        fs::write(&file, other).unwrap();
        assert!(refusal(&file, &installed).contains("another kind of machine"));
        assert!(!dir.path().join("mainstay.new").exists());
    }

    #[test]
    fn a_program_takes_the_name_of_the_installed_one_and_gives_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let (program, source) = (dir.path().join("mainstay"), dir.path().join("source"));
        fs::copy("/bin/true", &program).unwrap();
        fs::copy("/bin/false", &source).unwrap();
        let installed = InstalledProgram { path: program.clone(), version: "Mainstay 1".to_owned(), mode: 0o755 };
        let Ok(candidate) = Candidate::copy(&source, &installed) else { panic!("refused") };
        assert!(candidate.same_content(&installed).is_ok_and(|same| !same));
        assert!(candidate.install(&installed).is_ok());
        assert_eq!(fs::read(&program).unwrap(), fs::read(&source).unwrap());
        assert_eq!(program.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        installed.put_back().unwrap();
        assert_eq!(fs::read(&program).unwrap(), fs::read("/bin/true").unwrap());
        assert!(!installed.old().exists() && !dir.path().join("mainstay.new").exists());
    }

    #[test]
    fn a_program_of_others_is_no_mainstay() {
        assert!(run_version(Path::new("/bin/true")).is_err_and(|why| why.contains("is not a Mainstay")));
    }
}
