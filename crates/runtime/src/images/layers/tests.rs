use super::*;
use crate::images::testing::{Tar, gzip, zstd};

struct Case {
    dir: tempfile::TempDir,
    files: Files,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        Self { dir, files }
    }

    fn add(&self, plain: &[u8], blob: &[u8], digest: Option<&str>) -> Result<(), LayerError> {
        let diff_id = super::digest(plain);
        add(&self.files, &ExpectedLayer { chain_id: &diff_id, diff_id: &diff_id, digest, below: &[] }, blob)
    }

    fn count(&self, part: &str) -> usize {
        fs::read_dir(self.dir.path().join(part)).unwrap().count()
    }
}

fn tar() -> Vec<u8> {
    Tar::default().file("a", &"content".repeat(1000)).end()
}

#[test]
fn chain_ids_are_those_of_the_specification() {
    let ids = ["sha256:aa".to_owned(), "sha256:bb".to_owned(), "sha256:cc".to_owned()];
    let chain = chain_ids(&ids);
    assert_eq!(chain[0], "sha256:aa");
    assert_eq!(chain[1], digest(b"sha256:aa sha256:bb"));
    assert_eq!(chain[2], digest(format!("{} sha256:cc", chain[1]).as_bytes()));
}

#[test]
fn plain_gzip_and_zstd_archives_are_the_same_layer() {
    let plain = tar();
    for blob in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let case = Case::new();
        case.add(&plain, &blob, Some(&digest(&blob))).unwrap();
        let layer = case.files.layer(&digest(&plain)).unwrap();
        assert_eq!(fs::read_to_string(layer.join("fs/a")).unwrap(), "content".repeat(1000));
        assert!(usage(&case.files, &digest(&plain)).unwrap().bytes >= 7000);
        assert_eq!(case.count("scratch"), 0);
    }
}

#[test]
fn gzip_in_several_members_is_read_to_its_end() {
    let plain = tar();
    let mut blob = gzip(&plain[..1000]);
    blob.extend(gzip(&plain[1000..]));
    Case::new().add(&plain, &blob, Some(&digest(&blob))).unwrap();
}

#[test]
fn damaged_blobs_leave_nothing_behind() {
    let plain = tar();
    let whole = gzip(&plain);
    let cut = &whole[..whole.len() / 2];
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x40;
    let other = gzip(&Tar::default().file("b", "other").end());
    for (blob, digest_of) in
        [(cut, &whole), (&flipped[..], &whole), (&other[..], &whole), (&other[..], &other), (b"", &whole)]
    {
        let case = Case::new();
        case.add(&plain, blob, Some(&digest(digest_of))).unwrap_err();
        assert!(!exists(&case.files, &digest(&plain)));
        assert_eq!((case.count("layers"), case.count("scratch")), (0, 0));
    }
}

#[test]
fn the_error_says_what_is_wrong() {
    let plain = tar();
    let other = gzip(&Tar::default().file("b", "other").end());
    let error = Case::new().add(&plain, &other, Some(&digest(&plain))).unwrap_err();
    assert!(matches!(error, LayerError::Mismatch { what: "archive of a layer", .. }), "{error}");
    let error = Case::new().add(&plain, &other, None).unwrap_err();
    assert!(matches!(error, LayerError::Mismatch { what: "content of a layer", .. }), "{error}");
}

#[test]
fn a_layer_is_extracted_once_however_many_ask() {
    let case = Case::new();
    let plain = tar();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| case.add(&plain, &plain, None).unwrap());
        }
    });
    assert_eq!((case.count("layers"), case.count("scratch")), (1, 0));
    let diff_id = digest(&plain);
    let wanted = ExpectedLayer { chain_id: &diff_id, diff_id: &diff_id, digest: None, below: &[] };
    add(&case.files, &wanted, io::empty()).expect("what is there was asked for again");
}

#[test]
fn ids_that_are_paths_are_refused() {
    let case = Case::new();
    let wanted = ExpectedLayer { chain_id: "sha256:../../x", diff_id: "x", digest: None, below: &[] };
    assert!(matches!(add(&case.files, &wanted, io::empty()), Err(LayerError::Digest(_))));
}
