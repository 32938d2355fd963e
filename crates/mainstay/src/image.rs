//! `mainstay image`: the images of this machine, whether or not an agent runs. A running agent sees every change at once.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use mainstay_runtime::{
    RuntimeError,
    images::{Auth, Image, ImageStore, Images, Options, PullError},
};

use crate::{cli::DataDir, exit::Exit};

#[derive(Debug, Args)]
pub struct ImageOptions {
    #[command(subcommand)]
    pub verb: ImageVerb,
}

#[derive(Debug, Subcommand)]
pub enum ImageVerb {
    /// Add the images of FILE: an OCI layout, what `docker save` writes, or, with a name, an archive of a root filesystem
    Import(ImportOptions),
    /// Fetch images from their registries
    Pull(PullOptions),
    /// Give an image another name, such as the one that a manifest uses
    Tag(TagOptions),
    /// List the images of this machine
    Ls(LsOptions),
    /// Remove names of images, and images with their last name
    Rm(RmOptions),
}

#[derive(Debug, Args)]
pub struct ImportOptions {
    /// An archive (plain, gzip or zstd) or the directory of an OCI layout
    pub file: PathBuf,

    /// What to call the image
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    #[command(flatten)]
    pub data: DataDir,
}

#[derive(Debug, Args)]
pub struct PullOptions {
    /// Their names, as in `busybox` or `registry.example/web:v1`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,

    /// User at the registry
    #[arg(long, env = "MAINSTAY_REGISTRY_USER", value_name = "NAME", requires = "password_file")]
    pub username: Option<String>,

    /// File with the password of the user at the registry
    #[arg(long, env = "MAINSTAY_REGISTRY_PASSWORD_FILE", value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,

    /// Speak to this registry without TLS
    #[arg(long, env = "MAINSTAY_INSECURE_REGISTRY", value_name = "HOST:PORT", value_delimiter = ',')]
    pub insecure_registry: Vec<String>,

    #[command(flatten)]
    pub data: DataDir,
}

#[derive(Debug, Args)]
pub struct TagOptions {
    /// Name or id of an image that is here
    pub image: String,

    /// Its new name, as in `web:v1`
    pub name: String,

    #[command(flatten)]
    pub data: DataDir,
}

#[derive(Debug, Args)]
pub struct LsOptions {
    #[command(flatten)]
    pub data: DataDir,
}

#[derive(Debug, Args)]
pub struct RmOptions {
    /// Names or ids
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,

    #[command(flatten)]
    pub data: DataDir,
}

pub fn run(options: ImageOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    runtime.block_on(async {
        match options.verb {
            ImageVerb::Import(options) => import(&options),
            ImageVerb::Pull(options) => pull(&options).await,
            ImageVerb::Tag(options) => tag(&options).await,
            ImageVerb::Ls(options) => ls(&options).await,
            ImageVerb::Rm(options) => rm(&options).await,
        }
    })
}

/// Where the built-in runtime keeps its images below a data directory.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("runtime/images")
}

fn open(data: &DataDir) -> Result<ImageStore, Exit> {
    ImageStore::open(&directory(&data.path())).map_err(|e| Exit::Failed(anyhow!(e)))
}

fn import(options: &ImportOptions) -> Result<(), Exit> {
    let store = open(&options.data)?;
    let imported = store.import(&options.file, options.name.as_deref());
    let imported = imported.map_err(|e| Exit::Refused(anyhow!(e)))?;
    for image in imported {
        match image.tags.as_slice() {
            [] => println!("{} (no name; --name gives it one)", image.id),
            tags => println!("{}  {}", tags.join(" "), image.id),
        }
    }
    Ok(())
}

async fn pull(options: &PullOptions) -> Result<(), Exit> {
    let password = match &options.password_file {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?,
        None => String::new(),
    };
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    let auth = options.username.clone().map(|username| Auth { username, password, token: String::new() });
    let settings = Options { insecure: options.insecure_registry.clone(), ..Options::default() };
    let store = ImageStore::open_with(&directory(&options.data.path()), settings);
    let store = store.map_err(|e| Exit::Failed(anyhow!(e)))?;
    for name in &options.names {
        let image = store.pull(name, auth.as_ref()).await.map_err(|error| match error {
            PullError::InvalidName { .. } | PullError::NotFound { .. } | PullError::Refused { .. } => {
                Exit::Refused(anyhow!(error))
            }
            PullError::Failed { .. } | PullError::Runtime(_) => Exit::Failed(anyhow!(error)),
        })?;
        println!("{}  {}", names(&image).join(" "), image.id);
    }
    Ok(())
}

