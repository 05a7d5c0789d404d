//! Blobs in a directory: the tests in [`contract`], the paths of files, and that sweeps do not
//! remove content in use.

mod contract;
mod objects;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};

use super::directory::FEW;
use super::*;
use crate::tenant_dir::tenant_dir;

struct Fixture {
    directory: tempfile::TempDir,
    blobs: Blobs,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&directory.path().join("blobs")).unwrap();
        Fixture { directory, blobs }
    }

    fn take(&self, tenant: &str, content: &[u8]) -> TakenBlob {
        let size = content.len() as u64;
        self.blobs.take(tenant, &file_with(content), size).unwrap()
    }

    fn keep(&self, tenant: &str, content: &[u8]) -> Digest {
        let taken = self.take(tenant, content);
        let digest = taken.digest();
        self.blobs.ingesting().keep(vec![taken]).unwrap();
        digest
    }

    fn incoming(&self) -> usize {
        fs::read_dir(self.directory.path().join("blobs/incoming")).unwrap().count()
    }

    fn count(&self) -> usize {
        let mut count = 0;
        let count_one = |_| {
            count += 1;
            Ok(())
        };
        self.blobs.walk(count_one).unwrap();
        count
    }
}

fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn none_is_used(_: TenantDir, digests: &[Digest]) -> io::Result<Vec<bool>> {
    Ok(vec![false; digests.len()])
}

fn verify(blobs: &Blobs, tenant: &str, digest: &Digest) -> io::Result<bool> {
    Ok(hash(&*blobs.open_blob(tenant, digest)?)? == *digest)
}

#[test]
fn kept_content_has_its_place_and_mode() {
    let fixture = Fixture::new();
    let digest = fixture.keep("acme", b"abc");
    let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(digest.to_string(), hex);
    let path = fixture.blobs.path("acme", &digest);
    let expected = format!("blobs/{}/ba/{hex}", tenant_dir("acme"));
    assert_eq!(path, fixture.directory.path().join(expected));
    assert_eq!(fs::read(&path).unwrap(), b"abc");
    assert_eq!(mode(&path), 0o444);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(path.parent().unwrap().parent().unwrap()), 0o700);
    assert_eq!(mode(&fixture.directory.path().join("blobs/incoming")), 0o700);
    assert_eq!(fixture.incoming(), 0);
}

#[test]
fn the_same_content_is_kept_once_for_each_tenant() {
    let fixture = Fixture::new();
    let digest = fixture.keep("a", b"same");
    let before = fs::metadata(fixture.blobs.path("a", &digest)).unwrap();
    let twice = vec![fixture.take("a", b"same"), fixture.take("a", b"same")];
    fixture.blobs.ingesting().keep(twice).unwrap();
    let after = fs::metadata(fixture.blobs.path("a", &digest)).unwrap();
    assert_eq!(before.ino(), after.ino(), "the old copy stays");
    assert_eq!(fixture.incoming(), 0, "the new copies are gone");
    let missing = fixture.blobs.open_blob("b", &digest).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound, "tenants share nothing");
    fixture.keep("b", b"same");
    assert_eq!(fixture.count(), 2);
}

#[test]
fn many_are_kept_together() {
    let fixture = Fixture::new();
    let many = 3 * FEW;
    let taken = (0..many).map(|n| fixture.take("a", &n.to_le_bytes())).collect();
    fixture.blobs.ingesting().keep(taken).unwrap();
    assert_eq!(fixture.count(), many);
    assert_eq!(fixture.incoming(), 0);
    // Copies that began before the disk failed may not be on it.
    let store = DirectoryStore::open(&fixture.directory.path().join("blobs")).unwrap();
    let stage = |n: usize| {
        let file = file_with(&n.to_le_bytes());
        store.stage(TenantDir::of("b"), &file, 8, &mut |_| ()).unwrap()
    };
    let staged = (0..many).map(stage).collect();
    store.failures.fetch_add(1, Ordering::SeqCst);
    assert!(store.commit(staged).is_err());
    assert_eq!((fixture.count(), fixture.incoming()), (many, 0));
}

