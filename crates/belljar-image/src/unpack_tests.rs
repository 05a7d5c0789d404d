use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use proptest::prelude::*;

use super::*;
use crate::layer;

/// Builds an archive entry by entry. It may be hostile: names are written to the header unchecked.
#[derive(Default)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    fn add(mut self, kind: tar::EntryType, name: &[u8], link: &[u8], content: &[u8]) -> Tar {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link);
        header.set_entry_type(kind);
        header.set_mode(0o6755);
        header.set_size(content.len() as u64);
        header.set_mtime(1_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &str) -> Tar {
        self.add(tar::EntryType::Regular, name.as_bytes(), b"", content.as_bytes())
    }

    pub(crate) fn directory(self, name: &str) -> Tar {
        self.add(tar::EntryType::Directory, name.as_bytes(), b"", b"")
    }

    pub(crate) fn link(self, name: &str, to: &str) -> Tar {
        self.add(tar::EntryType::Symlink, name.as_bytes(), to.as_bytes(), b"")
    }

    pub(crate) fn hard_link(self, name: &str, to: &str) -> Tar {
        self.add(tar::EntryType::Link, name.as_bytes(), to.as_bytes(), b"")
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// A root, and a file beside it that must not change.
pub(crate) struct Bench {
    directory: tempfile::TempDir,
    pub(crate) limits: UnpackLimits,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/secret"), "untouched").unwrap();
        Bench { directory, limits: UnpackLimits::default() }
    }

    pub(crate) fn apply(&self, packed: &[u8]) -> Result<Unpacked, ImageError> {
        let root = Rootfs::open(&self.at("")).unwrap();
        let mut unpacked = Unpacked::default();
        let (content, _) = layer::open(packed, 1 << 40)?;
        apply(&root, content, &mut unpacked, self.limits)?;
        Ok(unpacked)
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join("root").join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// Whether the files outside of the root are unchanged.
    pub(crate) fn is_intact(&self) -> bool {
        let names = |path: PathBuf| fs::read_dir(path).unwrap().count();
        let outside = self.directory.path().join("outside");
        fs::read_to_string(outside.join("secret")).unwrap() == "untouched"
            && names(outside) == 1
            && names(self.directory.path().into()) == 2
    }
}

#[test]
fn files_links_and_directories_arrive_without_rights_of_their_own() {
    let bench = Bench::new();
    let layer = Tar::default()
        .directory("./usr/bin/")
        .file("usr/bin/tool", "#!/bin/sh")
        .hard_link("usr/bin/same", "./usr/bin/tool")
        .link("bin", "usr/bin")
        .file("bin/through", "a link inside")
        .file("/absolute", "is below the root")
        .bytes();
    let unpacked = bench.apply(&layer).unwrap();
    assert_eq!((unpacked.entries, unpacked.skipped), (6, 0));
    let tool = fs::metadata(bench.at("usr/bin/tool")).unwrap();
    assert_eq!(tool.permissions().mode() & 0o7777, 0o755, "set-user-id is dropped");
    assert_eq!((tool.mtime(), tool.nlink()), (1_000_000, 2));
    assert_eq!(bench.text("usr/bin/through"), "a link inside");
    assert_eq!(bench.text("absolute"), "is below the root");
    assert!(bench.is_intact());
}

#[test]
fn nothing_leads_out() {
    let up = "../outside";
    for (hostile, layer) in [
        ("a path upwards", Tar::default().file("../outside/secret", "x")),
        ("one hidden further in", Tar::default().file("a/../../outside/secret", "x")),
        ("a link upwards", Tar::default().link("l", up).file("l/secret", "x")),
        ("a link to a link", Tar::default().link("a", up).link("b", "a").file("b/secret", "x")),
        ("a link at the end", Tar::default().link("s", "../outside/secret").file("s", "x")),
        ("a hard link outside", Tar::default().hard_link("h", "../outside/secret")),
        (
            "a hard link through a link",
            Tar::default().link("l", up).hard_link("h", "l/secret").file("h", "x"),
        ),
        ("a directory over a link", Tar::default().link("l", up).directory("l").file("l/new", "x")),
        ("a whiteout upwards", Tar::default().file("../outside/.wh.secret", "")),
        ("a whiteout through a link", Tar::default().link("l", up).file("l/.wh.secret", "")),
        ("an opaque one", Tar::default().link("l", up).file("l/.wh..wh..opq", "")),
        ("a whiteout of the parent", Tar::default().file(".wh...", "")),
        ("the root itself", Tar::default().file(".", "x").link("..", "x")),
        (
            "the absolute path of the victim",
            Tar::default().link("l", "/proc/self/root").file("l/tmp/belljar-escape", "x"),
        ),
    ] {
        let bench = Bench::new();
        let _ = bench.apply(&layer.bytes());
        assert!(bench.is_intact(), "{hostile}");
    }
    assert!(!Path::new("/tmp/belljar-escape").exists());
}

#[test]
fn an_absolute_link_to_the_victim_leads_nowhere() {
    let bench = Bench::new();
    let victim = bench.directory.path().join("outside");
    let layer = Tar::default().link("l", victim.to_str().unwrap()).file("l/secret", "x").bytes();
    let _ = bench.apply(&layer);
    assert!(bench.is_intact());
}

#[test]
fn whiteouts_remove_what_lower_layers_had_and_nothing_else() {
    let bench = Bench::new();
    let lower = Tar::default()
        .file("keep", "1")
        .file("gone", "1")
        .file("dir/a", "1")
        .file("dir/b", "1")
        .file("opaque/old", "1")
        .file("opaque/both", "old")
        .file("replaced/x", "1");
    bench.apply(&lower.bytes()).unwrap();
    let upper = Tar::default()
        .file(".wh.gone", "")
        .file("dir/.wh.a", "")
        // The order does not matter: files of this layer are kept.
        .file("opaque/both", "new")
        .file("opaque/new", "1")
        .file("opaque/.wh..wh..opq", "")
        .file(".wh.replaced", "")
        .file("replaced/y", "1")
        .file(".wh.replaced", "")
        .file("never/.wh.was", "");
    bench.apply(&upper.bytes()).unwrap();
    let root = Rootfs::open(&bench.at("")).unwrap();
    let names = |path: &str| {
        let names = root.names(Path::new(path)).unwrap();
        names.iter().map(|name| show(name)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(""), "dir keep opaque replaced");
    assert_eq!((&names("dir")[..], &names("opaque")[..]), ("b", "both new"));
    assert_eq!(names("replaced"), "y");
    assert_eq!(bench.text("opaque/both"), "new");
}

#[test]
fn what_is_no_file_is_left_out_and_counted() {
    let bench = Bench::new();
    let layer = Tar::default()
        .add(tar::EntryType::Char, b"dev/null", b"", b"")
        .add(tar::EntryType::Block, b"dev/sda", b"", b"")
        .add(tar::EntryType::Fifo, b"pipe", b"", b"")
        .file("file", "x");
    assert_eq!(bench.apply(&layer.bytes()).unwrap().skipped, 3);
    assert!(!bench.at("dev").exists() && !bench.at("pipe").exists());
}

#[test]
fn bounds_hold_whatever_the_archive_says() {
    let mut bench = Bench::new();
    bench.limits = UnpackLimits { bytes: 100, entries: 3 };
    let error = bench.apply(&Tar::default().file("a", &"x".repeat(101)).bytes()).unwrap_err();
    assert!(error.to_string().contains("100 bytes"), "{error}");
    let many = Tar::default().directory("a").directory("b").directory("c").directory("d");
    let error = bench.apply(&many.bytes()).unwrap_err();
    assert!(error.to_string().contains("3 entries"), "{error}");

    // A header that declares a name of one gigabyte.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    assert!(matches!(bench.apply(header.as_bytes()), Err(ImageError::TooMuch(_))));

    for (what, name) in [
        ("long", vec![b'x'; 300]),
        ("deep", b"a/".repeat(300)),
        ("longer than the system allows", b"abc/".repeat(1100)),
        ("with a zero byte", b"a\0b".to_vec()),
    ] {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o644);
        let record =
            |length: usize| [format!("{length} path=").as_bytes(), &name[..], b"\n"].concat();
        let mut length = record(0).len();
        while record(length).len() != length {
            length = record(length).len();
        }
        let attributes = record(length);
        let mut extension = tar::Header::new_ustar();
        extension.set_entry_type(tar::EntryType::XHeader);
        extension.set_size(attributes.len() as u64);
        extension.set_cksum();
        archive.append(&extension, &attributes[..]).unwrap();
        header.set_cksum();
        archive.append(&header, &[][..]).unwrap();
        let archive = archive.into_inner().unwrap();
        let refused = Bench::new().apply(&archive);
        assert!(matches!(refused, Err(ImageError::Refused(_))), "{what}: {refused:?}");
    }
}

#[test]
fn compressed_layers_are_unpacked_and_bombs_are_not() {
    let gzip = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let plain = Tar::default().file("a", "packed").bytes();
    let zstd =
        ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    // Two frames, and a skippable frame between them.
    let (first, second) = plain.split_at(700);
    let frames = |bytes: &[u8]| {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    };
    let note = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let chunked = [frames(first), note, frames(second)].concat();
    let members = [gzip(first), gzip(second)].concat();
    for packed in [gzip(&plain), zstd, chunked, members] {
        let bench = Bench::new();
        bench.apply(&packed).unwrap();
        assert_eq!(bench.text("a"), "packed");
    }
    // 200 MiB of zeros in 200 KiB.
    let mut header = tar::Header::new_gnu();
    header.set_size(200 << 20);
    header.set_mode(0o644);
    header.set_path("bomb").unwrap();
    header.set_cksum();
    let mut bomb = header.as_bytes().to_vec();
    bomb.resize(bomb.len() + (200 << 20), 0);
    let error = Bench::new().apply(&gzip(&bomb)).unwrap_err();
    assert!(matches!(&error, ImageError::TooMuch(_)), "{error:?}");
    for other in [&b"BZh91AY&SY"[..], b"\xfd7zXZ\0"] {
        assert!(matches!(Bench::new().apply(other), Err(ImageError::Unsupported(_))));
    }
}

#[test]
fn holes_stay_holes() {
    // Sparse files as GNU tar writes them, in both formats.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse");
    let file = fs::File::create(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 2 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", (4 << 20) - 3).unwrap();
    drop(file);
    for format in ["gnu", "posix"] {
        let output = std::process::Command::new("tar")
            .args(["--format", format, "-S", "-c", "-C"])
            .arg(directory.path())
            .arg("sparse")
            .output()
            .unwrap();
        assert!(output.status.success());
        assert!(output.stdout.len() < 1 << 20, "it was written with holes");
        let bench = Bench::new();
        let unpacked = bench.apply(&output.stdout).unwrap();
        assert_eq!(unpacked.bytes, 4 << 20);
        assert_eq!(fs::read(bench.at("sparse")).unwrap(), fs::read(&path).unwrap(), "{format}");
        assert!(fs::metadata(bench.at("sparse")).unwrap().blocks() < 1000);
    }
}

#[test]
fn what_is_cut_off_is_said_to_be() {
    let whole = Tar::default().file("a", &"x".repeat(5000)).bytes();
    for length in [1, 511, 600, 3000] {
        let error = Bench::new().apply(&whole[..length]).unwrap_err();
        assert!(matches!(error, ImageError::Archive(_)), "{length}: {error:?}");
    }
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    let error = Bench::new().apply(&flipped).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Random archives with hostile names: nothing outside of the root may change.
    #[test]
    fn no_sequence_of_entries_touches_anything_outside(
        entries in prop::collection::vec((0..5u8, hostile_path(), hostile_path()), 1..12)
    ) {
        let bench = Bench::new();
        let mut layer = Tar::default();
        for (kind, name, to) in &entries {
            layer = match kind {
                0 => layer.directory(name),
                1 => layer.link(name, to),
                2 => layer.hard_link(name, to),
                3 => layer.file(&format!("{name}/.wh.{}", to.rsplit('/').next().unwrap_or("x")), ""),
                _ => layer.file(name, "x"),
            };
        }
        let _ = bench.apply(&layer.bytes());
        prop_assert!(bench.is_intact());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let bench = Bench::new();
        let _ = bench.apply(&bytes);
        prop_assert!(bench.is_intact());
    }
}

fn hostile_path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "..",
        ".",
        "",
        "a",
        "b",
        "outside",
        "secret",
        "root",
        "..",
        ".wh.secret",
        ".wh..wh..opq",
    ]);
    let start = prop::sample::select(vec!["", "/", "./", "../"]);
    (start, prop::collection::vec(part, 1..5))
        .prop_map(|(start, parts)| start.to_owned() + &parts.join("/"))
}
