//! Blobs in S3: several servers, faults, the cache, and the copy of a directory.

use std::fs;
use std::time::Duration;

use belljar_testkit::s3::{Fault, KEY_ID, S3Server, SECRET};
use tokio::runtime::Runtime;

use super::super::object::{KEPT, ObjectBlobStore, key};
use super::*;
use crate::objects::ObjectsConfig;

/// A server, a runtime for its clients, and directories for their copies.
pub(super) struct S3Fixture {
    pub(super) server: S3Server,
    pub(super) directory: tempfile::TempDir,
    runtime: Runtime,
}

impl S3Fixture {
    pub(super) fn new() -> S3Fixture {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        S3Fixture { server: S3Server::start(), directory: tempfile::tempdir().unwrap(), runtime }
    }

    pub(super) fn objects(&self) -> Objects {
        self.objects_at(self.server.url())
    }

    fn objects_at(&self, url: String) -> Objects {
        let config = ObjectsConfig {
            url,
            endpoint: Some(self.server.endpoint()),
            region: None,
            key: Some((KEY_ID.into(), SECRET.into())),
        };
        Objects::open(&config).unwrap()
    }

    /// A store with a cache of its own, as another server has it.
    pub(super) fn store(&self, cache: &str, kept: Duration) -> ObjectBlobStore {
        let (directory, runtime) = (self.directory.path().join(cache), self.runtime.handle());
        ObjectBlobStore::with_kept(self.objects(), &directory, runtime.clone(), kept)
    }

    fn blobs(&self, cache: &str) -> Blobs {
        Blobs::new(self.store(cache, Duration::ZERO))
    }

    fn file(&self, tenant: &str, digest: &Digest) -> PathBuf {
        self.server.file(&key(name(tenant, digest)))
    }
}

fn put(blobs: &Blobs, content: &[u8]) -> io::Result<Digest> {
    let taken = blobs.take("acme", &file_with(content), content.len() as u64)?;
    let digest = taken.digest();
    blobs.ingesting().keep(vec![taken])?;
    Ok(digest)
}

fn content(blobs: &Blobs, digest: &Digest, size: usize) -> io::Result<Vec<u8>> {
    let mut content = vec![0; size];
    blobs.open_blob("acme", digest)?.read_exact_at(&mut content, 0)?;
    Ok(content)
}

/// Content that differs in each part.
fn large(size: usize) -> Vec<u8> {
    (0..size / 8 + 1).flat_map(|number| number.to_le_bytes()).take(size).collect()
}

#[test]
fn a_missing_bucket_is_said_to_be_missing() {
    let fixture = S3Fixture::new();
    let objects = fixture.objects_at("s3://missing/prefix".into());
    let error = fixture.runtime.block_on(objects.check()).unwrap_err().to_string();
    assert!(error.contains("the bucket of `s3://missing/prefix`"), "{error}");
}

#[test]
fn another_server_reads_what_one_stored() {
    let fixture = S3Fixture::new();
    let (one, other) = (fixture.blobs("one"), fixture.blobs("other"));
    // Larger than one request.
    let (small, large) = (b"small".to_vec(), large(19 << 20));
    for expected in [&small, &large] {
        let digest = put(&one, expected).unwrap();
        assert_eq!(fs::read(fixture.file("acme", &digest)).unwrap(), *expected);
        assert_eq!(content(&other, &digest, expected.len()).unwrap(), *expected);
    }
    // Only small content is copied whole.
    let is_cached = |content: &[u8]| other.path("acme", &Digest::of(content)).exists();
    assert_eq!((is_cached(&small), is_cached(&large)), (true, false));
    let reader = other.open_blob("acme", &Digest::of(&large)).unwrap();
    fixture.server.requests();
    let mut part = [0; 100];
    for at in [5 << 20, (5 << 20) + 100, (19 << 20) - 100, 0] {
        reader.read_exact_at(&mut part, at as u64).unwrap();
        assert_eq!(part, large[at..at + 100]);
    }
    assert_eq!(fixture.server.requests().len(), 3, "parts that follow each other are one request");
}

#[test]
fn content_that_is_there_is_not_sent_again() {
    let fixture = S3Fixture::new();
    let (one, other) = (fixture.store("one", KEPT), Blobs::new(fixture.store("other", KEPT)));
    let one = Blobs::new(one);
    let content = large(1 << 20);
    put(&one, &content).unwrap();
    fixture.server.requests();
    put(&other, &content).unwrap();
    let sent = fixture.server.requests();
    assert!(sent.iter().all(|request| request.starts_with("HEAD")), "{sent:?}");
    // One that a sweep may be removing is sent again.
    let old = Blobs::new(fixture.store("old", Duration::ZERO));
    std::thread::sleep(Duration::from_millis(1100));
    put(&old, &content).unwrap();
    assert!(fixture.server.requests().iter().any(|request| request.starts_with("PUT")));
}

