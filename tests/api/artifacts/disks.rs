//! Full disks, on the host and in the sandbox.

use std::fs;
use std::path::PathBuf;

use super::ArtifactSession as _;
use super::{link, list, only, reason, refused, reply};
use crate::storage::on_a_small_disk;
use belljar_testkit::server::Server;
use belljar_testkit::values::{names, text};

#[tokio::test]
async fn a_full_blob_store_costs_no_result_and_no_file() {
    let server = on_a_small_disk("blobstore", "size=1m").await;
    let session = server.session().await;
    let too_much = "cd artifacts; head -c 2000000 /dev/urandom > large; echo x > small; echo done";
    let result = session.shell(too_much).await;
    assert_eq!((text(&result["status"]), text(&result["stdout"])), ("ok", "done\n"));
    assert!(reason(&result, "large").contains("No space left"), "{result:#}");
    assert_eq!(reply(&result), ["small"]);
    assert_eq!(server.get(&link(only(&result))).await.text(200), "x\n");
    let store = format!("/proc/{}/root{}", server.pid(), server.path("blobstore").display());
    assert_eq!(names(&PathBuf::from(&store).join("incoming")), [""; 0], "nothing half-copied");
    assert_eq!(session.inside().await, "large");
    // Without space even for a directory entry.
    let filler = PathBuf::from(&store).join("filler");
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    let full = session.shell("echo other > artifacts/other; echo still here").await;
    assert_eq!((text(&full["stdout"]), reply(&full)), ("still here\n", vec![]));
    assert!(!refused(&full).is_empty(), "{full:#}");
    // After space is freed it is taken, although the file has not changed.
    fs::remove_file(&filler).expect("it was there");
    let after = session.shell("truncate -s 100000 artifacts/large").await;
    assert_eq!(reply(&after), ["large", "other"]);
    assert_eq!(session.inside().await, "");
}

#[tokio::test]
async fn a_full_store_is_retried_by_itself() {
    let server = on_a_small_disk("blobstore", "size=1m").await;
    let session = server.session().await;
    let store = format!("/proc/{}/root{}", server.pid(), server.path("blobstore").display());
    let filler = PathBuf::from(&store).join("filler");
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    let full = session.leaves("a", "x").await;
    assert_eq!(reply(&full), [""; 0]);
    assert!(!refused(&full).is_empty(), "{full:#}");
    assert_eq!(refused(&session.python("1").await), [], "it is said once");
    fs::remove_file(&filler).expect("it was there");
    assert_eq!(reply(&session.python("1").await), ["a"]);
}

#[tokio::test]
async fn a_full_session_is_emptied_by_taking() {
    let server = Server::with(&[("TMPFS_SIZE_MB", "4")]).await;
    let session = server.session().await;
    let filled = session.shell("cat /dev/zero > artifacts/full; echo $?").await;
    assert_eq!(filled["stdout"], "1\n", "{filled:#}");
    assert_eq!(reply(&filled), ["full"]);
    let size = list(&filled["artifacts"])[0]["size"].as_u64().expect("a size");
    assert!((1 << 20..=4 << 20).contains(&size), "{size}");
    assert_eq!(reply(&session.leaves("next", "x").await), ["next"]);
}