async fn tag(options: &TagOptions) -> Result<(), Exit> {
    let store = open(&options.data)?;
    let image = find(&store, &options.image).await.map_err(|e| Exit::Failed(anyhow!(e)))?;
    let Some((reference, image)) = image else {
        return Err(Exit::Refused(anyhow!(
            "there is no image {}; mainstay image ls lists those that are",
            options.image
        )));
    };
    let name = store.add_name(&reference, &options.name).map_err(|error| match error {
        RuntimeError::Invalid { .. } | RuntimeError::ImageMissing { .. } => Exit::Refused(anyhow!(error)),
        other => Exit::Failed(anyhow!(other)),
    })?;
    println!("{name}  {}", image.id);
    Ok(())
}

async fn ls(options: &LsOptions) -> Result<(), Exit> {
    let images = open(&options.data)?.list().await.map_err(|e| Exit::Failed(anyhow!(e)))?;
    print!("{}", table(&images));
    Ok(())
}

async fn rm(options: &RmOptions) -> Result<(), Exit> {
    let store = open(&options.data)?;
    for name in &options.names {
        let image = find(&store, name).await.map_err(|e| Exit::Failed(anyhow!(e)))?;
        let Some((reference, image)) = image else {
            return Err(Exit::Refused(anyhow!("there is no image {name}")));
        };
        let removed = if image.id == mainstay_runtime::images::HOST_IMAGE {
            store.remove(&image.id).await.map(|()| 0)
        } else {
            store.remove_name(&reference)
        };
        let freed = removed.map_err(|error| match error {
            RuntimeError::Invalid { .. } => Exit::Refused(anyhow!(error)),
            other => Exit::Failed(anyhow!(other)),
        })?;
        println!("removed {name}, {} freed", size(freed));
    }
    Ok(())
}

/// By name or id, or by how an id begins; with the reference it is known by.
async fn find(store: &ImageStore, name: &str) -> Result<Option<(String, Image)>, RuntimeError> {
    if let Some(image) = store.find(name).await? {
        return Ok(Some((name.to_owned(), image)));
    }
    let start = name.strip_prefix("sha256:").unwrap_or(name);
    if start.len() < 6 || !start.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(None);
    }
    let start = format!("sha256:{}", start.to_ascii_lowercase());
    let mut fitting: Vec<Image> =
        store.list().await?.into_iter().filter(|image| image.id.starts_with(&start)).collect();
    Ok(match (fitting.pop(), fitting.is_empty()) {
        (Some(image), true) => Some((image.id.clone(), image)),
        _ => None,
    })
}

fn names(image: &Image) -> &[String] {
    if image.tags.is_empty() { &image.digests } else { &image.tags }
}

fn table(images: &[Image]) -> String {
    let mut rows = vec![["NAME".to_owned(), "ID".to_owned(), "SIZE".to_owned()]];
    for image in images {
        let hex = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
        let size = if image.id == mainstay_runtime::images::HOST_IMAGE { "-".to_owned() } else { size(image.size) };
        let row = |name: &str| [name.to_owned(), hex.chars().take(12).collect(), size.clone()];
        match names(image) {
            [] => rows.push(row("<none>")),
            names => rows.extend(names.iter().map(|name| row(name))),
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, id) = (width(0), width(1));
    rows.iter().map(|[a, b, c]| format!("{a:name$}  {b:id$}  {c}\n")).collect()
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let mut scaled = bytes as f64 / 1000.0;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let digits = if scaled >= 99.5 || unit == 0 { 0 } else { 1 };
    format!("{scaled:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_per_name() {
        let image = |id: &str, tags: &[&str], size| Image {
            id: id.to_owned(),
            tags: tags.iter().map(|tag| tag.to_string()).collect(),
            size,
            ..Image::default()
        };
        let images = [
            image("host", &["host"], 0),
            image("sha256:0123456789abcdef", &["a.example/x:1", "a.example/x:2"], 4_210_000),
            image("sha256:fedcba9876543210", &[], 999),
        ];
        let expected = "\
NAME           ID            SIZE
host           host          -
a.example/x:1  0123456789ab  4.2 MB
a.example/x:2  0123456789ab  4.2 MB
<none>         fedcba987654  1 kB
";
        assert_eq!(table(&images), expected);
    }

    #[test]
    fn sizes_are_readable() {
        let cases =
            [(0, "0 kB"), (1500, "2 kB"), (999_999, "1.0 MB"), (123_456_789, "123 MB"), (5_000_000_000, "5.0 GB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