#[test]
fn a_sweep_leaves_new_content_and_content_that_was_stored_again() {
    let fixture = S3Fixture::new();
    let digest = put(&fixture.blobs("one"), b"new").unwrap();
    let careful = Blobs::new(fixture.store("careful", KEPT));
    assert_eq!(careful.sweep(none_is_used).unwrap(), Swept::default());
    // The modification time of the file is the time at which the object was put.
    let age = |age| {
        let file = fs::File::options().write(true).open(fixture.file("acme", &digest)).unwrap();
        file.set_modified(std::time::SystemTime::now() - age).unwrap();
    };
    age(KEPT + Duration::from_secs(60));
    let stored_again = |_: TenantDir, digests: &[Digest]| {
        put(&fixture.blobs("another server"), b"new").unwrap();
        Ok(vec![false; digests.len()])
    };
    assert_eq!(careful.sweep(stored_again).unwrap(), Swept::default());
    age(KEPT + Duration::from_secs(60));
    assert_eq!(careful.sweep(none_is_used).unwrap(), Swept { blobs: 1, bytes: 3 });
    assert!(!fixture.file("acme", &digest).exists());
}

#[test]
fn faults_that_pass_are_survived() {
    let fixture = S3Fixture::new();
    let (one, content_) = (fixture.blobs("one"), large(9 << 20));
    for (number, fault) in [
        Fault::Status(500),
        Fault::Status(503),
        Fault::Drop,
        Fault::Slow(Duration::from_millis(300)),
        Fault::Cut(1000),
    ]
    .into_iter()
    .enumerate()
    {
        let mut content_ = content_.clone();
        content_[0] = u8::try_from(number).unwrap();
        fixture.server.fail(fault, 2);
        let digest = put(&one, &content_).unwrap();
        fixture.server.fail(fault, 2);
        let other = fixture.blobs(&format!("other {number}"));
        let read = content(&other, &digest, content_.len());
        assert_eq!(read.unwrap(), content_, "{fault:?}");
    }
}

#[test]
fn faults_that_last_are_reported_without_the_secret() {
    let fixture = S3Fixture::new();
    let one = fixture.blobs("one");
    let digest = put(&one, b"content").unwrap();
    for fault in [Fault::Status(500), Fault::Refuse, Fault::Drop] {
        fixture.server.fail(fault, usize::MAX);
        let other = fixture.blobs(&format!("other {fault:?}"));
        let read = other.open_blob("acme", &digest).unwrap_err();
        let stored = put(&one, format!("{fault:?}").as_bytes()).unwrap_err();
        for error in [read, stored] {
            let error = format!("{} {error:?}", crate::error::in_full(&error));
            assert!(error.contains("BELLJAR_BLOBS_URL"), "{error}");
            assert!(!error.contains(SECRET), "{error}");
            assert_eq!(error.contains("AWS_ACCESS_KEY_ID"), fault == Fault::Refuse, "{error}");
        }
        fixture.server.recover();
        // Nothing of the failed attempt is left, and the next one succeeds.
        put(&one, format!("{fault:?}").as_bytes()).unwrap();
    }
    assert_eq!(fs::read_dir(fixture.directory.path().join("one/incoming")).unwrap().count(), 0);
}

#[test]
fn damaged_objects_are_not_read() {
    let fixture = S3Fixture::new();
    let digest = put(&fixture.blobs("one"), b"content").unwrap();
    fs::write(fixture.file("acme", &digest), "changed").unwrap();
    let other = fixture.blobs("other");
    let error = other.open_blob("acme", &digest).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let looked_at =
        Blobs::new(ObjectBlobStore::look_at(fixture.objects(), fixture.runtime.handle().clone()));
    let mut intact = Vec::new();
    let check = |stored: Stored| {
        intact.push(stored.check()?);
        Ok(())
    };
    looked_at.walk(check).unwrap();
    assert_eq!(intact, [false]);
}

#[test]
fn a_directory_is_copied_to_s3() {
    let fixture = S3Fixture::new();
    let directory = fixture.directory.path().join("blobs");
    let (blobs, objects) = (Blobs::open(&directory).unwrap(), fixture.objects());
    let contents: Vec<Vec<u8>> = (0..20).map(|number| large(1000 + number)).collect();
    let digests: Vec<Digest> =
        contents.iter().map(|content| put(&blobs, content).unwrap()).collect();
    let copy = || fixture.runtime.block_on(copy_blobs(&directory, &objects, |_| ()));
    // The first attempt ends half-way.
    fixture.server.fail_method("PUT", Fault::Refuse, 1);
    copy().unwrap_err();
    let copied = copy().unwrap();
    assert_eq!((copied.copied + copied.skipped, copied.damaged.len()), (20, 0));
    let again = copy().unwrap();
    assert_eq!((again.copied, again.skipped, again.bytes), (0, 20, copied.bytes));
    let server = fixture.blobs("server");
    for (digest, expected) in digests.iter().zip(&contents) {
        assert_eq!(content(&server, digest, expected.len()).unwrap(), *expected);
    }
    let damaged = blobs.path("acme", &digests[0]);
    fs::remove_file(&damaged).unwrap();
    fs::write(&damaged, "changed").unwrap();
    assert_eq!(copy().unwrap().damaged, [damaged.display().to_string()]);
}
