use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use super::*;
use crate::images::testing::Tar;

struct Made {
    dir: tempfile::TempDir,
    result: Result<DiskUsage>,
}

impl Made {
    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("layer").join(path)
    }

    fn stat(&self, path: &str) -> fs::Metadata {
        fs::symlink_metadata(self.path(path)).unwrap()
    }

    fn opaque(&self, path: &str) -> bool {
        let mut value = Vec::with_capacity(8);
        let found = rustix::fs::getxattr(self.path(path), OPAQUE, rustix::buffer::spare_capacity(&mut value));
        found.is_ok() && value == b"y"
    }
}

fn made(tar: Tar) -> Made {
    made_of(&tar.end(), &[])
}

fn made_of(bytes: &[u8], lower: &[PathBuf]) -> Made {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("layer")).unwrap();
    let result = extract(bytes, &dir.path().join("layer"), lower);
    Made { dir, result }
}

#[test]
fn files_keep_mode_owner_time_and_content() {
    let made = made(
        Tar::default()
            .dir("./", 0o711)
            .dir("bin", 0o1777)
            .owned("bin/su", 0o4755, (12, 34))
            .file("/absolute", "content")
            .symlink("link", "bin/su")
            .entry(EntryType::Fifo, "pipe", 0o600, "", b"")
            .entry(EntryType::Char, "null", 0o666, "", b""),
    );
    made.result.as_ref().unwrap();
    let su = made.stat("bin/su");
    assert_eq!((su.mode() & 0o7777, su.uid(), su.gid(), su.mtime()), (0o4755, 12, 34, 1_700_000_000));
    let bin = made.stat("bin");
    assert_eq!((bin.mode() & 0o7777, bin.mtime()), (0o1777, 1_700_000_000));
    assert_eq!(made.stat("").mode() & 0o7777, 0o711);
    assert_eq!(fs::read_to_string(made.path("absolute")).unwrap(), "content");
    assert_eq!(fs::read_link(made.path("link")).unwrap(), Path::new("bin/su"));
    assert!(made.stat("pipe").file_type().is_fifo());
    let null = made.stat("null");
    assert!(null.file_type().is_char_device());
    assert_eq!((null.rdev(), null.mode() & 0o777), (rustix::fs::makedev(1, 3), 0o666));
}

#[test]
fn whiteouts_become_what_overlayfs_understands() {
    let made = made(
        Tar::default()
            .dir("a", 0o755)
            .file("a/.wh.gone", "")
            .dir("opaque", 0o755)
            .file("opaque/.wh..wh..opq", "")
            .file("opaque/new", "")
            .file("a/.wh..wh.plnk", "")
            .file("implied/.wh.x", ""),
    );
    made.result.as_ref().unwrap();
    for path in ["a/gone", "implied/x"] {
        let gone = made.stat(path);
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0, "{path}");
    }
    assert!(made.opaque("opaque") && !made.opaque("a"));
    assert!(!made.path("a/.wh..wh.plnk").exists());
}

#[test]
fn a_layer_may_hide_a_name_and_use_it() {
    let made = made(
        Tar::default()
            .file(".wh.first", "")
            .dir("first", 0o755)
            .dir("second", 0o755)
            .file(".wh.second", "")
            .file(".wh.third", "")
            .file("third", "here")
            .file("fourth", "here")
            .file(".wh.fourth", ""),
    );
    made.result.as_ref().unwrap();
    assert!(made.opaque("first") && made.opaque("second"));
    assert_eq!(fs::read_to_string(made.path("third")).unwrap(), "here");
    assert_eq!(fs::read_to_string(made.path("fourth")).unwrap(), "here");
}

