//! The one script that sets up a machine and starts a server.

use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use belljar_testkit::installation::Installation;
use belljar_testkit::values::text;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/quickstart.sh");

#[tokio::test]
async fn the_script_ends_in_a_server() {
    let installation = Arc::new(Installation::new());
    let mut script = installation.command(SCRIPT, &["127.0.0.1:0"]);
    script.env("BELLJAR_BINARY", belljar_testkit::belljar());
    let server = installation.serve_by(script).await;
    let made = server.post("/create_session", json!({})).await.json(200);
    let ask = json!({"session_id": text(&made["session_id"]), "command": "echo Hello"});
    let hello = server.post("/execute", ask).await.json(200);
    assert_eq!(hello, json!({"exit_code": 0, "output": "Hello\n"}));
    let said = server.said();
    for step in ["1/4", "2/4", "3/4", "it is there", "4/4", "listens on"] {
        assert!(said.contains(step), "no {step}:\n{said}");
    }
}

#[test]
fn it_says_what_it_does() {
    let help = Command::new(SCRIPT).arg("--help").output().expect("it starts");
    let text = String::from_utf8(help.stdout).expect("text");
    assert!(help.status.success() && text.contains("127.0.0.1:5000"), "{text}");
    assert!(!text.contains("set -eu"), "{text}");
}
