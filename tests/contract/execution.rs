//! Code and commands: the state they keep, their output, and their time limits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::backend::Backend;
use belljar_testkit::client::printed;
use belljar_testkit::values::text;

fn value(result: &Value) -> &str {
    text(&result["results"][0]["data"]["text/plain"])
}

pub(crate) async fn python_remembers(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    let first = session.python("import math, sys\nx = [1, 2]\nprint('one')").await;
    assert_eq!((&first["status"], &first["stdout"]), (&json!("ok"), &json!("one\n")));
    assert_eq!((&first["exit_code"], &first["kernel_state"]), (&json!(0), &json!("kept")));
    let second = session.python("print('loud', file=sys.stderr); x.append(3); x").await;
    assert_eq!((value(&second), &second["execution_count"]), ("[1, 2, 3]", &json!(2)));
    assert_eq!(second["stderr"], "loud\n");
    let failed = session.python("def f():\n    return 1 / 0\nf()").await;
    assert_eq!((&failed["status"], &failed["exit_code"]), (&json!("error"), &json!(1)));
    assert_eq!(failed["error"]["name"], "ZeroDivisionError");
    assert!(failed["error"]["traceback"].to_string().contains("in f"), "{failed:#}");
    assert_eq!(session.python("if").await["error"]["name"], "SyntaxError");
    assert_eq!(value(&session.python("len(x)").await), "3", "errors lose nothing");
    let state = server.get(&session.path("/state")).await.json(200);
    let variables = state["variables"].as_array().expect("a list");
    assert!(variables.iter().any(|variable| variable["name"] == "x"), "{state:#}");
}

pub(crate) async fn a_shell_remembers(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let bash =
        async |code: &str| session.exec(json!({"language": "bash", "code": code})).await.json(200);
    bash("cd /tmp; colour=blue; export shade=dark; f() { echo $1-$colour; }").await;
    assert_eq!(
        bash("pwd; f very; env | grep shade").await["stdout"],
        "/tmp\nvery-blue\nshade=dark\n"
    );
    let failed = bash("echo before; false").await;
    assert_eq!((&failed["exit_code"], &failed["stdout"]), (&json!(1), &json!("before\n")));
    let late = json!({"language": "bash", "code": "sleep 1000", "timeout": 0.5});
    let late = session.exec(late).await.json(200);
    assert_eq!((&late["status"], &late["kernel_state"]), (&json!("timeout"), &json!("kept")));
    assert_eq!(bash("echo $colour").await["stdout"], "blue\n");
    // The shell works while a Python kernel is busy.
    let held = session.hold("held").await;
    assert_eq!(bash("echo $colour").await["stdout"], "blue\n");
    session.release().await;
    assert_eq!(held.result().await["status"], "ok");
}

pub(crate) async fn commands_have_environment_place_and_input(on: Backend) {
    let ask = json!({"env": {"WHOSE": "session", "KEPT": "yes"}});
    let (_site, server, session) = on.session(ask).await;
    let own = json!({"command": "echo $WHOSE $KEPT $HOME; pwd", "env": {"WHOSE": "command"}});
    let said = &session.exec(own).await.json(200)["stdout"];
    assert_eq!(said, "command yes /session\n/session\n");
    let look = "import os; print(os.environ.get('WHOSE'), os.environ.get('KEPT'))";
    assert_eq!(session.printed(look).await, "session yes\n");
    let own = json!({"code": look, "env": {"WHOSE": "cell"}});
    assert_eq!(session.exec(own).await.json(200)["stdout"], "cell yes\n");

    session.shell("mkdir -p sub/dir").await;
    let installation = json!({"command": ["pwd"], "cwd": "sub/dir"});
    assert_eq!(session.exec(installation).await.json(200)["stdout"], "/session/sub/dir\n");
    let list = json!({"command": ["printf", "%s|", "a b", "$HOME", "*"]});
    assert_eq!(session.exec(list).await.json(200)["stdout"], "a b|$HOME|*|");
    let nothing = session.exec(json!({"command": ["/no/such/program"]})).await.json(200);
    assert_eq!(nothing["exit_code"], 126, "{nothing:#}");
    assert!(text(&nothing["reason"]).contains("`/no/such/program`"), "{nothing:#}");
    let result = session.shell("echo out; echo err >&2; exit 3").await;
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&result["exit_code"], &result["status"]), (&json!(3), &json!("error")));

    let counting =
        session.begin("wc", "running", json!({"command": "wc -lc", "stdin": true})).await;
    let feed = async |exec: &str, body| {
        server.post(&session.path(&format!("/execs/{exec}/stdin")), body).await.text(204);
    };
    feed("wc", json!({"data": "one\n"})).await;
    feed("wc", json!({"data": "two\n", "close": true})).await;
    assert_eq!(
        text(&counting.result().await["stdout"]).split_whitespace().collect::<Vec<_>>(),
        ["2", "8"]
    );
    let asking = json!({"code": "print('Hello', input('Name? '))", "stdin": true});
    let asking = session.begin("name", "running", asking).await;
    feed("name", json!({"data": "Ada\n"})).await;
    assert_eq!(asking.result().await["stdout"], "Hello Ada\n");
}

