//! Code in a session's Python kernel: its state, its output, and its end.

use std::collections::HashSet;

use serde_json::{Value, json};

use belljar_testkit::server::Server;
use belljar_testkit::values::text;

fn value(result: &Value) -> &str {
    text(&result["results"][0]["data"]["text/plain"])
}

#[tokio::test]
async fn python_remembers() {
    let server = Server::start().await;
    let session = server.session().await;
    let first = session.python("import math\nx = [1, 2]\nprint('one')").await;
    assert_eq!((&first["status"], &first["stdout"]), (&json!("ok"), &json!("one\n")));
    assert_eq!((&first["exit_code"], &first["kernel_state"]), (&json!(0), &json!("kept")));
    assert_eq!((&first["results"], &first["error"]), (&json!([]), &Value::Null));
    let second = session.python("x.append(math.floor(3.9)); x").await;
    assert_eq!((value(&second), &second["execution_count"]), ("[1, 2, 3]", &json!(2)));

    // Displays and the last value, in their order, in all their formats.
    let shown = session
        .python(
            "class Table:\n    def __repr__(self): return 'plain'\n    \
             def _repr_html_(self): return '<b>rich</b>'\n\
             print('before')\ndisplay(Table())\nimport sys; print('loud', file=sys.stderr)\n'last'",
        )
        .await;
    assert_eq!(shown["results"][0]["data"]["text/html"], "<b>rich</b>", "{shown:#}");
    assert_eq!(shown["results"][0]["data"]["text/plain"], "plain");
    assert_eq!(shown["results"][1]["data"]["text/plain"], "'last'");
    let kinds = (&shown["results"][0]["kind"], &shown["results"][1]["kind"]);
    assert_eq!(kinds, (&json!("display"), &json!("result")), "{shown:#}");
    assert_eq!((&shown["stdout"], &shown["stderr"]), (&json!("before\n"), &json!("loud\n")));

    let failed = session.python("def f():\n    return 1 / 0\nf()").await;
    assert_eq!((&failed["status"], &failed["exit_code"]), (&json!("error"), &json!(1)));
    assert_eq!(failed["error"]["name"], "ZeroDivisionError");
    assert_eq!(failed["error"]["value"], "division by zero");
    assert!(failed["error"]["traceback"].to_string().contains("in f"), "{failed:#}");
    let wrong = session.python("if").await;
    assert_eq!(
        (&wrong["status"], &wrong["error"]["name"]),
        (&json!("error"), &json!("SyntaxError"))
    );
    assert_eq!(value(&session.python("len(x)").await), "3", "errors lose nothing");
}

#[tokio::test]
async fn odd_code_and_odd_output_do_no_harm() {
    let server = Server::start().await;
    let session = server.session().await;
    let nul = session.python("x = 'a\0b'").await;
    assert_eq!(nul["status"], "error", "{nul:#}");
    assert_eq!(value(&session.python("'a\\0b'").await), "'a\\x00b'");
    assert_eq!(session.python("").await["status"], "ok");
    assert_eq!(session.printed("print('Grüße, 世界 🌍')").await, "Grüße, 世界 🌍\n");
    let binary =
        "import sys; sys.stdout.buffer.write(b'a\\xff\\x00\\xe2\\x82z'); sys.stdout.flush()";
    assert_eq!(session.printed(binary).await, "a\u{fffd}\0\u{fffd}z");
    // Very large code.
    let long = format!("x = '''{}'''\nlen(x)", "y".repeat(10 << 20));
    assert_eq!(value(&session.python(&long).await), (10 << 20).to_string());
    let lone = session.python("print('\\ud800')").await;
    assert_eq!(lone["status"], "ok", "{lone:#}");
    assert_eq!(value(&session.python("1 + 1").await), "2");
}

