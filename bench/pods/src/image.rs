//! The image that everything runs: a static busybox. And one that containerd holds sandboxes with.

use std::{fs, io::Write, path::Path};

use anyhow::Context;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub const IMAGE: &str = "bench.mainstay/busybox:1";
pub const PAUSE: &str = "bench.mainstay/pause:1";

/// Both in one archive, as `docker save` writes it.
pub fn write(busybox: &Path, to: &Path) -> anyhow::Result<()> {
    let program = fs::read(busybox).with_context(|| format!("{}: run tools/test-deps", busybox.display()))?;
    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, "bin/busybox", &program, 0o755)?;
    for name in ["sh", "sleep"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        layer.append_link(&mut header, format!("bin/{name}"), "busybox")?;
    }
    let layer = layer.into_inner()?;
    let mut archive = tar::Builder::new(fs::File::create(to)?);
    append(&mut archive, "layer.tar", &layer, 0o644)?;
    let mut manifest = Vec::new();
    for (name, command) in [(IMAGE, json!(["/bin/sh"])), (PAUSE, json!(["/bin/sleep", "2000000000"]))] {
        let config = json!({
            "os": "linux",
            "architecture": if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" },
            "config": { "Env": ["PATH=/bin"], "Cmd": command },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
        });
        let config = config.to_string();
        let file = format!("{}.json", hex(config.as_bytes()));
        append(&mut archive, &file, config.as_bytes(), 0o644)?;
        manifest.push(json!({ "Config": file, "RepoTags": [name], "Layers": ["layer.tar"] }));
    }
    append(&mut archive, "manifest.json", Value::from(manifest).to_string().as_bytes(), 0o644)?;
    archive.into_inner()?.flush()?;
    Ok(())
}

fn append(archive: &mut tar::Builder<impl Write>, path: &str, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    Ok(archive.append_data(&mut header, path, content)?)
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