#[test]
fn nothing_is_written_outside_the_layer() {
    let victim = tempfile::tempdir().unwrap();
    let target = victim.path().to_str().unwrap();
    let escapes: Vec<(Tar, &str)> = vec![
        (Tar::default().file("../climbed", "x"), "climbs"),
        (Tar::default().file("a/../../climbed", "x"), "climbs"),
        (Tar::default().file("..", "x"), "climbs"),
        (Tar::default().file("a/.wh...", "x"), "hides nothing"),
        (Tar::default().file(".wh.", "x"), "hides nothing"),
        (Tar::default().link("hard", "../../../etc/passwd"), "climbs"),
        (Tar::default().symlink("link", target).file("link/x", "x"), "leads nowhere"),
        (Tar::default().symlink("link", target).file("link/.wh.x", "x"), "leads nowhere"),
        (Tar::default().symlink("link", "../../../../../../..").link("hard", "link/etc/passwd"), ""),
        (Tar::default().symlink("link", "/etc/passwd").link("hard", "link").file("hard/x", "x"), ""),
    ];
    for (number, (tar, why)) in escapes.into_iter().enumerate() {
        let made = made(tar);
        let error = made.result.as_ref().expect_err("extracted").to_string();
        assert!(error.contains(why), "{number}: {error}");
        assert!(fs::read_dir(victim.path()).unwrap().next().is_none(), "{number} wrote outside");
        let beside: Vec<_> = fs::read_dir(made.dir.path()).unwrap().collect();
        assert_eq!(beside.len(), 1, "{number} wrote beside the layer");
    }
}

#[test]
fn links_lead_to_places_within_the_layer() {
    let made = made(
        Tar::default()
            .dir("etc", 0o755)
            .symlink("up", "../../../etc")
            .file("up/through", "x")
            .symlink("var", "/etc")
            .file("var/absolute", "y")
            // A name that is a link is replaced, not followed.
            .symlink("etc/file", "/etc/passwd")
            .file("etc/file", "own")
            .link("hard", "var/absolute"),
    );
    made.result.as_ref().unwrap();
    assert_eq!(fs::read_to_string(made.path("etc/through")).unwrap(), "x");
    assert_eq!(fs::read_to_string(made.path("etc/absolute")).unwrap(), "y");
    assert_eq!(fs::read_to_string(made.path("etc/file")).unwrap(), "own");
    assert!(made.stat("etc/file").is_file());
    assert_eq!(made.stat("hard").ino(), made.stat("etc/absolute").ino());
}

#[test]
fn later_entries_replace_earlier_ones() {
    let made = made(
        Tar::default()
            .dir("d", 0o755)
            .file("d/x", "x")
            .file("d", "now a file")
            .file("f", "file")
            .dir("f", 0o700)
            .file("f/y", "y")
            .dir("kept", 0o700)
            .file("kept/z", "z")
            .dir("kept", 0o750),
    );
    made.result.as_ref().unwrap();
    assert_eq!(fs::read_to_string(made.path("d")).unwrap(), "now a file");
    assert_eq!(fs::read_to_string(made.path("f/y")).unwrap(), "y");
    assert_eq!(fs::read_to_string(made.path("kept/z")).unwrap(), "z");
    assert_eq!(made.stat("kept").mode() & 0o777, 0o750);
}

#[test]
fn implied_directories_look_as_in_the_layers_below() {
    let below = made(Tar::default().dir("tmp", 0o1777).dir("srv", 0o750));
    let tar = Tar::default().file("tmp/x", "x").file("srv/deep/y", "y").end();
    let made = made_of(&tar, &[below.path("")]);
    made.result.as_ref().unwrap();
    assert_eq!(made.stat("tmp").mode() & 0o7777, 0o1777);
    assert_eq!(made.stat("srv").mode() & 0o7777, 0o750);
    assert_eq!(made.stat("srv/deep").mode() & 0o7777, 0o755);
}

