use std::fs;
use std::time::Duration;

use belljar_testkit::s3::{Fault, KEY_ID, S3Server, SECRET};

use super::super::files::create;
use super::super::{RemoteSnapshotConfig, SnapshotConfig, SnapshotStore};
use super::*;
use crate::objects::ObjectsConfig;
use crate::spec::Checkpoints;
use std::io::Write;

/// The bit of layers that sessions share, see `belljar_runtime::common_layer`.
const COMMON_BIT: u64 = 1 << 62;

struct Fixture {
    server: S3Server,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { server: S3Server::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn node(&self, name: &str) -> SnapshotStore {
        let objects = ObjectsConfig {
            url: self.server.url(),
            endpoint: Some(self.server.endpoint()),
            region: None,
            key: Some((KEY_ID.into(), SECRET.into())),
        };
        SnapshotStore::open(SnapshotConfig {
            directory: self.directory.path().join(name),
            total_bytes: None,
            tenant_bytes: None,
            tenant_sleeping: None,
            hibernate_after: None,
            remote: Some(RemoteSnapshotConfig { objects, class: "x86_64-test".into() }),
        })
        .unwrap()
    }

    fn put_requests(&self) -> Vec<String> {
        let mut puts = self.server.requests();
        puts.retain(|request| request.starts_with("PUT"));
        puts
    }

    fn get_requests(&self) -> Vec<String> {
        let mut gets = self.server.requests();
        gets.retain(|request| request.starts_with("GET"));
        gets
    }
}

/// Takes a snapshot with these layers; those that do not exist are made.
fn take(node: &SnapshotStore, session: &str, earlier: &[u64]) -> SnapshotManifest {
    let (files, id) = (node.files_of(session), node.next_id());
    let draft = files.begin(id).unwrap();
    for kind in ["pages", "index", "files"] {
        let content = format!("{kind} of {id} ").repeat(1000);
        create(&draft.path(kind)).unwrap().write_all(content.as_bytes()).unwrap();
    }
    let manifest = SnapshotManifest {
        id,
        made_ms: 1,
        exec: None,
        layers: Some(earlier.iter().copied().chain([id]).collect()),
        files: Some(id),
        fingerprint: None,
        gone: Vec::new(),
        lost: Vec::new(),
        bytes: 0,
    };
    draft.finish(manifest, false).unwrap()
}

/// Makes a layer that sessions of this node share.
fn make_common(node: &SnapshotStore, id: u64, content: &[u8]) {
    fs::create_dir_all(node.commons()).unwrap();
    fs::write(common_layer(&node.commons(), id).unwrap(), content).unwrap();
}

fn remote(node: &SnapshotStore) -> &RemoteSnapshots {
    node.remote().unwrap()
}

fn same_files(
    one: &SnapshotStore,
    other: &SnapshotStore,
    session: &str,
    manifest: &SnapshotManifest,
) {
    for (id, kind) in manifest.parts() {
        let read = |node: &SnapshotStore| fs::read(node.files_of(session).path(id, kind)).unwrap();
        assert!(read(one) == read(other), "{id}.{kind}");
    }
}

#[tokio::test]
async fn a_session_moves_to_another_node_and_back() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let first = take(&one, "ses_1", &[]);
    let pointer = remote(&one).upload("ses_1", 3, &one.of_session("ses_1"), &first).await.unwrap();
    assert_eq!((&pointer["class"], &pointer["number"]), (&"x86_64-test".into(), &3.into()));
    let key = pointer["files"][0]["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("snapshots/ses_1/3-"), "{key}");
    let fetched = remote(&other).fetch(&pointer, &other.of_session("ses_1")).await.unwrap();
    assert_eq!((&fetched, other.of_session("ses_1").last().await), (&first, Some(first.clone())));
    same_files(&one, &other, "ses_1", &first);

    // Only what is new is sent, and fetched by a node that has the rest.
    let second = take(&other, "ses_1", &[first.id]);
    assert!(second.id > first.id);
    fixture.put_requests();
    let snapshots = other.of_session("ses_1");
    let pointer = remote(&other).upload("ses_1", 4, &snapshots, &second).await.unwrap();
    assert_eq!(fixture.put_requests().len(), 3);
    remote(&one).fetch(&pointer, &one.of_session("ses_1")).await.unwrap();
    assert_eq!(fixture.get_requests().len(), 3);
    same_files(&one, &other, "ses_1", &second);

    // Of the first snapshot only the layer is needed still.
    remote(&other).prune(&pointer).await.unwrap();
    let left = remote(&one).0.objects.list_all("snapshots").await.unwrap();
    assert_eq!(left.len(), 4);
    let third = fixture.node("third");
    remote(&third).fetch(&pointer, &third.of_session("ses_1")).await.unwrap();
    remote(&one).remove("ses_1").await.unwrap();
    assert_eq!(remote(&one).0.objects.list_all("snapshots").await.unwrap(), []);
}

#[tokio::test]
async fn an_owner_that_lost_the_session_removes_nothing_of_the_next_one() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let first = take(&one, "ses_1", &[]);
    let early = remote(&one).upload("ses_1", 1, &one.of_session("ses_1"), &first).await.unwrap();
    let snapshots = other.of_session("ses_1");
    remote(&other).fetch(&early, &snapshots).await.unwrap();
    let second = take(&other, "ses_1", &[first.id]);
    let late = remote(&other).upload("ses_1", 2, &snapshots, &second).await.unwrap();
    remote(&one).prune(&early).await.unwrap();
    let third = fixture.node("third");
    remote(&third).fetch(&late, &third.of_session("ses_1")).await.unwrap();
}

