//! Authorities that all servers on one store share.
//!
//! A certificate that one of several servers issues has to be good at all of them. So the authorities lie in the store, next to the
//! key of service account tokens: the first server puts its own there, and every other takes them over.

use std::path::{Path, PathBuf};

use mainstay_store::{Compare, Expect, Op, Outcome, Store, StoreError, Txn};
use serde::{Deserialize, Serialize};

use super::{CA, Identity, NODE_CA, PkiError, authority, files};
use crate::{objects::keys, storage};

const KEY: &str = keys::AUTHORITIES;

#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("read or write {KEY} in the store")]
    Store(#[from] StoreError),
    #[error("{KEY} in the store holds no authorities")]
    Unreadable(#[source] serde_json::Error),
    #[error(
        "{KEY} in the store cannot be read: {why}. Copy {} from the data directory of a server of the cluster to that of this one, \
         or name it with --encryption-provider-config",
        storage::encryption::FILE
    )]
    Encrypted { why: String },
    #[error(
        "{} is another authority than that of the cluster in the store. Move {} away to join that cluster as a server",
        file.display(), dir.display()
    )]
    Another { file: PathBuf, dir: PathBuf },
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Authorities {
    ca: Identity,
    node_ca: Identity,
}

/// Puts the authorities of this directory into the store, or those of the store into this directory.
pub async fn share(store: &dyn Store, dir: &Path) -> Result<(), ShareError> {
    files::prepare(dir)?;
    let (ca, node_ca) = (files::load(dir, CA)?, files::load(dir, NODE_CA)?);
    let shared = match store.get(KEY).await?.0 {
        Some(entry) => match (read(&entry.value), &ca, &node_ca) {
            // Without the key it cannot compare, but it has been a server of some cluster before.
            (Err(ShareError::Encrypted { why }), Some(ca), Some(node_ca)) => {
                tracing::error!(why, "cannot compare the authorities of this server with those of the cluster");
                Authorities { ca: ca.clone(), node_ca: node_ca.clone() }
            }
            (shared, ..) => shared?,
        },
        None => {
            let own = Authorities {
                ca: ca.clone().map_or_else(|| authority::make(CA), Ok)?,
                node_ca: node_ca.clone().map_or_else(|| authority::make(NODE_CA), Ok)?,
            };
            offer(store, own).await?
        }
    };
    for (name, own, shared) in [(CA, ca, shared.ca), (NODE_CA, node_ca, shared.node_ca)] {
        match own {
            None => drop(files::store(dir, name, shared)?),
            Some(own) if own == shared => {}
            Some(_) => {
                return Err(ShareError::Another { file: dir.join(format!("{name}.crt")), dir: dir.to_owned() });
            }
        }
    }
    Ok(())
}

/// Those that are in the store from now on: these, unless another server was faster.
async fn offer(store: &dyn Store, own: Authorities) -> Result<Authorities, ShareError> {
    let value = serde_json::to_vec(&own).map_err(ShareError::Unreadable)?;
    let txn = Txn {
        compares: vec![Compare { key: KEY.into(), expect: Expect::Absent }],
        ops: vec![Op::Put { key: KEY.into(), value: value.into() }],
    };
    match store.commit(txn).await? {
        Outcome::Committed(_) => Ok(own),
        Outcome::Conflict { current } => read(current.iter().flatten().next().map_or(&[], |entry| &entry.value)),
    }
}

fn read(bytes: &[u8]) -> Result<Authorities, ShareError> {
    match storage::unreadable_reason(bytes) {
        Some(why) => Err(ShareError::Encrypted { why }),
        None => serde_json::from_slice(bytes).map_err(ShareError::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_store::Memory;

    use super::{super::Pki, *};

    fn open(dir: &Path) -> Pki {
        Pki::open(dir, &["localhost".to_owned()]).unwrap()
    }

    #[tokio::test]
    async fn all_servers_on_a_store_have_the_authorities_of_the_first() {
        let (store, first, second) = (Memory::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let before = open(first.path()); // it may have had them for long
        share(&store, first.path()).await.unwrap();
        share(&store, second.path()).await.unwrap();
        share(&store, second.path()).await.unwrap();
        let (own, other) = (open(first.path()), open(second.path()));
        assert_eq!(before.ca, other.ca);
        assert_eq!(own.node_authority.certificate(), other.node_authority.certificate());
        let [own, other] = [&first, &second].map(|dir| std::fs::read(dir.path().join("server.crt")).unwrap());
        assert_ne!(own, other);
    }

    #[tokio::test]
    async fn a_server_of_another_cluster_is_refused_and_told_what_to_do() {
        let (store, first, other) = (Memory::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        share(&store, first.path()).await.unwrap();
        let ca = open(other.path()).ca;
        let error = share(&store, other.path()).await.expect_err("it is another cluster's");
        let said = error.to_string();
        assert!(said.contains("ca.crt") && said.contains("Move"), "{said}");
        assert_eq!(open(other.path()).ca, ca, "what it has is left alone");
    }
}
