use std::fs;

use mainstay_store::{Memory, Revision, WatchEvent};

use super::*;

const SECRET: &str = "/registry/secrets/default/s";
const OTHER: &str = "/registry/configmaps/default/c";
const VALUE: &[u8] = br#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"},"data":{"a":"aHVudGVyMg=="}}"#;

struct Disk {
    dir: tempfile::TempDir,
    store: Arc<Memory>,
}

impl Disk {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), store: Arc::new(Memory::new()) }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join(FILE)
    }

    /// A start of a server.
    async fn open(&self) -> Result<Encryption, EncryptionError> {
        Encryption::open(self.store.clone(), self.file(), Registry::builtin(), Writers::Ourselves).await
    }

    async fn raw(&self, key: &str) -> Bytes {
        self.store.get(key).await.unwrap().0.expect("a value").value.clone()
    }
}

fn put(key: &str, value: &[u8]) -> Txn {
    let op = Op::Put { key: key.into(), value: Bytes::copy_from_slice(value) };
    Txn { compares: Vec::new(), ops: vec![op] }
}

async fn read(encryption: &Encryption, key: &str) -> Bytes {
    encryption.store().get(key).await.unwrap().0.expect("a value").value.clone()
}

#[tokio::test]
async fn secrets_and_the_clusters_own_keys_are_sealed_and_nothing_else() {
    let disk = Disk::new();
    let encryption = disk.open().await.unwrap();
    for key in [SECRET, OTHER, keys::AUTHORITIES, keys::TOKEN_KEY] {
        encryption.store().commit(put(key, VALUE)).await.unwrap();
        assert_eq!(read(&encryption, key).await, VALUE);
        let is_plain = disk.raw(key).await == VALUE;
        assert_eq!(is_plain, key == OTHER, "{key}");
    }
    let again = disk.open().await.unwrap();
    assert_eq!(read(&again, SECRET).await, VALUE, "after a restart");
    assert_eq!(again.reencrypt().await.unwrap(), 0);
}

#[tokio::test]
async fn lists_watches_and_conflicts_show_what_was_sealed() {
    let disk = Disk::new();
    let store = disk.open().await.unwrap().store();
    let before = store.revision().await.unwrap();
    store.commit(put(SECRET, VALUE)).await.unwrap();
    let listing = store.list(List { prefix: "/registry/secrets/", ..List::default() }).await.unwrap();
    assert_eq!(listing.entries[0].value, VALUE);
    let mut watch = store.watch("/registry/secrets/default/", before).await.unwrap();
    let WatchEvent::Changes(changes) = watch.next().await.unwrap() else { panic!("no change") };
    assert_eq!(changes[0].current.as_ref().unwrap().value, VALUE);
    let mut txn = put(SECRET, VALUE);
    txn.compares.push(Compare { key: SECRET.into(), expect: Expect::ModifiedAt(Revision(1)) });
    let Outcome::Conflict { current } = store.commit(txn).await.unwrap() else { panic!("committed") };
    assert_eq!(current[0].as_ref().unwrap().value, VALUE);
    let (first, second) = (store.get(SECRET).await.unwrap().0.unwrap(), store.get(SECRET).await.unwrap().0.unwrap());
    assert!(Arc::ptr_eq(&first, &second), "a version is decrypted once");
}

#[tokio::test]
async fn plain_values_are_not_copied() {
    let disk = Disk::new();
    let store = disk.open().await.unwrap().store();
    store.commit(put(OTHER, VALUE)).await.unwrap();
    let raw = disk.store.get(OTHER).await.unwrap().0.unwrap();
    assert!(Arc::ptr_eq(&raw, &store.get(OTHER).await.unwrap().0.unwrap()));
    let listing = store.list(List { prefix: "/registry/configmaps/", ..List::default() }).await.unwrap();
    assert!(Arc::ptr_eq(&raw, &listing.entries[0]));
}

#[tokio::test]
async fn what_was_stored_plainly_is_sealed_after_the_start() {
    let disk = Disk::new();
    disk.store.commit(put(SECRET, VALUE)).await.unwrap();
    let encryption = Arc::new(disk.open().await.unwrap());
    assert_eq!(read(&encryption, SECRET).await, VALUE, "it can be read until then");
    encryption.clone().run(CancellationToken::new()).await;
    assert!(disk.raw(SECRET).await.starts_with(b"k8s:enc:secretbox:v1:key-"));
    assert_eq!(read(&encryption, SECRET).await, VALUE);
}