#[tokio::test]
async fn snapshots_that_the_row_does_not_know_are_removed() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let (here, there) = (one.of_session("ses_1"), other.of_session("ses_1"));
    let checkpoint = take(&one, "ses_1", &[]);
    let first = take(&one, "ses_1", &[checkpoint.id]);
    let pointer = remote(&one).upload("ses_1", 1, &here, &first).await.unwrap();
    let ids = async |snapshots: &SessionSnapshots| {
        snapshots.list().await.into_iter().map(|manifest| manifest.id).collect::<Vec<u64>>()
    };
    // This one was never sent, so the session goes on from the one before.
    take(&one, "ses_1", &[first.id]);
    remote(&one).fetch(&pointer, &here).await.unwrap();
    assert_eq!(ids(&here).await, [checkpoint.id, first.id]);
    // The session went on elsewhere.
    remote(&other).fetch(&pointer, &there).await.unwrap();
    let second = take(&other, "ses_1", &[first.id]);
    let pointer = remote(&other).upload("ses_1", 2, &there, &second).await.unwrap();
    take(&one, "ses_1", &[first.id]);
    remote(&one).fetch(&pointer, &here).await.unwrap();
    assert_eq!(ids(&here).await, [second.id]);
    same_files(&one, &other, "ses_1", &second);
}

#[tokio::test]
async fn shared_layers_are_sent_and_fetched_once() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let common = COMMON_BIT | 77;
    make_common(&one, common, &[9; 100_000]);
    let mut pointers = Vec::new();
    for session in ["ses_1", "ses_2", "ses_3"] {
        let files = one.files_of(session);
        files.make().unwrap();
        files.require_layer(common, &one.commons()).unwrap();
        let manifest = take(&one, session, &[common]);
        let snapshots = one.of_session(session);
        pointers.push(remote(&one).upload(session, 1, &snapshots, &manifest).await.unwrap());
    }
    let is_common = |request: &String| request.contains("/snapshots/common/");
    assert_eq!(fixture.put_requests().iter().filter(|put| is_common(put)).count(), 1);
    let fetching = pointers.iter().zip(["ses_1", "ses_2", "ses_3"]).map(|(pointer, session)| {
        let other = other.clone();
        async move { remote(&other).fetch(pointer, &other.of_session(session)).await.unwrap() }
    });
    let fetched: Vec<SnapshotManifest> =
        futures_util::stream::iter(fetching).buffered(3).collect().await;
    assert_eq!(fixture.get_requests().iter().filter(|get| is_common(get)).count(), 1);
    same_files(&one, &other, "ses_2", &fetched[1]);
    // A node that made the layer fetches none.
    one.remove("ses_2").await;
    remote(&one).fetch(&pointers[1], &one.of_session("ses_2")).await.unwrap();
    assert_eq!(fixture.get_requests().iter().filter(|get| is_common(get)).count(), 0);
    // The cache of a node outlives a restart, and sessions that end.
    other.tidy(vec![("ses_1".into(), "acme".into())]).await.unwrap();
    remote(&other).fetch(&pointers[1], &other.of_session("ses_2")).await.unwrap();
    assert_eq!(fixture.get_requests().iter().filter(|get| is_common(get)).count(), 0);

    // Another node fetches it before a session needs it; nodes that have it do not.
    let third = fixture.node("third");
    for (node, expected) in [(&third, 1), (&third, 0), (&one, 0), (&other, 0)] {
        remote(node).fetch_zygote_layers().await.unwrap();
        let gets = fixture.get_requests();
        // The list itself is a request without a key.
        let fetched =
            gets.iter().filter(|get| is_common(get) && !get.contains("list-type")).count();
        assert_eq!(fetched, expected, "{gets:?}");
    }
    remote(&third).fetch(&pointers[2], &third.of_session("ses_3")).await.unwrap();
    assert_eq!(fixture.get_requests().iter().filter(|get| is_common(get)).count(), 0);
    same_files(&one, &third, "ses_3", &fetched[2]);

    // A sweep removes it when it is old and no session needs it.
    let later = clock::now_ms() + 2 * COMMON_KEPT_MS;
    let used: HashSet<String> = RemoteSnapshots::common_layers(&pointers[2]).unwrap().collect();
    assert_eq!(used.len(), 1);
    let none = HashSet::new();
    assert_eq!(remote(&one).sweep_common(clock::now_ms(), &none).await.unwrap(), 0);
    assert_eq!(remote(&one).sweep_common(later, &used).await.unwrap(), 0);
    assert_eq!(remote(&one).sweep_common(later, &none).await.unwrap(), 1);
}

