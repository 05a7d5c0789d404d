//! The server is killed while it makes or removes volumes. Afterwards each volume is there or gone.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::names;
use belljar_testkit::wait::eventually;

/// From before the operation begins to after it is done.
const MOMENTS_MS: [u64; 5] = [0, 2, 6, 15, 60];

/// The names of the directories of volumes on disk.
fn on_disk(server: &Server) -> BTreeSet<String> {
    let root = server.path("volumes");
    names(&root).iter().flat_map(|owner| names(&root.join(owner))).collect()
}

/// Mounts below the volumes of this installation, in the mount namespace of this process.
fn mounted(server: &Server) -> Vec<String> {
    let installation = server.path("volumes").display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a list");
    mounts.lines().filter(|line| line.contains(&installation)).map(str::to_owned).collect()
}

async fn listed(server: &Server) -> Vec<Value> {
    server.get("/v1/volumes").await.json(200)["volumes"].as_array().expect("a list").clone()
}

/// Only listed volumes are on disk, and no unfinished volume stays mounted.
async fn is_whole(server: &Server) {
    eventually("what was half-done is gone", async || {
        on_disk(server).len() == listed(server).await.len() && mounted(server).is_empty()
    })
    .await;
    let code =
        "import os\nfor v in os.listdir('/volumes'): open(f'/volumes/{v}/x', 'w').write('x')";
    in_all(server, code).await;
}

/// Runs code in a sandbox with all volumes.
async fn in_all(server: &Server, code: &str) {
    let all = listed(server).await;
    let names = all.iter().map(|volume| volume["name"].as_str().expect("text").to_owned());
    let volumes: serde_json::Map<String, Value> = names.map(|name| (name, json!("rw"))).collect();
    let run = server.post("/v1/run", json!({"code": code, "volumes": volumes})).await.json(200);
    assert_eq!(run["status"], "ok", "{run:#}");
}

#[tokio::test]
async fn a_volume_half_made_or_half_removed_is_there_or_gone() {
    for storage in ["auto", "directory"] {
        let installation = Arc::new(Installation::new().env("BELLJAR_VOLUME_STORAGE", storage));
        let mut server = installation.serve().await;
        let mut made = 0;
        for moment in MOMENTS_MS {
            let client = server.client();
            let ask = json!({"name": format!("v{moment}"), "size": "64M"});
            let making = tokio::spawn(async move { client.post("/v1/volumes", ask).await });
            tokio::time::sleep(Duration::from_millis(moment)).await;
            server = server.kill().await.serve().await;
            making.abort();
            is_whole(&server).await;
            made = listed(&server).await.len();
            // The name is free, or the volume has it.
            let again = json!({"name": format!("v{moment}"), "size": "64M"});
            assert!([201, 409].contains(&server.post("/v1/volumes", again).await.status));
        }
        assert!(made > 0, "the last moments are long after it was made");
        assert_eq!(listed(&server).await.len(), MOMENTS_MS.len());
        let code = "import os\n\
            for v in os.listdir('/volumes'):\n    \
                for n in range(2000): open(f'/volumes/{v}/{n}', 'w')";
        in_all(&server, code).await;
        for moment in MOMENTS_MS {
            let client = server.client();
            let path = format!("/v1/volumes/v{moment}");
            let asked = path.clone();
            let removing = tokio::spawn(async move { client.delete(&asked).await });
            tokio::time::sleep(Duration::from_millis(moment)).await;
            server = server.kill().await.serve().await;
            removing.abort();
            is_whole(&server).await;
            assert!([204, 404].contains(&server.delete(&path).await.status));
        }
        assert_eq!((listed(&server).await.len(), on_disk(&server).len()), (0, 0));
        server.installation.has_no_traces().await;
    }
}

#[tokio::test]
async fn a_volume_of_a_session_that_died_with_its_server_can_be_removed() {
    let installation = Arc::new(Installation::new());
    let server = installation.serve().await;
    server.post("/v1/volumes", json!({"name": "left", "size": "4M"})).await.json(201);
    let session = server.session_with(json!({"volumes": {"left": "rw"}})).await;
    session.python("open('/volumes/left/a', 'w').write('x')").await;
    server.kill().await;
    for guest in installation.pids_inside(1) {
        belljar_sys::process::signal(guest, 9).expect("it lives");
    }
    let server = installation.serve().await;
    let freed = async || server.get("/v1/volumes/left").await.json(200)["used_by"] == json!([]);
    eventually("its end is noticed", freed).await;
    let run = json!({"code": "print(open('/volumes/left/a').read())", "volumes": {"left": "ro"}});
    assert_eq!(server.post("/v1/run", run).await.json(200)["stdout"], "x\n");
    assert_eq!(server.delete("/v1/volumes/left").await.status, 204);
}
