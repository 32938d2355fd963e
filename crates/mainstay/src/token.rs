//! `mainstay token`: creates, lists and deletes the tokens with which machines join.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, PostParams},
    config::Kubeconfig,
};
use mainstay_agent::join::Token;
use mainstay_api::{duration::parse_duration_with_days, wellknown::mainstay::USES_LEFT};

use crate::{cli::DataDir, exit::Exit};

#[derive(Debug, Args)]
pub struct TokenOptions {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print it
    Create {
        #[command(flatten)]
        data: DataDir,

        /// How long machines may join with it, like 30m, 24h or 7d; 0 for no end
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_ttl)]
        ttl: Duration,

        /// How many machines may join with it [default: any number]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
    },
    /// Show which tokens there are, without their secrets
    List {
        #[command(flatten)]
        data: DataDir,
    },
    /// Make a token worthless
    Delete {
        /// What the token begins with
        id: String,

        #[command(flatten)]
        data: DataDir,
    },
}

const NAMESPACE: &str = mainstay_api::wellknown::namespace::SYSTEM;
const PREFIX: &str = "bootstrap-token-";
const TYPE: &str = mainstay_api::wellknown::BOOTSTRAP_TOKEN_SECRET;
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

pub fn run(options: &TokenOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        match &options.command {
            TokenCommand::Create { data, ttl, uses } => Cluster::connect(data).await?.create(*ttl, *uses).await,
            TokenCommand::List { data } => Cluster::connect(data).await?.list().await,
            TokenCommand::Delete { id, data } => Cluster::connect(data).await?.delete(id).await,
        }
    })
}

/// The API, and the authority that machines will recognise it by.
struct Cluster {
    secrets: Api<Secret>,
    ca: String,
}

impl Cluster {
    async fn connect(data: &DataDir) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let path = data.path().join("admin.kubeconfig");
        let kubeconfig = Kubeconfig::read_from(&path)
            .with_context(|| format!("read {}; tokens are made on a server, with its --data-dir", path.display()))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
        let ca = config.root_cert.as_ref().and_then(|roots| roots.first());
        let ca = ca.map(|der| pem(der)).ok_or_else(|| anyhow!("{} names no certificate authority", path.display()))?;
        let secrets = Api::namespaced(Client::try_from(config)?, NAMESPACE);
        Ok(Self { secrets, ca })
    }

    async fn create(&self, ttl: Duration, uses: Option<u32>) -> Result<(), Exit> {
        let (id, secret) = (random(6)?, random(16)?);
        let token =
            Token::new(&id, &secret, &self.ca).ok_or_else(|| anyhow!("the certificate authority is unreadable"))?;
        let expires = (!ttl.is_zero()).then(|| expiry(Timestamp::now(), ttl));
        let object = secret_of(&id, &secret, expires, uses);
        self.secrets.create(&PostParams::default(), &object).await.context("write the token")?;
        println!("{token}");
        Ok(())
    }

    async fn list(&self) -> Result<(), Exit> {
        let params = ListParams::default().fields(&format!("type={TYPE}"));
        let tokens = self.secrets.list(&params).await.context("list tokens")?;
        println!("{:<8} {:<22} USES LEFT", "ID", "EXPIRES");
        for token in tokens {
            let text = |key: &str| {
                let value = token.data.as_ref().and_then(|data| data.get(key));
                value.map(|value| String::from_utf8_lossy(&value.0).into_owned())
            };
            let expires = text("expiration").unwrap_or_else(|| "never".to_owned());
            let uses = token.metadata.annotations.as_ref().and_then(|annotations| annotations.get(USES_LEFT));
            let uses = uses.map_or("any", String::as_str);
            println!("{:<8} {expires:<22} {uses}", text("token-id").unwrap_or_default());
        }
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), Exit> {
        let id = id.split('.').next().unwrap_or_default();
        match self.secrets.delete(&format!("{PREFIX}{id}"), &DeleteParams::default()).await {
            Ok(_) => {
                println!("Deleted token {id}.");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Err(Exit::Refused(anyhow!("there is no token {id:?}; `mainstay token list` tells which there are")))
            }
            Err(error) => Err(Exit::Failed(anyhow!(error).context("delete the token"))),
        }
    }
}

fn expiry(now: Timestamp, ttl: Duration) -> Timestamp {
    let end = SignedDuration::try_from(ttl).ok().and_then(|ttl| now.checked_add(ttl).ok()).unwrap_or(Timestamp::MAX);
    Timestamp::from_second(end.as_second()).unwrap_or(end)
}

fn secret_of(id: &str, secret: &str, expires: Option<Timestamp>, uses: Option<u32>) -> Secret {
    let mut data: std::collections::BTreeMap<String, ByteString> = [
        ("token-id", id.to_owned()),
        ("token-secret", secret.to_owned()),
        ("description", "made by mainstay token create".to_owned()),
        ("usage-bootstrap-authentication", "true".to_owned()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
    .collect();
    if let Some(expires) = expires {
        data.insert("expiration".to_owned(), ByteString(expires.to_string().into_bytes()));
    }
    Secret {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{id}")),
            annotations: uses.map(|uses| [(USES_LEFT.to_owned(), uses.to_string())].into()),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

/// Letters and digits that nobody can guess.
fn random(length: usize) -> anyhow::Result<String> {
    use std::io::Read;
    let mut source = std::fs::File::open("/dev/urandom").context("open /dev/urandom")?;
    let mut text = String::with_capacity(length);
    let mut byte = [0];
    while text.len() < length {
        source.read_exact(&mut byte).context("read /dev/urandom")?;
        // Values beyond the last full round of the alphabet would favour its beginning.
        if usize::from(byte[0]) < 256 / ALPHABET.len() * ALPHABET.len() {
            text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
        }
    }
    Ok(text)
}

fn pem(der: &[u8]) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64_STANDARD.encode(der))
}

/// `90s`, `30m`, `24h`, `7d`, or `0` for no end.
pub fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration_with_days(text);
    ttl.ok_or_else(|| format!("{text:?} is not a time like 30m, 24h or 7d, or 0 for no end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(parse_ttl("24h"), Ok(Duration::from_secs(86400)));
        assert_eq!(parse_ttl("7d"), Ok(Duration::from_secs(7 * 86400)));
        assert_eq!(parse_ttl("0"), Ok(Duration::ZERO));
        assert_eq!(parse_ttl("1d12h"), Ok(Duration::from_secs(36 * 3600)));
        for wrong in ["", "h", "5", "-1h", "1w", "99999999999999999d"] {
            assert!(parse_ttl(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let (one, other) = (random(16).unwrap(), random(16).unwrap());
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| ALPHABET.contains(&byte)));
    }

    #[test]
    fn a_token_is_what_the_api_expects() {
        let secret = secret_of("abcdef", "0123456789abcdef", Some("2026-01-01T00:00:00Z".parse().unwrap()), Some(3));
        assert_eq!(secret.metadata.name.as_deref(), Some("bootstrap-token-abcdef"));
        let data = secret.data.unwrap();
        assert_eq!(data["expiration"].0, b"2026-01-01T00:00:00Z");
        assert_eq!(data["usage-bootstrap-authentication"].0, b"true");
    }
}