#[tokio::test]
async fn a_fork_shares_layers_by_their_content() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let taken = take(&one, "ses_1", &[]);
    let fork = one.fork_source(&one.of_session("ses_1"), &taken).await.unwrap();
    fork.share(&one.of_session("ses_2")).await.unwrap();
    let mut pointers = Vec::new();
    for session in ["ses_1", "ses_2"] {
        let snapshots = one.of_session(session);
        pointers.push(remote(&one).upload(session, 1, &snapshots, &taken).await.unwrap());
    }
    assert_eq!(fixture.put_requests().len(), 3);
    remote(&one).remove("ses_1").await.unwrap();
    remote(&other).fetch(&pointers[1], &other.of_session("ses_2")).await.unwrap();
    same_files(&one, &other, "ses_2", &taken);
}

#[tokio::test]
async fn a_changed_or_truncated_object_is_refused() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let taken = take(&one, "ses_1", &[]);
    let pointer = remote(&one).upload("ses_1", 1, &one.of_session("ses_1"), &taken).await.unwrap();
    let object = fixture.server.file(pointer["files"][1]["key"].as_str().unwrap());
    let (good, snapshots) = (fs::read(&object).unwrap(), other.of_session("ses_1"));
    let mut changed = good.clone();
    changed[10] ^= 1;
    for bad in [changed.as_slice(), &good[..100]] {
        fs::write(&object, bad).unwrap();
        remote(&other).fetch(&pointer, &snapshots).await.unwrap_err();
        assert_eq!(snapshots.last().await, None, "it is not visible");
    }
    fs::remove_file(&object).unwrap();
    remote(&other).fetch(&pointer, &snapshots).await.unwrap_err();
    fs::write(&object, &good).unwrap();
    fixture.get_requests();
    remote(&other).fetch(&pointer, &snapshots).await.unwrap();
    assert_eq!(fixture.get_requests().len(), 1, "the other files were there");
    for broken in [serde_json::json!({}), serde_json::json!({ "version": 2 })] {
        remote(&other).fetch(&broken, &snapshots).await.unwrap_err();
    }
}

#[tokio::test]
async fn faults_of_the_server_are_survived_or_reported() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.node("one"), fixture.node("other"));
    let taken = take(&one, "ses_1", &[]);
    let snapshots = one.of_session("ses_1");
    fixture.server.fail(Fault::Refuse, usize::MAX);
    let error = remote(&one).upload("ses_1", 1, &snapshots, &taken).await.unwrap_err();
    let error = crate::error::in_full(&error);
    assert!(error.contains("AWS_ACCESS_KEY_ID") && error.contains("BELLJAR_BLOBS_URL"), "{error}");
    fixture.server.fail(Fault::Status(503), 4);
    let pointer = remote(&one).upload("ses_1", 1, &snapshots, &taken).await.unwrap();
    for fault in [Fault::Cut(500), Fault::Drop, Fault::Slow(Duration::from_millis(200))] {
        fixture.server.fail(fault, 2);
        remote(&other).fetch(&pointer, &other.of_session("ses_1")).await.unwrap();
        same_files(&one, &other, "ses_1", &taken);
        other.remove("ses_1").await;
    }
}

