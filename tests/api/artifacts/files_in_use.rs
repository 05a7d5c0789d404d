//! Files that are still open for writing are not taken: a partial file is useless.

use serde_json::json;

use super::ArtifactSession as _;
use super::{link, list, only, reason, refused, reply};
use belljar_testkit::server::Server;

#[tokio::test]
async fn a_file_is_taken_once_it_is_closed() {
    let server = Server::start().await;
    let session = server.session().await;
    let begun = session
        .python("f = open('/session/artifacts/log', 'w'); f.write('whole'); f.flush()")
        .await;
    assert_eq!(reply(&begun), [""; 0]);
    assert!(reason(&begun, "log").contains("open for writing"), "{begun:#}");
    // Other files are taken meanwhile, and the refusal is not repeated.
    let meanwhile = session.leaves("other", "x").await;
    assert_eq!((reply(&meanwhile), refused(&meanwhile)), (vec!["other"], vec![]));
    let idle = session.python("1").await;
    assert_eq!((reply(&idle), refused(&idle)), (vec![], vec![]));
    // The only change is that the file is closed.
    let closed = session.python("f.close()").await;
    assert_eq!(reply(&closed), ["log"]);
    assert_eq!(server.get(&link(only(&closed))).await.text(200), "whole");
    assert_eq!(session.inside().await, "");
}

#[tokio::test]
async fn a_mapped_file_is_left_in_place() {
    let server = Server::start().await;
    let session = server.session().await;
    let mapped = "import mmap\nf = open('/session/artifacts/map', 'w+b')\nf.truncate(4)\n\
                  m = mmap.mmap(f.fileno(), 4)\nf.close()\nm[:] = b'abcd'";
    let mapped = session.python(mapped).await;
    assert!(reason(&mapped, "map").contains("open for writing"), "{mapped:#}");
    // A write through a mapping need not change the file's times.
    session.python("m[:] = b'efgh'").await;
    let closed = session.python("m.close()").await;
    assert_eq!(reply(&closed), ["map"]);
    assert_eq!(server.get(&link(only(&closed))).await.text(200), "efgh");
}

#[tokio::test]
async fn a_file_of_the_background_is_taken_once_when_it_is_closed() {
    let server = Server::start().await;
    let session = server.session().await;
    let holder = "exec 3> artifacts/held; echo held >&3; echo holding; \
                  until test -e go; do sleep 0.01; done; echo more >&3";
    let ask = json!({"command": holder, "background": true, "exec_id": "holder"});
    session.exec(ask).await.json(202);
    session.has_printed("holder", "holding").await;
    let meanwhile = session.python("1").await;
    assert!(reason(&meanwhile, "held").contains("open for writing"), "{meanwhile:#}");
    // The first execution that ends after the file is closed reports it: usually its own execution.
    let release = session.shell("touch go").await;
    session.reaches("holder", "finished").await;
    let result = &session.exec_info("holder").await["result"];
    let results = [&release, result].map(|result| reply(result));
    assert_eq!(results.concat(), ["held"]);
    let artifact = if results[0].is_empty() { only(result) } else { only(&release) };
    assert_eq!(server.get(&link(artifact)).await.text(200), "held\nmore\n");
}

/// One file is rewritten in place and another is replaced by a new one, as fast as possible.
#[tokio::test]
async fn no_artifact_is_half_of_one_version_and_half_of_another() {
    let server = Server::start().await;
    let session = server.session().await;
    let writer = "import os, sys\nprint('writing', flush=True)\n\
                  os.chdir('/session')\nn = 0\n\
                  while not os.path.exists('go'):\n\
                  \x20   n += 1\n\
                  \x20   text = 'abcdefghij'[n % 10] * (1 + n * 7919 % 300_000)\n\
                  \x20   with open('artifacts/rewritten', 'w') as f: f.write(text)\n\
                  \x20   with open('new', 'w') as f: f.write(text)\n\
                  \x20   os.rename('new', 'artifacts/replaced')";
    let ask = json!({"command": ["python3", "-c", writer], "background": true, "exec_id": "w"});
    session.exec(ask).await.json(202);
    session.has_printed("w", "writing").await;
    let mut seen = Vec::new();
    for _ in 0..8 {
        let result = session.shell("true").await;
        assert_eq!(result["status"], "ok");
        seen.extend(list(&result["artifacts"]).iter().cloned());
    }
    let release = session.shell("touch go").await;
    session.reaches("w", "finished").await;
    let last = session.exec_info("w").await["result"].clone();
    for result in [release, last] {
        seen.extend(list(&result["artifacts"]).iter().cloned());
    }
    assert!(seen.iter().any(|artifact| artifact["name"] == "replaced"), "{seen:#?}");
    assert!(seen.iter().any(|artifact| artifact["name"] == "rewritten"), "{seen:#?}");
    for artifact in seen {
        let content = server.get(&link(&artifact)).await.text(200);
        assert_eq!(artifact["size"], content.len());
        let first = content.chars().next().unwrap_or_else(|| panic!("empty: {artifact:#}"));
        assert!(content.chars().all(|c| c == first), "{artifact:#} is torn");
    }
    assert_eq!(session.inside().await, "");
}
