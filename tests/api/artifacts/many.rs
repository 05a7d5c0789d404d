//! More files than are taken after one execution.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{list, refused};
use belljar_testkit::server::Server;

/// Time limit for this many files with a debug build of the server.
const MUCH_PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn of_very_many_files_the_rest_is_taken_next_time() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import os\nos.chdir('/session/artifacts')\n\
                for n in range(25_000): os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))";
    let ask = json!({"code": code, "exec_id": "first", "background": true});
    session.exec(ask).await.json(202);
    let taken = async || server.metric("belljar_artifacts_total").await;
    let deadline = Instant::now() + MUCH_PATIENCE;
    while taken().await < 20_000.0 {
        assert!(Instant::now() < deadline, "only {} are taken", taken().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    session.reaches("first", "finished").await;
    let first = &session.exec_info("first").await["result"];
    assert_eq!(list(&first["artifacts"]).len(), 20_000);
    let said = refused(first);
    assert_eq!(said.len(), 101, "some by name, the others as a number");
    assert!(said[0].1.contains("more than 20000 files"), "{:?}", said[0]);
    assert_eq!(said[100], ("...", "4900 more were not taken"));
    let second = session.python("1").await;
    assert_eq!((list(&second["artifacts"]).len(), refused(&second).len()), (5000, 0));
    let third = session.python("1").await;
    assert_eq!((&third["artifacts"], refused(&third)), (&json!([]), vec![]));
    assert_eq!(taken().await, 25_000.0);
}