#[tokio::test]
async fn output_beyond_its_bound_is_dropped_and_counted() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import sys\nprint('o' * 3000, end='')\nprint('e' * 2000, end='', file=sys.stderr)";
    let result = session.exec(json!({"code": code, "max_output": "1K"})).await.json(200);
    assert_eq!(text(&result["stdout"]), "o".repeat(1024));
    assert_eq!(text(&result["stderr"]), "e".repeat(1024));
    assert_eq!(result["dropped"], json!({"stdout_bytes": 1976, "stderr_bytes": 976}));
    let command = json!({"command": "head -c 5000 /dev/zero", "max_output": 1});
    let result = session.exec(command).await.json(200);
    assert_eq!((text(&result["stdout"]), &result["dropped"]["stdout_bytes"]), ("\0", &json!(4999)));
    let nothing = session.exec(json!({"code": "print(1)", "max_output": 0})).await.json(200);
    assert_eq!((text(&nothing["stdout"]), &nothing["dropped"]["stdout_bytes"]), ("", &json!(2)));
    session.exec(json!({"code": "1", "max_output": "65M"})).await.error(422, "invalid");
    let dropped = server.metric("belljar_dropped_output_bytes_total").await;
    assert_eq!(dropped, f64::from(1976 + 976 + 4999 + 2));
}

#[tokio::test]
async fn a_cell_ends_in_time_and_the_kernel_lives_on() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = 'kept'").await;
    let ask = json!({"code": "print('begun', flush=True)\nwhile True: pass", "timeout": 0.3});
    let late = session.exec(ask).await.json(200);
    assert_eq!((&late["status"], &late["exit_code"]), (&json!("timeout"), &json!(124)), "{late:#}");
    assert_eq!((&late["stdout"], &late["kernel_state"]), (&json!("begun\n"), &json!("kept")));
    assert_eq!(value(&session.python("x").await), "'kept'");
    let late = session.exec(json!({"command": "sleep 1000", "timeout": 0.2})).await.json(200);
    assert_eq!((&late["status"], &late["exit_code"]), (&json!("timeout"), &json!(124)));
    for wrong in [json!(0), json!(-1), json!(1e12), json!("soon")] {
        let ask = json!({"code": "1", "timeout": wrong});
        session.exec(ask).await.error(422, "invalid");
    }
}

#[tokio::test]
async fn a_kernel_that_dies_is_said_to_have_died() {
    let server = Server::start().await;
    let session = server.session_with(json!({"limits": {"memory": "96M"}})).await;
    session.python("x = 1").await;
    let left = session.python("import os; print('bye', flush=True); os._exit(3)").await;
    assert_eq!((&left["status"], &left["kernel_state"]), (&json!("crashed"), &json!("lost")));
    assert_eq!(left["stdout"], "bye\n");
    assert!(left["reason"].is_string(), "{left:#}");
    let again = session.python("x").await;
    assert_eq!(again["error"]["name"], "NameError", "a new kernel knows nothing: {again:#}");
    let eaten = session.python("b = bytearray(500 << 20)").await;
    assert_eq!((&eaten["status"], &eaten["kernel_state"]), (&json!("oom"), &json!("lost")));
    assert_eq!(session.printed("print('back')").await, "back\n");
    assert_eq!(server.metric("belljar_oom_total").await, 1.0);
}

#[tokio::test]
async fn an_environment_is_for_one_execution() {
    let server = Server::start().await;
    let session = server.session_with(json!({"env": {"WHOSE": "session", "KEPT": "yes"}})).await;
    let look = "import os; print(os.environ.get('WHOSE'), os.environ.get('KEPT'))";
    let own = json!({"code": look, "env": {"WHOSE": "cell"}});
    assert_eq!(session.exec(own).await.json(200)["stdout"], "cell yes\n");
    assert_eq!(session.printed(look).await, "session yes\n");
    let own = json!({"command": "echo $WHOSE $KEPT", "env": {"WHOSE": "command"}});
    assert_eq!(session.exec(own).await.json(200)["stdout"], "command yes\n");
    let own = json!({"language": "bash", "code": "echo $WHOSE $KEPT", "env": {"WHOSE": "bash"}});
    assert_eq!(session.exec(own).await.json(200)["stdout"], "bash yes\n");
    let own = json!({"language": "bash", "code": "echo $WHOSE $KEPT"});
    assert_eq!(session.exec(own).await.json(200)["stdout"], "session yes\n");
    for wrong in [json!({"": "x"}), json!({"A=B": "x"}), json!({"A": "x\0"}), json!({"A": 1})] {
        let ask = json!({"code": "1", "env": wrong});
        session.exec(ask).await.error(422, "invalid");
    }
}