pub(crate) async fn time_is_limited_and_code_is_interrupted(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    session.python("x = 'kept'").await;
    let ask = json!({"code": "print('begun', flush=True)\nwhile True: pass", "timeout": 0.5});
    let late = session.exec(ask).await.json(200);
    assert_eq!((&late["status"], &late["exit_code"]), (&json!("timeout"), &json!(124)), "{late:#}");
    assert_eq!((&late["stdout"], &late["kernel_state"]), (&json!("begun\n"), &json!("kept")));
    let late = session.exec(json!({"command": "sleep 1000 & sleep 1000", "timeout": 0.3})).await;
    let late = late.json(200);
    assert_eq!((&late["status"], &late["exit_code"]), (&json!("timeout"), &json!(124)));

    let interrupt = async |exec: &str| {
        server.post(&session.path(&format!("/execs/{exec}/interrupt")), json!({})).await.json(200);
    };
    let held = session.hold("held").await;
    interrupt("held").await;
    let held = held.result().await;
    assert_eq!((&held["status"], &held["kernel_state"]), (&json!("interrupted"), &json!("kept")));
    let sleeping = session.begin("s", "running", json!({"command": "echo on; sleep 1000"})).await;
    session.has_printed("s", "on").await;
    interrupt("s").await;
    assert_eq!(sleeping.result().await["status"], "interrupted");
    assert_eq!(value(&session.python("x").await), "'kept'");
    // Code that ignores the interrupt loses its kernel, and the result reports that.
    let deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let deaf = session.exec(json!({"code": deaf, "timeout": 0.5})).await.json(200);
    assert_eq!((&deaf["status"], &deaf["kernel_state"]), (&json!("timeout"), &json!("lost")));
    assert_eq!(session.printed("print('x' in globals())").await, "False\n");
    let look = "import glob\n\
                lines = [open(path).read() for path in glob.glob('/proc/[0-9]*/cmdline')]\n\
                print([line for line in lines if line.startswith('sleep')])";
    assert_eq!(session.printed(look).await, "[]\n", "what was ended has left nothing behind");
}

pub(crate) async fn output_is_streamed_and_bounded(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    let code = "import os, time\nprint('first', flush=True)\n\
                while not os.path.exists('/session/go'): time.sleep(0.01)\n\
                print('second')\n6 * 7";
    let ask = json!({"code": code, "exec_id": "live"});
    let mut events = server.post_stream(&session.path("/exec"), ask).await;
    let first = events.until("stdout").await;
    assert_eq!(first.data["text"], "first\n", "while it runs");
    session.release().await;
    let rest = events.rest().await;
    assert_eq!(printed(&rest, "stdout"), "second\n");
    let done = rest.last().expect("an end");
    assert_eq!((done.name.as_str(), &done.data["status"]), ("done", &json!("ok")), "{done:?}");
    // A later reader gets the same output, from any position.
    let path = session.path("/execs/live/events?offset=6");
    assert_eq!(printed(&server.follow(&path).await.rest().await, "stdout"), "second\n");

    let code = "import sys\nprint('o' * 3000, end='')\nprint('e' * 2000, end='', file=sys.stderr)";
    let result = session.exec(json!({"code": code, "max_output": "1K"})).await.json(200);
    assert_eq!((text(&result["stdout"]).len(), text(&result["stderr"]).len()), (1024, 1024));
    assert_eq!(result["dropped"], json!({"stdout_bytes": 1976, "stderr_bytes": 976}));
    let much = json!({"command": "head -c 20000000 /dev/zero | tr '\\0' x", "max_output": "1M"});
    let much = session.exec(much).await.json(200);
    assert_eq!(text(&much["stdout"]).len(), 1 << 20);
    assert_eq!(much["dropped"]["stdout_bytes"], 20_000_000 - (1 << 20));
}

/// The first kernel may have to import the preloaded modules. Later kernels start fast.
pub(crate) async fn a_second_kernel_is_forked(on: Backend) {
    let site =
        on.site(&[("BELLJAR_PRELOAD", "json decimal unittest.mock asyncio xml.dom.minidom")]);
    let server = site.serve().await;
    if !on.is_container() {
        let is_warm = async || server.get("/healthz").await.json(200)["zygote"] == "warm";
        belljar_testkit::wait::eventually("the zygote is warm", is_warm).await;
    }
    let session = server.session().await;
    let look = "import os, sys\nprint('xml.dom.minidom' in sys.modules, os.getpid())";
    let mut pids = Vec::new();
    let mut fastest = Duration::MAX;
    for _ in 0..4 {
        let said = session.printed(look).await;
        assert!(said.starts_with("True "), "imported before anybody asked: {said}");
        assert!(!pids.contains(&said), "a new one each time");
        pids.push(said);
        session.python("os._exit(1)").await;
        let begun = Instant::now();
        let next = session.python("'new'").await;
        assert_eq!(next["status"], "ok", "{next:#}");
        fastest = fastest.min(begun.elapsed());
    }
    // Executing the interpreter and importing these modules would take several times as long.
    assert!(
        fastest < Duration::from_millis(if on == Backend::Runsc { 600 } else { 250 }),
        "{fastest:?}"
    );
}
