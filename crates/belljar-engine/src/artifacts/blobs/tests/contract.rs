//! What every implementation of [`BlobStore`] must do. One more implementation needs one more line
//! `contract!(name, function);` with a function that makes an empty store.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::time::Duration;

use super::super::directory::DirectoryStore;
use super::super::object::ObjectBlobStore;
use super::super::store::{BlobName, BlobStore, StagedBlob};
use super::file_with;
use super::objects::S3Fixture;
use crate::store::Digest;
use crate::tenant_dir::TenantDir;

macro_rules! contract {
    ($name:ident, $make:path) => {
        mod $name {
            contract!(@cases $make,
                a_content_is_read_once_it_is_committed,
                a_staged_content_is_pinned_and_discarded_when_dropped,
                the_same_content_is_stored_once_for_each_tenant,
                a_file_is_copied_from_its_beginning_and_to_its_size,
                large_files_are_copied_whole,
                a_removed_content_is_gone,
            );
        }
    };
    (@cases $make:path, $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                // The last value keeps what the store needs until the test ends.
                let (store, _place) = $make();
                super::$case(&store);
            }
        )*
    };
}

contract!(directory, super::directory_store);
contract!(object, super::object_store);

fn directory_store() -> (DirectoryStore, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (DirectoryStore::open(&directory.path().join("blobs")).unwrap(), directory)
}

fn object_store() -> (ObjectBlobStore, S3Fixture) {
    let fixture = S3Fixture::new();
    // Contents may be removed at once, as in a directory.
    (fixture.store("cache", Duration::ZERO), fixture)
}

fn tenant() -> TenantDir {
    TenantDir::of("acme")
}

fn name(content: &[u8]) -> BlobName {
    BlobName { tenant: tenant(), digest: Digest::of(content) }
}

fn stage(store: &dyn BlobStore, from: &File, size: u64) -> StagedBlob {
    store.stage(tenant(), from, size, &mut |_| ()).unwrap()
}

fn stage_bytes(store: &dyn BlobStore, content: &[u8]) -> StagedBlob {
    stage(store, &file_with(content), content.len() as u64)
}

fn put(store: &dyn BlobStore, content: &[u8]) {
    store.commit(vec![stage_bytes(store, content)]).unwrap();
}

fn all(store: &dyn BlobStore) -> Vec<BlobName> {
    let mut names = Vec::new();
    let add = &mut |name| {
        names.push(name);
        Ok(())
    };
    store.list(add).unwrap();
    names
}

fn a_content_is_read_once_it_is_committed(store: &dyn BlobStore) {
    let missing = store.open(name(b"0123456789")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let staged = stage_bytes(store, b"0123456789");
    assert_eq!((staged.name, staged.size), (name(b"0123456789"), 10));
    assert_eq!(store.size(staged.name).unwrap(), None);
    let name = staged.name;
    store.commit(vec![staged]).unwrap();
    assert_eq!(store.size(name).unwrap(), Some(10));
    let content = store.open(name).unwrap();
    let mut part = [0; 4];
    content.read_exact_at(&mut part, 3).unwrap();
    assert_eq!(&part, b"3456");
    assert_eq!(content.read_at(&mut part, 8).unwrap(), 2);
    assert_eq!(content.read_at(&mut part, 10).unwrap(), 0);
    let beyond = content.read_exact_at(&mut part, 8).unwrap_err();
    assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(std::fs::read(store.path(name)).unwrap(), b"0123456789");
}

fn a_staged_content_is_pinned_and_discarded_when_dropped(store: &dyn BlobStore) {
    for content in [&b"small"[..], &vec![7; 3 << 20]] {
        let mut pinned = Vec::new();
        let size = content.len() as u64;
        let staged =
            store.stage(tenant(), &file_with(content), size, &mut |name| pinned.push(name));
        assert_eq!(pinned, [name(content)]);
        drop(staged.unwrap());
        assert_eq!(store.size(name(content)).unwrap(), None);
    }
    assert!(all(store).is_empty());
}

fn the_same_content_is_stored_once_for_each_tenant(store: &dyn BlobStore) {
    put(store, b"same");
    store.commit(vec![stage_bytes(store, b"same"), stage_bytes(store, b"same")]).unwrap();
    assert_eq!(all(store), [name(b"same")]);
    let other = TenantDir::of("other");
    let of_other = BlobName { tenant: other, ..name(b"same") };
    assert_eq!(store.size(of_other).unwrap(), None);
    let staged = store.stage(other, &file_with(b"same"), 4, &mut |_| ()).unwrap();
    store.commit(vec![staged]).unwrap();
    assert_eq!(all(store).len(), 2);
}

fn a_file_is_copied_from_its_beginning_and_to_its_size(store: &dyn BlobStore) {
    let mut file = file_with(b"0123456789");
    file.seek(SeekFrom::Start(7)).unwrap();
    let grown = stage(store, &file, 4);
    assert_eq!((grown.name, grown.size), (name(b"0123"), 4));
    let shorter = stage(store, &file, 1 << 40);
    assert_eq!((shorter.name, shorter.size), (name(b"0123456789"), 10));
    let empty = stage(store, &file, 0);
    assert_eq!((empty.name, empty.size), (name(b""), 0));
    let empty = stage(store, &file_with(b""), 100);
    assert_eq!((empty.name, empty.size), (name(b""), 0));
    store.commit(vec![grown, shorter, empty]).unwrap();
    assert_eq!(all(store).len(), 3);
}

fn large_files_are_copied_whole(store: &dyn BlobStore) {
    const CHUNK: usize = super::CHUNK;
    let content: Vec<u8> = (0..=250).cycle().take(4 * CHUNK + 123).collect();
    let file = file_with(&content);
    for size in [content.len(), CHUNK, CHUNK + 1] {
        let staged = stage(store, &file, size as u64);
        assert_eq!(staged.name, name(&content[..size]));
        store.commit(vec![staged]).unwrap();
        let mut read = vec![0; size];
        store.open(name(&content[..size])).unwrap().read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, content[..size]);
    }
}

fn a_removed_content_is_gone(store: &dyn BlobStore) {
    put(store, b"one");
    put(store, b"three");
    let free = store.remove(name(b"three")).unwrap();
    assert_eq!(store.size(name(b"three")).unwrap(), None, "before its storage is freed");
    assert_eq!(free().unwrap(), 5);
    assert_eq!(all(store), [name(b"one")]);
    let again = store.remove(name(b"three")).and_then(|free| free());
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(store.open(name(b"three")).unwrap_err().kind(), io::ErrorKind::NotFound);
    put(store, b"three");
    assert_eq!(store.size(name(b"three")).unwrap(), Some(5));
}