#[tokio::test]
async fn an_id_is_executed_once() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("count = 0").await;
    let ask = json!({"exec_id": "only.once-1", "code": "count += 1\nprint(count)"});
    // First all at once, then again after its end: all callers get the same answer.
    for round in 0..3 {
        let asking: Vec<_> = (0..20)
            .map(|_| {
                let (session, ask) = (session.clone(), ask.clone());
                tokio::spawn(async move { session.exec(ask).await.json(200) })
            })
            .collect();
        let mut results = HashSet::new();
        for asked in asking {
            results.insert(asked.await.expect("no panic").to_string());
        }
        assert_eq!(results.len(), 1, "round {round}: {results:#?}");
        let result: Value =
            serde_json::from_str(results.iter().next().expect("one")).expect("JSON");
        assert_eq!((&result["stdout"], &result["exec_id"]), (&json!("1\n"), &json!("only.once-1")));
    }
    assert_eq!(session.show().await["execs"], 2);
    let events = server.post_stream(&session.path("/exec"), ask).await.rest().await;
    assert_eq!(events[1].data["text"], "1\n", "{events:?}");
    assert_eq!(session.printed("print(count)").await, "1\n");
    let execs = server.get(&session.path("/execs")).await.json(200);
    let numbers: Vec<u64> = execs["execs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|exec| exec["number"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, [3, 2, 1]);
    // The same id in another session is another execution.
    let other = server.session().await;
    let ask = json!({"exec_id": "only.once-1", "code": "print('here')"});
    assert_eq!(other.exec(ask).await.json(200)["stdout"], "here\n");
    for wrong in ["", "a b", "a/b", "é", &"x".repeat(65)] {
        session.exec(json!({"exec_id": wrong, "code": "1"})).await.error(422, "invalid");
    }
}

#[tokio::test]
async fn executions_are_listed_and_logged() {
    let server = Server::start().await;
    let session = server.session().await;
    for number in 1..=5 {
        let ask = json!({"exec_id": format!("e{number}"), "code": format!("print({number})")});
        session.exec(ask).await.json(200);
    }
    let ids = |page: &Value| -> Vec<String> {
        let execs = page["execs"].as_array().expect("a list");
        execs.iter().map(|exec| text(&exec["exec_id"]).to_owned()).collect()
    };
    let page = server.get(&session.path("/execs?limit=2")).await.json(200);
    assert_eq!(ids(&page), ["e5", "e4"]);
    let page = server.get(&session.path("/execs?limit=2&before=4")).await.json(200);
    assert_eq!(ids(&page), ["e3", "e2"]);
    let exec = session.exec_info("e3").await;
    assert_eq!((&exec["number"], &exec["language"]), (&json!(3), &json!("python")));
    assert_eq!((&exec["state"], &exec["result"]["stdout"]), (&json!("finished"), &json!("3\n")));
    let log = server.get(&session.path("/log?limit=2")).await.json(200);
    let entries = log["entries"].as_array().expect("a list");
    assert_eq!(entries.len(), 2);
    assert_eq!((&entries[0]["code"], &entries[0]["stdout"]), (&json!("print(4)"), &json!("4\n")));
    let log = server.get(&session.path("/log?after=1&limit=2")).await.json(200);
    assert_eq!(log["entries"][0]["number"], 2);
    assert_eq!(log["entries"][1]["number"], 3);
}

#[tokio::test]
async fn variables_can_be_looked_at() {
    let server = Server::start().await;
    let session = server.session().await;
    assert_eq!(server.get(&session.path("/state")).await.json(200)["variables"], json!([]));
    session.python("import math\nnumbers = [1, 2, 3]\nname = 'bell'").await;
    let state = server.get(&session.path("/state")).await.json(200);
    let variables = state["variables"].as_array().expect("a list");
    let named = |name: &str| variables.iter().find(|variable| variable["name"] == name);
    assert_eq!(named("numbers").expect("it is there")["type"], "list", "{state:#}");
    assert!(text(&named("name").expect("it is there")["preview"]).contains("bell"), "{state:#}");
    assert!(state.to_string().contains("math"), "{state:#}");
    let held = session.hold("held").await;
    let busy = server.get(&session.path("/state")).await;
    busy.error(409, "busy");
    assert_eq!(busy.retry_after(), 1);
    session.release().await;
    held.result().await;
    server.get(&session.path("/state?language=bash")).await.json(200);
    server.get(&session.path("/state?language=perl")).await.error(422, "invalid");
}