#[tokio::test]
async fn a_rotation_leaves_nothing_that_needs_the_old_key() {
    let disk = Disk::new();
    let encryption = disk.open().await.unwrap();
    for n in 0..PAGE + 10 {
        encryption.store().commit(put(&format!("/registry/secrets/default/s{n}"), VALUE)).await.unwrap();
    }
    let old = fs::read(disk.file()).unwrap();
    let rotation = encryption.rotate().await.unwrap();
    assert_eq!(rotation.reencrypted, PAGE + 11, "with the record of the key itself");
    let now = fs::read_to_string(disk.file()).unwrap();
    assert!(now.contains(&rotation.key) && now.matches("name:").count() == 1, "{now}");
    assert_eq!(read(&encryption, "/registry/secrets/default/s7").await, VALUE);
    let again = disk.open().await.unwrap();
    assert_eq!(read(&again, "/registry/secrets/default/s509").await, VALUE, "after a restart");
    fs::write(disk.file(), old).unwrap();
    assert!(disk.open().await.unwrap().missing.is_some(), "the old key is worth nothing");
}

/// The file and the store as a rotation leaves them that is interrupted at each of its steps.
#[tokio::test]
async fn an_interrupted_rotation_loses_nothing() {
    let disk = Disk::new();
    let encryption = disk.open().await.unwrap();
    for key in [SECRET, "/registry/secrets/default/t"] {
        encryption.store().commit(put(key, VALUE)).await.unwrap();
    }
    let config = EncryptionConfiguration::load(&disk.file()).unwrap().unwrap();
    let both = config.with_new_key(&NamedKey::generate().unwrap());
    both.save(&disk.file()).unwrap();
    let second = disk.open().await.unwrap();
    second.store().commit(put(SECRET, VALUE)).await.unwrap(); // one is sealed anew, the other is not
    let third = Arc::new(disk.open().await.unwrap());
    for key in [SECRET, "/registry/secrets/default/t"] {
        assert_eq!(read(&third, key).await, VALUE);
    }
    third.clone().run(CancellationToken::new()).await;
    both.without_old_keys().save(&disk.file()).unwrap();
    let fourth = disk.open().await.unwrap();
    assert_eq!((fourth.missing.clone(), fourth.reencrypt().await.unwrap()), (None, 0));
    assert_eq!(read(&fourth, "/registry/secrets/default/t").await, VALUE);
}

#[tokio::test]
async fn a_server_without_the_key_makes_none_and_says_which_it_lacks() {
    let disk = Disk::new();
    let encryption = disk.open().await.unwrap();
    encryption.store().commit(put(SECRET, VALUE)).await.unwrap();
    let other = Disk { dir: tempfile::tempdir().unwrap(), store: disk.store.clone() };
    let lacking = other.open().await.unwrap();
    assert!(!other.file().exists());
    let value = read(&lacking, SECRET).await;
    let why = super::super::unreadable_reason(&value).unwrap();
    assert!(why.contains("key \"key-") && why.contains("no key of this server decrypts it"), "{why}");
    let error = lacking.store().commit(put(SECRET, VALUE)).await.unwrap_err().to_string();
    assert!(error.contains(SECRET) && error.contains("not known to this server"), "{error}");
    lacking.store().commit(put(OTHER, VALUE)).await.unwrap();
    assert!(matches!(lacking.rotate().await, Err(RotateError::Lacking { .. })));
    assert_eq!(lacking.reencrypt().await.unwrap(), 0);
    fs::copy(disk.file(), other.file()).unwrap();
    assert_eq!(read(&other.open().await.unwrap(), SECRET).await, VALUE);
}

#[tokio::test]
async fn of_two_servers_that_start_at_once_one_makes_the_key() {
    let (first, dir) = (Disk::new(), tempfile::tempdir().unwrap());
    let second = Disk { dir, store: first.store.clone() };
    // Both have found nothing and made a file when the first claims it.
    let made = EncryptionConfiguration::generate(&Registry::builtin()).unwrap();
    let codec = |config: &EncryptionConfiguration| {
        Arc::new(Codec::new(Registry::builtin(), Keyring::new(config, &Registry::builtin()).unwrap()))
    };
    let store = Arc::new(EncodedStore::new(second.store.clone(), codec(&made), Writers::AnyServer));
    made.save(&second.file()).unwrap();
    let late = Encryption {
        file: second.file(),
        registry: Registry::builtin(),
        store,
        missing: None,
        rotating: Mutex::new(()),
    };
    first.open().await.unwrap();
    let error = late.claim(true).await.unwrap_err().to_string();
    assert!(error.contains("copy its encryption-config.yaml"), "{error}");
    assert!(!second.file().exists(), "the key that nobody uses is gone");
}

#[tokio::test]
async fn several_servers_are_not_rotated_behind_each_others_back() {
    let disk = Disk::new();
    let encryption = disk.open().await.unwrap();
    for server in ["192.0.2.1:6443", "192.0.2.2:6443"] {
        encryption.store().commit(put(&format!("{}{server}", keys::SERVERS), b"")).await.unwrap();
    }
    let before = fs::read(disk.file()).unwrap();
    let error = encryption.rotate().await.unwrap_err().to_string();
    assert!(error.starts_with("2 servers share this store"), "{error}");
    assert_eq!(fs::read(disk.file()).unwrap(), before);
}
