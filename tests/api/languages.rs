//! Languages other than Python and bash, over the API.

use serde_json::json;

use belljar_testkit::server::Server;
use belljar_testkit::values::text;

fn has_node() -> bool {
    let has = std::path::Path::new("/usr/bin/node").exists();
    if !has {
        belljar_testkit::skip::record("there is no node on this machine");
    }
    has
}

#[tokio::test]
async fn javascript_is_a_language_like_others() {
    if !has_node() {
        return;
    }
    let server = Server::start().await;
    let session = server.session().await;
    let js = async |code: &str| {
        session.exec(json!({"language": "javascript", "code": code})).await.json(200)
    };
    js("const x = [1, 2]").await;
    let result = js("console.log('said'); ({ sum: x[0] + x[1] })").await;
    assert_eq!(
        (&result["status"], text(&result["stdout"])),
        (&json!("ok"), "said\n"),
        "{result:#}"
    );
    assert_eq!(result["results"][0]["data"]["application/json"], json!({"sum": 3}));
    // Each language has its own kernel and its own lane.
    assert_eq!(session.printed("print('python')").await, "python\n");
    let state = session.client.get(&session.path("/state?language=js")).await.json(200);
    assert_eq!(state["variables"][0]["name"], "x", "{state:#}");
    let background = json!({"language": "node", "code": "console.log(await Promise.resolve(6 * 7))",
                            "background": true, "exec_id": "beside"});
    session.exec(background).await.json(202);
    session.reaches("beside", "finished").await;
    assert_eq!(session.exec_info("beside").await["result"]["stdout"], "42\n");
    let listed = session.client.get(&session.path("/execs")).await.json(200).to_string();
    assert!(listed.contains("\"javascript\""), "{listed}");
    let run = server.post("/v1/run", json!({"language": "js", "code": "6 * 7"})).await.json(200);
    assert_eq!(run["results"][0]["data"]["text/plain"], "42", "{run:#}");
    let typed =
        session.exec(json!({"language": "ts", "code": "const y: number = 1"})).await.json(200);
    assert!(["ok", "error"].contains(&text(&typed["status"])), "{typed:#}");
    assert!(server.metric("belljar_exec_seconds_count{language=\"javascript\"}").await >= 2.0);
}

#[tokio::test]
async fn a_language_that_is_not_there_is_said_so() {
    let server = Server::start().await;
    let session = server.session().await;
    let cobol = session.exec(json!({"language": "cobol", "code": "1"})).await;
    let message = cobol.error(422, "invalid");
    assert!(message.contains("python, bash, javascript, typescript or r"), "{message}");
    if std::path::Path::new("/usr/bin/Rscript").exists() {
        return;
    }
    let missing = session.exec(json!({"language": "r", "code": "1"})).await.json(200);
    assert_eq!(missing["status"], "error", "{missing:#}");
    assert!(text(&missing["reason"]).contains("R needs r-base"), "{missing:#}");
    assert_eq!(session.printed("print(1)").await, "1\n");
}
