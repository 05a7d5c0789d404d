//! Kernels and whole sandboxes that end unexpectedly, and how that is reported.

use serde_json::{Value, json};

use crate::backend::{Backend, container_of, docker};
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

fn status_and_kernel(result: &Value) -> (&str, &str) {
    (text(&result["status"]), text(&result["kernel_state"]))
}

pub(crate) async fn a_kernel_that_dies_is_said_to_have_died(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    session.python("x = 1").await;
    let left = session.python("import os; print('bye', flush=True); os._exit(3)").await;
    assert_eq!(status_and_kernel(&left), ("crashed", "lost"), "{left:#}");
    assert_eq!(left["stdout"], "bye\n");
    assert!(left["reason"].is_string(), "{left:#}");
    assert_eq!(session.python("x").await["error"]["name"], "NameError");
    let fault = session.python("import ctypes; ctypes.string_at(1)").await;
    assert_eq!(status_and_kernel(&fault), ("crashed", "lost"), "{fault:#}");
    // A kernel that dies while it is idle: the next request reports it.
    session.python("y = 1").await;
    let pid = session.printed("import os; print(os.getpid())").await;
    session.shell(&format!("kill -9 {pid}")).await;
    let next = session.python("print('fresh')").await;
    let reply = next["kernel_state"] == "lost" || next["status"] == "crashed";
    assert!(reply, "variables are gone without a word: {next:#}");
    assert_eq!(session.printed("print('y' in globals())").await, "False\n");
    let shell = json!({"language": "bash", "code": "exit 7"});
    let shell = session.exec(shell).await.json(200);
    assert_eq!((&shell["exit_code"], &shell["kernel_state"]), (&json!(7), &json!("lost")));
    assert_eq!(session.show().await["state"], "ready");
}

/// Sandboxes that share the host's Linux kernel lose one process. A sandbox with its own Linux
/// kernel (gVisor) is killed as a whole, with everything that ran in it.
pub(crate) async fn memory_is_limited(on: Backend) {
    let (site, server, session) = on.session(json!({"limits": {"memory": "128M"}})).await;
    session.python("x = 1").await;
    let eaten = session.python("print('hungry', flush=True)\nb = bytearray(500 << 20)").await;
    assert_eq!(status_and_kernel(&eaten), ("oom", "lost"), "{eaten:#}");
    assert_eq!(eaten["stdout"], "hungry\n");
    if on == Backend::Runsc {
        let failed = session.becomes("failed").await;
        assert_eq!(failed["ended_because"], "it ran out of memory");
        session.exec(json!({"code": "1"})).await.error(410, "session_ended");
    } else {
        assert_eq!(session.printed("print('x' in globals())").await, "False\n");
        let command = "python3 -c 'bytearray(500 << 20)'";
        assert_eq!(session.shell(command).await["status"], "oom");
        assert_eq!(session.show().await["state"], "ready");
    }
    let run = json!({"code": "bytearray(500 << 20)", "limits": {"memory": "128M"}});
    assert_eq!(server.post("/v1/run", run).await.json(200)["status"], "oom");
    session.client.delete(&session.path("")).await;
    site.has_no_traces().await;
}

pub(crate) async fn a_fork_bomb_is_contained(on: Backend) {
    // Threads of gVisor itself count towards the limit.
    let (_site, server, session) = on.session(json!({"limits": {"pids": 128}})).await;
    let bystander = server.session().await;
    let bomb = "import os\n\
                started = 0\n\
                try:\n\
                \x20   while started < 1000:\n\
                \x20       if os.fork() == 0:\n\
                \x20           import time; time.sleep(1000)\n\
                \x20       started += 1\n\
                except OSError as error: print('stopped', error.errno, flush=True)\n\
                assert started < 128";
    let ask = json!({"command": ["python3", "-c", bomb], "timeout": 20});
    let result = session.exec(ask).await.json(200);
    // In gVisor, the limit may stop gVisor itself.
    if on != Backend::Runsc || result["status"] == "ok" {
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("ok"), &json!("stopped 11\n")),
            "{result:#}"
        );
        assert_eq!(session.printed("print('goes on')").await, "goes on\n", "all of it was ended");
    }
    assert_eq!(bystander.printed("print('unharmed')").await, "unharmed\n");
}

pub(crate) async fn an_end_behind_our_back_is_noticed(on: Backend) {
    let (site, server, session) = on.session(json!({"key": "k"})).await;
    let held = session.hold("held").await;
    let queued = session.begin("queued", "queued", json!({"code": "1"})).await;
    let command = session.begin("command", "running", json!({"command": "sleep 1000"})).await;
    site.end_behind_our_back(&session);
    for pending in [held, queued, command] {
        let result = pending.result().await;
        assert_eq!(result["status"], "crashed", "{result:#}");
        assert_eq!(result["reason"], "the sandbox ended before the code did");
    }
    let failed = session.becomes("failed").await;
    assert_eq!(failed["ended_because"], "its sandbox ended");
    let refused = session.exec(json!({"code": "1"})).await.error(410, "session_ended");
    assert!(refused.ends_with("has ended: its sandbox ended"), "{refused}");
    assert_eq!(session.exec_info("held").await["result"]["stdout"], "holding\n", "it is kept");
    site.has_no_traces().await;

    let next = server.post("/v1/sessions", json!({"key": "k"})).await.json(201);
    assert_eq!(next["replaced"], json!({"id": session.id, "because": "its sandbox ended"}));
    // The end of an idle sandbox is detected too, even if it was stopped gently.
    let next = Session::of(&server, text(&next["id"]));
    if on.is_container() {
        docker(&["stop", "--time", "0", &container_of(&next)]);
    } else {
        site.end_behind_our_back(&next);
    }
    next.becomes("failed").await;
    site.has_no_traces().await;
}