#[tokio::test]
async fn displays_beyond_their_bound_are_dropped_and_counted() {
    let server = Server::start().await;
    let session = server.session().await;
    let result = session.python("for n in range(17_000): display(n)").await;
    let kept = result["results"].as_array().expect("a list").len();
    assert!(kept < 17_000, "there is a bound");
    assert_eq!(result["dropped"]["results"], 17_000 - kept);
    assert_eq!(session.printed("print('alive')").await, "alive\n");
}

#[tokio::test]
async fn too_much_of_anything_ends_nothing_but_itself() {
    let server = Server::start().await;
    let session = server.session().await;
    for (what, expected, code) in [
        (
            "turns",
            "ok",
            "import sys\nfor n in range(20_000):\n    print('o', flush=True)\n    print('e', file=sys.stderr, flush=True)",
        ),
        ("a value", "ok", "'x' * (70 << 20)"),
        ("values", "ok", "for n in range(30): display('x' * (4 << 20))"),
        ("an error", "error", "raise ValueError('x' * (70 << 20))"),
        ("depth", "error", "def f(n): return f(n + 1)\nf(0)"),
        ("a name", "ok", "exec('x' * 1000000 + ' = 1')"),
    ] {
        let result = session.exec(json!({"code": code, "timeout": 30})).await.json(200);
        let status = text(&result["status"]);
        assert_eq!(status, expected, "{what}: {:?}", result["reason"]);
        assert_eq!(result["kernel_state"], "kept", "{what}");
        assert_eq!(session.printed("print('alive')").await, "alive\n", "{what}");
    }
    assert_eq!(session.show().await["state"], "ready");
    server.get(&session.path("/state")).await.json(200);
}

#[tokio::test]
async fn an_exec_id_stands_for_one_piece_of_code() {
    let server = Server::start().await;
    let session = server.session().await;
    let ask = json!({"code": "print(1)", "exec_id": "once"});
    assert_eq!(session.exec(ask.clone()).await.json(200)["stdout"], "1\n");
    assert_eq!(session.exec(ask).await.json(200)["stdout"], "1\n");
    let other = json!({"code": "print(2)", "exec_id": "once"});
    session.exec(other).await.error(409, "exec_differs");
    let held = session.hold("held").await;
    session.exec(json!({"code": "print(3)", "exec_id": "held"})).await.error(409, "exec_differs");
    session.release().await;
    assert_eq!(held.result().await["status"], "ok");
}

#[tokio::test]
async fn pages_are_bounded_by_bytes_and_nothing_is_left_out() {
    let server = Server::start().await;
    let session = server.session().await;
    for number in 0..4 {
        let code = format!("print({number}, 'x' * (5 << 20))");
        session.exec(json!({"code": code, "max_output": "8M"})).await.json(200);
    }
    let mut seen = Vec::new();
    let (mut before, mut pages) = (String::new(), 0);
    loop {
        let page = server.client().get(&session.path(&format!("/execs?{before}"))).await.json(200);
        let execs = page["execs"].as_array().expect("a page");
        seen.extend(execs.iter().map(|exec| exec["number"].as_u64().expect("a number")));
        pages += 1;
        if page["more"] == false {
            break;
        }
        before = format!("before={}", seen.last().expect("a page is never empty"));
    }
    assert_eq!((seen, pages), (vec![4, 3, 2, 1], 2));

    let first = server.client().get(&session.path("/log?after=0")).await.json(200);
    assert_eq!(
        (first["entries"].as_array().map(Vec::len), &first["more"]),
        (Some(2), &json!(true))
    );
    let rest = server.client().get(&session.path("/log?after=2")).await.json(200);
    assert_eq!((rest["entries"].as_array().map(Vec::len), &rest["more"]), (Some(2), &json!(false)));
}
