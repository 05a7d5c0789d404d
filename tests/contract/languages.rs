//! JavaScript and TypeScript where Node.js is installed; a clear error where it is not.

use serde_json::json;

use crate::backend::Backend;
use belljar_testkit::values::text;

pub(crate) async fn javascript_and_typescript_remember_or_say_what_is_missing(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let run = async |language: &str, code: &str| {
        session.exec(json!({"language": language, "code": code})).await.json(200)
    };
    if session.shell("command -v node").await["exit_code"] != 0 {
        // The first request finds out that Node.js is missing. The next request is refused at once.
        let missing = run("javascript", "1").await;
        let again = session.exec(json!({"language": "typescript", "code": "1"})).await;
        for reason in [text(&missing["reason"]), &again.error(409, "no_interpreter")] {
            assert!(reason.contains("TypeScript need Node.js"), "{reason}");
        }
        assert_eq!(session.printed("print('python')").await, "python\n");
        return;
    }
    run("javascript", "const x = [1, 2]").await;
    let result = run("javascript", "console.log('said'); const x = [3, 4]; await x[1]").await;
    assert_eq!((&result["status"], text(&result["stdout"])), (&json!("ok"), "said\n"));
    assert_eq!(result["results"][0]["data"]["text/plain"], "4", "{result:#}");
    let failed = run("javascript", "null.x").await;
    assert_eq!(
        (&failed["status"], &failed["error"]["name"]),
        (&json!("error"), &json!("TypeError"))
    );
    let typed = run("typescript", "const y: number = x[0]; y").await;
    if typed["status"] == "ok" {
        assert_eq!(typed["results"][0]["data"]["text/plain"], "3", "{typed:#}");
    } else {
        // An older Node.js cannot read types, and the error says so.
        assert!(typed.to_string().contains("TypeScript"), "{typed:#}");
    }
    assert_eq!(session.printed("print('python')").await, "python\n");
}