#[test]
fn extended_attributes_are_kept_but_not_those_of_overlayfs() {
    let capability = "\u{1}\0\0\u{2}\0\u{4}\0\0\0\0\0\0\0\0\0\0\0\0\0\0"; // cap_net_bind_service=p
    let made = made(
        Tar::default()
            .pax(&[
                ("SCHILY.xattr.security.capability", capability),
                ("SCHILY.xattr.trusted.overlay.opaque", "y"),
                ("SCHILY.xattr.trusted.mine", "value"),
                ("mtime", "1600000000.25"),
            ])
            .dir("d", 0o755)
            .pax(&[("path", &format!("d/{}", "long".repeat(60))), ("uid", "3000000")])
            .file("short", "x"),
    );
    made.result.as_ref().unwrap();
    assert!(!made.opaque("d"));
    let mut value = Vec::with_capacity(64);
    rustix::fs::getxattr(made.path("d"), "trusted.mine", rustix::buffer::spare_capacity(&mut value)).unwrap();
    assert_eq!(value, b"value");
    assert_eq!((made.stat("d").mtime(), made.stat("d").mtime_nsec()), (1_600_000_000, 250_000_000));
    assert_eq!(made.stat(&format!("d/{}", "long".repeat(60))).uid(), 3_000_000);
}

#[test]
fn empty_stretches_take_no_room() {
    let mut content = vec![0; 4 << 20];
    content[1 << 20] = 1;
    let made = made(Tar::default().entry(EntryType::Regular, "sparse", 0o644, "", &content));
    let usage = made.result.as_ref().unwrap();
    assert!(usage.bytes < 1 << 20, "{usage:?}");
    assert_eq!(fs::read(made.path("sparse")).unwrap(), content);
}

#[test]
fn a_truncated_archive_is_an_error() {
    let tar = Tar::default().file("a", &"x".repeat(2000)).end();
    assert!(made_of(&tar[..1000], &[]).result.is_err());
    assert!(made_of(b"not an archive at all", &[]).result.is_err());
}

#[test]
fn linked_files_count_once() {
    let made = made(Tar::default().file("a", &"x".repeat(10_000)).link("b", "a").link("c", "a"));
    let usage = made.result.as_ref().unwrap();
    assert_eq!(usage.inodes, 2);
    assert_eq!(made.stat("a").nlink(), 3);
}

#[test]
fn fields_left_empty_are_zero() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu(); // owner and time stay blank
    header.set_size(1);
    header.set_mode(0o600);
    builder.append_data(&mut header, "a", &b"x"[..]).unwrap();
    let made = made_of(&builder.into_inner().unwrap(), &[]);
    made.result.as_ref().unwrap();
    let a = made.stat("a");
    assert_eq!((a.uid(), a.gid(), a.mtime(), a.mode() & 0o777), (0, 0, 0, 0o600));
}

/// Headers of extended attributes without an end, and files of any size, made while they are read.
#[test]
fn a_small_archive_cannot_claim_very_much() {
    let header = |kind: EntryType, size: u64| {
        let mut header = tar::Header::new_ustar();
        header.set_path("a").unwrap();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let dir = tempfile::tempdir().unwrap();
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink] {
        let archive = header(kind, 1 << 33);
        let mut left = io::Cursor::new(archive).chain(io::repeat(b'a').take(1 << 33));
        let refused = extract(&mut left, dir.path(), &[]).expect_err("too many headers");
        let ExtractError::Read(why) = refused else { panic!("{refused}") };
        assert!(why.to_string().contains("bytes of headers"), "{kind:?}: {why}");
        assert!(left.get_ref().1.limit() > (1 << 33) - 2 * MAX_HEADERS, "{kind:?}: most of it is not read");
    }
    let archive = io::Cursor::new(header(EntryType::Regular, MAX_LAYER + 1)).chain(io::repeat(0));
    let refused = extract(archive, dir.path(), &[]).expect_err("too large");
    assert!(refused.to_string().contains("larger than 1 TiB"), "{refused}");
    let unwanted = [header(EntryType::Directory, MAX_HEADERS * 2), vec![0; MAX_HEADERS as usize * 2]].concat();
    extract(&unwanted[..], dir.path(), &[]).expect("content that is not wanted is no header");
}
