//! An image made of one file: a static `busybox`, with a configuration that can be told from the defaults.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Nothing but busybox and its names in `/bin`.
pub const PLAIN: &str = "mainstay.test/plain:1";
/// The same files; entrypoint `/bin/echo entry`, arguments `args`, variables `FROM=image` and `BOTH=image`, directory
/// `/srv/work`, user `worker` (1234:1234, also in group `extra` 2345), stop signal `SIGUSR1`.
pub const CONFIGURED: &str = "mainstay.test/configured:1";

/// The same files; only waits, for runtimes that keep a pod's namespaces by a process of their own.
pub const PAUSE: &str = "mainstay.test/pause:1";

/// The static busybox that `tools/test-deps` fetches.
pub fn busybox() -> PathBuf {
    let path = tools().join("busybox/bin/busybox");
    assert!(path.exists(), "no {}: run tools/test-deps first (or set MAINSTAY_TOOLS)", path.display());
    path
}

/// Where `tools/test-deps` puts things.
pub fn tools() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tools = env::var_os("MAINSTAY_TOOLS").map_or_else(|| repository.join(".tools"), PathBuf::from);
    tools.canonicalize().unwrap_or(tools)
}

/// Writes them as one docker archive (`docker save`).
pub fn write(to: &Path) -> io::Result<()> {
    let layer = layer()?;
    let diff = hex(&layer);
    let plain = json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]});
    let configured = json!({
        "Env": ["PATH=/bin", "FROM=image", "BOTH=image"],
        "Entrypoint": ["/bin/echo", "entry"],
        "Cmd": ["args"],
        "WorkingDir": "/srv/work",
        "User": "worker",
        "StopSignal": "SIGUSR1",
    });
    let mut archive = tar::Builder::new(fs::File::create(to)?);
    append(&mut archive, "layer.tar", &layer, 0o644)?;
    let mut manifest = Vec::new();
    let pause = json!({"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "2147483647"]});
    for (name, config) in [(PLAIN, plain), (CONFIGURED, configured), (PAUSE, pause)] {
        let config = configuration(config, &diff).to_string();
        let file = format!("{}.json", hex(config.as_bytes()));
        append(&mut archive, &file, config.as_bytes(), 0o644)?;
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}));
    }
    append(&mut archive, "manifest.json", Value::Array(manifest).to_string().as_bytes(), 0o644)?;
    archive.into_inner()?.flush()
}

fn configuration(config: Value, diff: &str) -> Value {
    let architecture = match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        "history": [{"created": "2024-01-01T00:00:00Z", "created_by": "the suite"}],
    })
}

fn layer() -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    for (directory, mode) in
        [("bin/", 0o755), ("etc/", 0o755), ("srv/work/", 0o755), ("tmp/", 0o1777), ("root/", 0o700)]
    {
        let mut header = header(0, mode);
        header.set_entry_type(tar::EntryType::Directory);
        layer.append_data(&mut header, directory, io::empty())?;
    }
    append(&mut layer, "bin/busybox", &fs::read(busybox())?, 0o755)?;
    for name in
        ["sh", "echo", "cat", "sleep", "id", "env", "true", "false", "ls", "nc", "httpd", "wget", "tar", "date", "ps"]
    {
        let mut header = header(0, 0o777);
        header.set_entry_type(tar::EntryType::Symlink);
        layer.append_link(&mut header, format!("bin/{name}"), "busybox")?;
    }
    let files = BTreeMap::from([
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nworker:x:1234:1234::/srv/work:/bin/sh\n"),
        ("etc/group", "root:x:0:\nworker:x:1234:\nextra:x:2345:worker\n"),
        ("etc/marker", "made by the suite\n"),
    ]);
    for (name, content) in files {
        append(&mut layer, name, content.as_bytes(), 0o644)?;
    }
    layer.into_inner()
}

fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_704_067_200);
    header
}

fn append<W: Write>(archive: &mut tar::Builder<W>, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
    archive.append_data(&mut header(content.len() as u64, mode), name, content)
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