#[test]
fn copies_that_are_not_kept_leave_nothing() {
    let fixture = Fixture::new();
    let taken = fixture.take("a", b"x");
    assert_eq!(fixture.incoming(), 1);
    drop(taken);
    assert_eq!(fixture.incoming(), 0);
    let unreadable = File::open(fixture.directory.path()).unwrap();
    assert!(fixture.blobs.take("a", &unreadable, 100).is_err());
    assert_eq!(fixture.incoming(), 0);
    // Simulates a server that was killed.
    std::mem::forget(fixture.take("a", b"x"));
    let digest = fixture.keep("a", b"y");
    assert_eq!(fixture.incoming(), 1);
    let again = Blobs::open(&fixture.directory.path().join("blobs")).unwrap();
    assert_eq!(fixture.incoming(), 0);
    assert!(verify(&again, "a", &digest).unwrap());
}

#[test]
fn damage_is_noticed_and_a_torn_copy_replaced() {
    let fixture = Fixture::new();
    let digest = fixture.keep("a", b"good");
    let path = fixture.blobs.path("a", &digest);
    assert!(verify(&fixture.blobs, "a", &digest).unwrap());
    for (damage, healed) in [(&b"evil"[..], false), (b"goo", true)] {
        fs::remove_file(&path).unwrap();
        fs::write(&path, damage).unwrap();
        assert!(!verify(&fixture.blobs, "a", &digest).unwrap());
        let mut intact = Vec::new();
        let look = |stored: Stored| {
            intact.push(stored.check()?);
            Ok(())
        };
        fixture.blobs.walk(look).unwrap();
        assert_eq!(intact, [false]);
        fixture.keep("a", b"good");
        assert_eq!(verify(&fixture.blobs, "a", &digest).unwrap(), healed);
    }
    let missing = Digest([0; 32]);
    assert!(verify(&fixture.blobs, "a", &missing).is_err());
}

#[test]
fn a_sweep_removes_what_is_not_used() {
    let fixture = Fixture::new();
    let used = fixture.keep("a", b"used");
    fixture.keep("a", b"unused");
    fixture.keep("b", b"used");
    let root = fixture.directory.path().join("blobs");
    let strangers = [
        root.join("notes.txt"),
        root.join("t0123456789abcdef"),
        root.join(tenant_dir("a")).join("README"),
        fixture.blobs.path("a", &used).with_file_name("lost+found"),
    ];
    strangers.iter().for_each(|path| fs::write(path, b"mine").unwrap());
    let mut asked = Vec::new();
    let swept = fixture.blobs.sweep(|tenant, digests| {
        asked.push((tenant.to_string(), digests.len()));
        Ok(digests.iter().map(|digest| tenant == TenantDir::of("a") && *digest == used).collect())
    });
    assert_eq!(swept.unwrap(), Swept { blobs: 2, bytes: 10 });
    asked.sort();
    let mut expected = [(tenant_dir("a"), 2), (tenant_dir("b"), 1)];
    expected.sort();
    assert_eq!(asked, expected);
    assert!(verify(&fixture.blobs, "a", &used).unwrap());
    assert_eq!((fixture.count(), fixture.incoming()), (1, 0));
    assert!(strangers.iter().all(|path| path.exists()));
}

#[test]
fn a_sweep_that_gets_no_answer_removes_nothing() {
    let fixture = Fixture::new();
    fixture.keep("a", b"x");
    assert!(fixture.blobs.sweep(|_, _| Err(io::Error::other("no catalog"))).is_err());
    assert!(fixture.blobs.sweep(|_, _| Ok(vec![])).is_err());
    assert_eq!(fixture.count(), 1);
    assert_eq!(fixture.blobs.sweep(none_is_used).unwrap().blobs, 1);
}

