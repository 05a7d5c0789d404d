//! Fuzzes the unpacking of archives, which happens inside of sandboxes, and outside of them in `belljar session cp`.

use std::io::{Seek as _, Write as _};
use std::path::Path;

use belljar_fuzz::{Parser, peak_of, repair_tar};

use super::*;

/// Memory for buffers and headers of entries.
const FIXED: usize = 4 << 20;
const PER_BYTE: usize = 64;

fn file_of(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file.into()
}

/// A directory to unpack into, with something beside it that must not change.
struct UnpackDirectory(tempfile::TempDir);

impl UnpackDirectory {
    fn new() -> UnpackDirectory {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("root")).unwrap();
        std::fs::write(directory.path().join("secret"), "untouched").unwrap();
        UnpackDirectory(directory)
    }

    fn root(&self) -> std::path::PathBuf {
        self.0.path().join("root")
    }

    fn unpack(&self, bytes: &[u8], format: ArchiveFormat) -> Outcome {
        let root = Root::open_followed(self.root().to_str().unwrap().as_bytes()).unwrap();
        unpack(file_of(bytes), &root, format)
    }

    fn is_intact(&self) -> bool {
        std::fs::read_to_string(self.0.path().join("secret")).unwrap() == "untouched"
            && std::fs::read_dir(self.0.path()).unwrap().count() == 2
    }
}

/// The same few files in every format.
fn packed(format: ArchiveFormat) -> Vec<u8> {
    let from = tempfile::tempdir().unwrap();
    let at = |name: &str| from.path().join(name);
    std::fs::create_dir_all(at("a/b")).unwrap();
    std::fs::write(at("a/b/text"), "some text, some text, some text").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::os::unix::fs::symlink("../a/b", at("a/link")).unwrap();
    std::fs::write(at(&"long".repeat(50)), "x").unwrap();
    let mut to = tempfile::tempfile().unwrap();
    let root = Root::open_followed(from.path().to_str().unwrap().as_bytes()).unwrap();
    pack(&root, to.try_clone().unwrap().into(), format).unwrap();
    let mut bytes = Vec::new();
    to.rewind().unwrap();
    to.read_to_end(&mut bytes).unwrap();
    bytes
}

fn withstands(name: &'static str, format: ArchiveFormat, seeds: Vec<Vec<u8>>) {
    for seed in &seeds {
        UnpackDirectory::new().unpack(seed, format).expect("a seed is an archive");
    }
    let place = UnpackDirectory::new();
    let parser = Parser::new(name, seeds).cases(250);
    parser.allocates_at_most(FIXED, PER_BYTE).withstands(|bytes| {
        let mut repaired = bytes.to_vec();
        repair_tar(&mut repaired);
        for archive in [bytes, &repaired] {
            let _ = place.unpack(archive, format);
        }
        assert!(place.is_intact());
        // Each input begins with an empty directory, so that the disk does not fill up.
        clear(&place.root());
    });
}

fn clear(root: &Path) {
    std::fs::remove_dir_all(root).unwrap();
    std::fs::create_dir(root).unwrap();
}

fn with_attributes() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let attributes = [("path", &b"other/name"[..]), ("size", b"3"), ("mtime", b"1.5")];
    archive.append_pax_extensions(attributes).unwrap();
    let mut header = Header::new_ustar();
    header.set_size(3);
    header.set_mode(0o644);
    archive.append_data(&mut header, "name", &b"abc"[..]).unwrap();
    let mut link = Header::new_gnu();
    link.set_entry_type(EntryType::Link);
    link.set_size(0);
    archive.append_link(&mut link, "hard", "other/name").unwrap();
    archive.into_inner().unwrap()
}

/// A sparse file of this size with one block of 512 bytes.
fn with_holes(size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("holes").unwrap();
    header.set_mode(0o644);
    header.set_size(512);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize.copy_from_slice(format!("{size:011o}\0").as_bytes());
    for (piece, (offset, length)) in gnu.sparse.iter_mut().zip([(0, 512), (size, 0)]) {
        piece.offset.copy_from_slice(format!("{offset:011o}\0").as_bytes());
        piece.numbytes.copy_from_slice(format!("{length:011o}\0").as_bytes());
    }
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.resize(archive.len() + 512, b'x');
    archive.resize(archive.len() + 1024, 0);
    archive
}

#[test]
fn fuzz_tar() {
    let seeds = vec![packed(ArchiveFormat::Tar), with_attributes(), with_holes(4096)];
    withstands("tar", ArchiveFormat::Tar, seeds);
}

#[test]
fn fuzz_tar_gz() {
    withstands("tar.gz", ArchiveFormat::TarGz, vec![packed(ArchiveFormat::TarGz)]);
}

#[test]
fn fuzz_zip() {
    withstands("zip", ArchiveFormat::Zip, vec![packed(ArchiveFormat::Zip)]);
}

/// Names and attributes are kept in memory. A sandbox may send them, and a user's own machine may unpack them.
#[test]
fn heads_of_entries_have_a_size() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(64 << 20);
        header.set_cksum();
        let mut archive = header.as_bytes().to_vec();
        archive.resize(archive.len() + (64 << 20), b'x');
        archive.extend(packed(ArchiveFormat::Tar));
        let place = UnpackDirectory::new();
        let (refused, peak) = peak_of(|| place.unpack(&archive, ArchiveFormat::Tar));
        let refusal = refused.unwrap_err();
        assert!(refusal.message.contains("header of an entry"), "{}", refusal.message);
        assert!(peak < 8 << 20, "{kind:?}: {peak}");
    }
}

/// A file of a gigabyte in two blocks.
#[test]
fn holes_do_not_fill_the_disk() {
    let place = UnpackDirectory::new();
    place.unpack(&with_holes(32 << 20), ArchiveFormat::Tar).unwrap();
    assert_eq!(std::fs::metadata(place.root().join("holes")).unwrap().len(), 32 << 20);
    let refusal = place.unpack(&with_holes(1 << 30), ArchiveFormat::Tar).unwrap_err();
    assert!(refusal.message.contains("holes"), "{}", refusal.message);
}