/// Drivers run on any thread.
#[test]
fn uploads_and_fetches_can_move_between_threads() {
    fn must_be_send<T: Send>(_: impl Fn(RemoteSnapshots, SessionSnapshots, SnapshotManifest) -> T) {
    }
    must_be_send(|remote, snapshots, manifest| async move {
        let pointer = remote.upload("ses_1", 1, &snapshots, &manifest).await?;
        remote.fetch(&pointer, &snapshots).await?;
        remote.prune(&pointer).await?;
        remote.remove("ses_1").await
    });
}

#[test]
fn ids_of_two_nodes_differ_and_grow() {
    let directory = tempfile::tempdir().unwrap();
    let node = |name: &str| {
        SnapshotStore::open(SnapshotConfig {
            directory: directory.path().join(name),
            total_bytes: None,
            tenant_bytes: None,
            tenant_sleeping: None,
            hibernate_after: None,
            remote: None,
        })
        .unwrap()
    };
    // As many as nodes take in a millisecond at most. Of thousands in one millisecond, two would be equal now and then.
    let ids = |node: SnapshotStore| (0..10).map(|_| node.next_id()).collect::<Vec<u64>>();
    let (one, other) = (ids(node("one")), ids(node("other")));
    assert!(one.is_sorted_by(|a, b| a < b) && *one.last().unwrap() < COMMON_BIT);
    assert!(one.iter().all(|id| !other.contains(id)));
}

/// Gives a session a checkpoint of this execution.
fn take_checkpoint(node: &SnapshotStore, session: &str, exec: &str) -> SnapshotManifest {
    let manifest = take(node, session, &[]);
    let manifest = SnapshotManifest { exec: Some(exec.to_owned()), ..manifest };
    node.files_of(session).add_checkpoint(&manifest).unwrap();
    manifest
}

#[tokio::test]
async fn checkpoints_move_with_their_session() {
    const BOUNDS: Checkpoints = Checkpoints { max: 2, max_bytes: u64::MAX };
    let fixture = Fixture::new();
    let (one, two) = (fixture.node("one"), fixture.node("two"));
    let first = take_checkpoint(&one, "ses_1", "a");
    let second = take_checkpoint(&one, "ses_1", "b");
    let manifest = take(&one, "ses_1", &[second.id]);
    let (here, there) = (one.of_session("ses_1"), two.of_session("ses_1"));
    let (sender, receiver) = (one.remote().unwrap(), two.remote().unwrap());
    let sent = sender.upload("ses_1", 1, &here, &manifest).await.unwrap();
    let sent = sender.add_checkpoints(&sent, None, &here, BOUNDS).await.unwrap();
    assert_eq!(checkpoints_of(&sent), [first.clone(), second.clone()]);
    sender.prune(&sent).await.unwrap();

    // Only the snapshot is fetched, and a checkpoint when it is asked for.
    receiver.fetch(&sent, &there).await.unwrap();
    assert_eq!(there.list().await, [manifest]);
    assert_eq!(receiver.fetch_checkpoint(&sent, "x", &there).await.unwrap(), None);
    let fetched = receiver.fetch_checkpoint(&sent, "a", &there).await.unwrap();
    assert_eq!(fetched, Some(first.clone()));
    assert!(there.kernel(&first).await.unwrap().is_some());

    // The other node goes on: checkpoints that it did not fetch stay, within bounds, and are not sent again.
    let third = take_checkpoint(&two, "ses_1", "c");
    let later = take(&two, "ses_1", &[]);
    fixture.server.requests();
    let again = receiver.upload("ses_1", 2, &there, &later).await.unwrap();
    let again = receiver.add_checkpoints(&again, Some(&sent), &there, BOUNDS).await.unwrap();
    assert_eq!(fixture.put_requests().len(), 6, "the files of two snapshots");
    assert_eq!(checkpoints_of(&again), [second.clone(), third]);
    receiver.prune(&again).await.unwrap();
    let fetched = sender.fetch_checkpoint(&again, "c", &here).await.unwrap();
    assert!(fetched.is_some_and(|fetched| fetched.layers.is_some()));
    let back = fixture.node("three").of_session("ses_1");
    assert_eq!(sender.fetch_checkpoint(&again, "b", &back).await.unwrap(), Some(second));
    assert_eq!(sender.fetch_checkpoint(&again, "a", &back).await.unwrap(), None);
}