#[test]
fn many_blobs_are_swept_in_batches() {
    let fixture = Fixture::new();
    let many = SWEEP_BATCH * 2 + 1;
    let taken = (0..many).map(|n| fixture.take("a", &n.to_le_bytes())).collect();
    fixture.blobs.ingesting().keep(taken).unwrap();
    let mut asked = Vec::new();
    let swept = fixture.blobs.sweep(|tenant, digests| {
        asked.push(digests.len());
        none_is_used(tenant, digests)
    });
    assert_eq!(swept.unwrap().blobs, many as u64);
    assert_eq!(asked, [SWEEP_BATCH, SWEEP_BATCH, 1]);
    assert_eq!((fixture.count(), fixture.incoming()), (0, 0));
}

#[test]
fn small_content_that_is_there_is_not_written_again_and_stays() {
    let fixture = Fixture::new();
    let digest = fixture.keep("a", b"old");
    let taken = fixture.take("a", b"old");
    assert_eq!(fixture.incoming(), 0, "nothing was written");
    assert_eq!(fixture.blobs.sweep(none_is_used).unwrap(), Swept::default());
    let mut ingest = fixture.blobs.ingesting();
    ingest.keep(vec![taken]).unwrap();
    assert_eq!(fixture.blobs.sweep(none_is_used).unwrap(), Swept::default());
    assert!(verify(&fixture.blobs, "a", &digest).unwrap());
    drop(ingest);
    drop(fixture.take("a", b"old"));
    assert_eq!(fixture.blobs.sweep(none_is_used).unwrap().blobs, 1);
}

#[test]
fn what_an_ingest_holds_is_not_swept() {
    let fixture = Fixture::new();
    let digest = fixture.keep("a", b"old");
    let mut ingest = fixture.blobs.ingesting();
    ingest.keep(vec![fixture.take("a", b"old")]).unwrap();
    assert_eq!(fixture.blobs.sweep(none_is_used).unwrap(), Swept::default());
    assert!(verify(&fixture.blobs, "a", &digest).unwrap());
    drop(ingest);
    assert_eq!(fixture.blobs.sweep(none_is_used).unwrap().blobs, 1);
}

#[test]
fn what_an_ingest_decides_to_use_during_a_sweep_is_not_swept() {
    let fixture = Fixture::new();
    let digest = fixture.keep("a", b"old");
    let swept = fixture.blobs.sweep(|tenant, digests| {
        // After the sweep has read the catalog, an ingest uses the content, adds it to the catalog
        // and ends.
        fixture.keep("a", b"old");
        none_is_used(tenant, digests)
    });
    assert_eq!(swept.unwrap(), Swept::default());
    assert!(verify(&fixture.blobs, "a", &digest).unwrap());
}

/// Ingests and sweeps run at the same time, with a catalog of the test. No content in the catalog
/// is ever missing.
#[test]
fn sweeps_and_ingests_do_not_disturb_each_other() {
    let fixture = Fixture::new();
    let catalog = Mutex::new(HashSet::new());
    let done = AtomicU64::new(0);
    let ingesters = 2;
    std::thread::scope(|scope| {
        for _ in 0..ingesters {
            scope.spawn(|| {
                for round in 0..60u8 {
                    let taken = fixture.take("a", &[round % 3]);
                    let digest = taken.digest();
                    let mut ingest = fixture.blobs.ingesting();
                    ingest.keep(vec![taken]).unwrap();
                    let mut catalog = crate::lock(&catalog);
                    catalog.insert(digest);
                    drop(ingest);
                    assert!(verify(&fixture.blobs, "a", &digest).unwrap());
                    // Some content is no longer used, so that sweeps have something to remove.
                    catalog.remove(&digest);
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        while done.load(Ordering::SeqCst) < ingesters {
            let asked = |_: TenantDir, digests: &[Digest]| {
                let catalog = crate::lock(&catalog);
                Ok(digests.iter().map(|digest| catalog.contains(digest)).collect())
            };
            fixture.blobs.sweep(asked).unwrap();
        }
    });
}

#[test]
fn an_ingest_can_be_held_across_threads() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<(Blobs, BlobIngest, TakenBlob)>();
}
