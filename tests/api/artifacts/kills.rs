//! The server is killed with SIGKILL while it takes artifacts, ten times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::ArtifactSession as _;
use super::{link, list, reply};
use belljar_testkit::installation::Installation;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};

const KILLS: usize = 10;
const SESSIONS: usize = 2;
const FILES: usize = 80;

/// Each reported artifact can be downloaded, each file is either reported or still in the sandbox,
/// and none is reported twice.
#[tokio::test]
async fn a_server_killed_while_it_takes_files_loses_none() {
    let seed = std::env::var("RECOVERY_SEED").ok().and_then(|text| text.parse().ok());
    let mut dice: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("RECOVERY_SEED={dice}");
    let installation = Arc::new(Installation::new().env("BELLJAR_LOG", "warn"));
    let mut server = installation.serve().await;
    let mut ids = Vec::new();
    for n in 0..SESSIONS {
        let storage = if n == 0 { "BIND" } else { "TMPFS" };
        ids.push(server.session_with(json!({"storage": storage})).await.id);
    }
    for kill in 0..KILLS {
        for id in &ids {
            let exec = format!("exec{kill}");
            let command = format!(
                "cd artifacts; for n in $(seq {FILES}); do echo {exec} $n > {exec}-$n; done"
            );
            let ask = json!({"command": command, "exec_id": exec, "background": true});
            Session::of(&server, id).exec(ask).await.json(202);
        }
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The delay ranges from the first file to long after the last.
        tokio::time::sleep(Duration::from_millis((dice >> 33) % 200)).await;
        server.kill().await;
        server = installation.serve().await;
    }
    let mut results = BTreeMap::new();
    for id in &ids {
        let session = Session::of(&server, id);
        for kill in 0..KILLS {
            let exec = format!("exec{kill}");
            session.reaches(&exec, "finished").await;
            let result = session.exec_info(&exec).await["result"].clone();
            assert_eq!(result["status"], "ok", "{result:#}");
            results.insert((id.clone(), exec), result);
        }
        let last = session.python("1").await;
        results.insert((id.clone(), "last".into()), last);
        assert_eq!(session.inside().await, "", "everything was taken by somebody");
    }
    // Once more, with no file in transfer.
    server.kill().await;
    let server = installation.serve().await;
    assert_eq!(names(&installation.path("blobstore/incoming")), [""; 0]);

    let mut connection = server.connect().await;
    let mut seen = BTreeSet::new();
    for ((id, exec), result) in &results {
        let of_it: BTreeSet<&str> = reply(result).into_iter().collect();
        assert_eq!(of_it.len(), reply(result).len(), "{exec} of {id} tells a file twice");
        for artifact in list(&result["artifacts"]) {
            let name = text(&artifact["name"]);
            let answer = connection.send(server.request(Method::GET, &link(artifact), "")).await;
            assert_eq!(answer.text(200), name.replace('-', " ") + "\n", "{artifact:#}");
            seen.insert((id.clone(), name.to_owned()));
        }
    }
    assert_eq!(seen.len(), SESSIONS * FILES * KILLS, "all that was ever left was told");
    check_books(
        &installation,
        results.values().map(|result| list(&result["artifacts"]).len()).sum(),
    );
    for session in &ids {
        Session::of(&server, session).stop().await;
    }
}

/// The database agrees with the reported artifacts and with its own totals.
fn check_books(installation: &Installation, reply: usize) {
    let path = installation.path("state/artifacts.db");
    let database = rusqlite::Connection::open(path).expect("a database");
    let number = |query: &str| -> i64 {
        database.query_row(query, [], |row| row.get(0)).expect("an answer")
    };
    let rows = number("SELECT count(*) FROM artifacts");
    assert_eq!(rows, i64::try_from(reply).expect("a number"), "no row that nobody was told of");
    let wrong = number(
        "SELECT count(*) FROM totals JOIN (
             SELECT tenant, session, count(*) AS n, sum(size) AS s FROM artifacts GROUP BY 1, 2
             UNION ALL SELECT tenant, '', count(*), sum(size) FROM artifacts GROUP BY 1
         ) AS real USING (tenant, session) WHERE count <> n OR bytes <> s",
    );
    assert_eq!(wrong, 0, "totals that are not the sums");
    let twice = number(
        "SELECT count(*) FROM (SELECT 1 FROM artifacts GROUP BY session, exec, path HAVING count(*) > 1)",
    );
    assert_eq!(twice, 0, "one execution has a file twice");
}
