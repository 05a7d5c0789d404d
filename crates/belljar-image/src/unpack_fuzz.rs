//! Fuzzes layers and images: nothing outside the root changes, nothing panics, and memory stays within limits.

use std::io::Write as _;

use belljar_fuzz::{Parser, repair_tar};

use super::tests::{Bench, Tar};
use super::*;
use crate::layer;

/// Memory for all buffers, for two extended headers, and for the windows of the decompressors.
const FIXED: usize = 12 << 20;

/// A path is kept in memory with all its parents.
const PER_BYTE: usize = 128;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Archives with one entry of every kind: long names of GNU, attributes, and sparse files in both
/// formats of GNU.
fn archives() -> Vec<Vec<u8>> {
    let plain = Tar::default()
        .directory("usr/bin/")
        .file("usr/bin/tool", "#!/bin/sh")
        .hard_link("usr/bin/same", "usr/bin/tool")
        .link("bin", "usr/bin")
        .file("bin/through", "a link")
        .file("usr/.wh.gone", "")
        .file("usr/.wh..wh..opq", "")
        .file("etc/.wh.tool", "")
        .bytes();
    let mut long = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o644);
    let name = "directory/".repeat(20) + "file";
    long.append_data(&mut header, &name, &b"abc"[..]).unwrap();
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    link.set_mode(0o777);
    long.append_link(&mut link, "short", &name).unwrap();
    long.append_pax_extensions([
        ("path", &b"of/attributes"[..]),
        ("size", b"3"),
        ("mtime", b"1.5"),
    ])
    .unwrap();
    long.append_data(&mut header, "replaced", &b"abc"[..]).unwrap();
    vec![plain, long.into_inner().unwrap(), sparse_in_header(), sparse_in_data()]
}

/// Two segments of 512 bytes in a sparse file of 4 KiB.
fn sparse_in_header() -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_path("holes").unwrap();
    header.set_mode(0o644);
    header.set_size(1024);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize.copy_from_slice(b"00000010000\0");
    for (piece, offset) in gnu.sparse.iter_mut().zip([b"00000000000\0", b"00000004000\0"]) {
        piece.offset.copy_from_slice(offset);
        piece.numbytes.copy_from_slice(b"00000001000\0");
    }
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.resize(archive.len() + 1024, b'x');
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn sparse_in_data() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_pax_extensions([
            ("GNU.sparse.major", &b"1"[..]),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"holes"),
            ("GNU.sparse.realsize", b"4096"),
        ])
        .unwrap();
    let mut content = b"2\n0\n512\n2048\n512\n".to_vec();
    content.resize(512, 0);
    content.resize(512 + 1024, b'x');
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "GNUSparseFile/holes", &content[..]).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn fuzz_archives() {
    for archive in archives() {
        Bench::new().apply(&archive).expect("a seed is a layer");
    }
    let mut bench = Bench::new();
    bench.limits = UnpackLimits { bytes: 4 << 20, entries: 10_000 };
    let seeds = [archives(), huge_entries()].concat();
    let parser = Parser::new("layers", seeds).cases(500);
    parser.allocates_at_most(FIXED, PER_BYTE).withstands(|bytes| {
        let mut repaired = bytes.to_vec();
        repair_tar(&mut repaired);
        for layer in [bytes, &repaired] {
            let _ = bench.apply(layer);
        }
        assert!(bench.is_intact());
    });
}

#[test]
fn fuzz_compressed_layers() {
    let archives = archives();
    let seeds = archives.iter().flat_map(|archive| [gzip(archive), zstd(archive)]);
    let note = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let seeds =
        seeds.chain([[zstd(&archives[0][..700]), note, zstd(&archives[0][700..])].concat()]);
    let parser = Parser::new("compressed layers", seeds.collect()).cases(500);
    parser.allocates_at_most(FIXED, PER_BYTE).withstands(|bytes| {
        if let Ok((mut content, _)) = layer::open(bytes, 4 << 20) {
            let _ = std::io::copy(&mut content, &mut std::io::sink());
        }
    });
}

/// A layer of deep paths without common parents: each is kept in memory with all its parents.
#[test]
fn paths_of_a_layer_are_remembered_within_bounds() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    for n in 0..10 {
        let path = format!("{n:04}/") + &"0123456789abcd/".repeat(250) + "f";
        archive.append_data(&mut header, path, &b""[..]).unwrap();
    }
    let archive = gzip(&archive.into_inner().unwrap());
    let bench = Bench::new();
    let (refused, peak) = belljar_fuzz::peak_of(|| bench.apply(&archive));
    assert!(matches!(refused, Err(ImageError::TooMuch(_))), "{refused:?}");
    // Buffers take memory as well.
    assert!(peak < 2 * limits::MAX_REMEMBERED, "{peak}");
}

/// A directory that was emptied once is not searched again.
#[test]
fn whiteouts_that_repeat_themselves_cost_little() {
    let mut layer = Tar::default();
    for n in 0..2000 {
        layer = layer.file(&format!("d/{n}"), "");
    }
    for _ in 0..2000 {
        layer = layer.file("d/.wh..wh..opq", "");
    }
    let (bench, begun) = (Bench::new(), std::time::Instant::now());
    bench.apply(&layer.bytes()).unwrap();
    assert_eq!(std::fs::read_dir(bench.at("d")).unwrap().count(), 2000);
    // Searching four million names would take a minute.
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

/// Sizes near the largest number, in the header of an entry and in its attributes.
fn huge_entries() -> Vec<Vec<u8>> {
    let mut archives = Vec::new();
    for size in [u64::MAX, u64::MAX - 1, u64::MAX - 511, u64::MAX / 2] {
        let mut header = tar::Header::new_gnu();
        header.set_path("a").unwrap();
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        archives.push(header.as_bytes().to_vec());
        let mut attributes = tar::Builder::new(Vec::new());
        attributes.append_pax_extensions([("size", size.to_string().as_bytes())]).unwrap();
        header.set_size(0);
        header.set_cksum();
        let mut archive = attributes.into_inner().unwrap();
        archive.truncate(1024);
        archive.extend(header.as_bytes());
        archives.push(archive);
    }
    archives
}

#[test]
fn a_size_beyond_all_numbers_is_damage() {
    for archive in huge_entries() {
        let refused = Bench::new().apply(&archive);
        assert!(refused.is_err(), "{refused:?}");
    }
}
