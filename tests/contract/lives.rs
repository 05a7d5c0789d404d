//! Sessions outlive servers, and leave nothing when they end.

use serde_json::json;

use crate::backend::Backend;
use crate::files::is_on_disk;
use belljar_testkit::installation::command_line;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

pub(crate) async fn a_successor_goes_on(on: Backend) {
    let (site, server, session) = on.session(json!({"key": "k"})).await;
    session.python("x = 41").await;
    session.exec(json!({"language": "bash", "code": "cd /tmp; Y=5"})).await.json(200);
    let finished = session.exec(json!({"code": "print('done before')", "exec_id": "before"})).await;
    let running = session.hold("running").await;
    let queued = session.begin("queued", "queued", json!({"code": "print('x is', x)"})).await;
    let beside = json!({"command": "echo begun; while [ ! -e /session/go ]; do sleep 0.01; done; \
                                    echo beside; echo leaf > artifacts/left"});
    let beside = session.begin("beside", "running", beside).await;
    session.has_printed("beside", "begun").await;
    let installation = server.kill().await;
    for pending in [running, queued, beside] {
        pending.abandon();
    }

    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    assert_eq!(session.exec_info("before").await["result"], finished.json(200));
    session.reaches("running", "running").await;
    assert_eq!(session.exec_info("queued").await["state"], "queued");
    session.release().await;
    for (exec, said) in
        [("running", "holding\nreleased\n"), ("queued", "x is 41\n"), ("beside", "begun\nbeside\n")]
    {
        session.reaches(exec, "finished").await;
        let info = session.exec_info(exec).await;
        assert_eq!(info["result"]["status"], "ok", "{info:#}");
        assert_eq!(info["result"]["stdout"], said, "{info:#}");
    }
    let bash = session.exec(json!({"language": "bash", "code": "pwd; echo $Y"})).await.json(200);
    assert_eq!(bash["stdout"], "/tmp\n5\n");
    let found = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((text(&found["how"]), text(&found["id"])), ("found", session.id.as_str()));
    assert_eq!(server.metric("belljar_adoptions_total{how=\"adopted\"}").await, 1.0);
    let died = session.python("import os; os._exit(3)").await;
    assert_eq!(died["kernel_state"], "lost", "{died:#}");
    assert_eq!(session.printed("print('x' in globals())").await, "False\n");

    // A sandbox that ended while no server ran is reported.
    let installation = server.kill().await;
    site.end_behind_our_back(&session);
    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    let failed = session.becomes("failed").await;
    assert!(text(&failed["ended_because"]).contains("the sandbox is gone"), "{failed:#}");
    site.has_no_traces().await;
}

pub(crate) async fn a_session_from_the_pool_is_like_any_other(on: Backend) {
    let site = on.site(&[("BELLJAR_POOL", "1"), ("SESSION_STORAGE", "BIND")]);
    let server = site.serve().await;
    let is_full = async || server.metric("belljar_pool_ready").await == 1.0;
    eventually("the pool is full", is_full).await;
    let session = server.session_with(json!({"env": {"OWN": "yes"}})).await;
    assert_eq!(server.metric("belljar_creates_total{how=\"pool\"}").await, 1.0);
    let code = "import os; open('/session/kept', 'w').write('x'); print(os.environ['OWN'])";
    assert_eq!(session.printed(code).await, "yes\n");
    assert!(is_on_disk(&server.path("sessions").join(&session.id), "kept"));
    // This sandbox belongs to a session now, and outlives the server. Sandboxes that wait in the pool do not.
    eventually("the pool is full", is_full).await;
    let installation = server.kill().await;
    let server = installation.serve().await;
    eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
    let session = Session::of(&server.client(), &session.id);
    assert_eq!(session.printed("print(os.path.exists('/session/kept'))").await, "True\n");
    session.stop().await;
    server.terminate().await;
    site.has_no_traces().await;
}

pub(crate) async fn a_stop_leaves_nothing(on: Backend) {
    let (site, server, session) = on.session(json!({})).await;
    let daemon =
        "setsid nohup sleep 4321 >/dev/null 2>&1 & (trap '' TERM HUP; sleep 1234) & disown -a";
    session.exec(json!({"language": "bash", "code": daemon})).await.json(200);
    session.python("import subprocess; child = subprocess.Popen(['sleep', '2345'], start_new_session=True)").await;
    let background = json!({"command": "sleep 3456", "background": true, "exec_id": "behind"});
    session.exec(background).await.json(202);
    session.reaches("behind", "running").await;
    let held = session.hold("held").await;
    let begun = std::time::Instant::now();
    session.stop().await;
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    let held = held.result().await;
    assert_eq!(held["status"], "interrupted", "{held:#}");
    let ended = session.show().await;
    assert_eq!(ended["state"], "stopped", "{ended:#}");
    site.has_no_traces().await;
    let daemons = ["4321", "1234", "2345", "3456"].map(|seconds| format!("sleep {seconds} "));
    let processes = std::fs::read_dir("/proc").expect("it is there").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let alive: Vec<String> = pids.map(command_line).filter(|line| daemons.contains(line)).collect();
    assert!(alive.is_empty(), "processes outlived their session: {alive:?}");
    // A session that several clients stop at once leaves nothing either.
    let session = server.session().await;
    let stops = (0..5).map(|_| {
        let session = session.clone();
        tokio::spawn(async move { session.client.delete(&session.path("")).await.status })
    });
    for stop in stops.collect::<Vec<_>>() {
        assert_eq!(stop.await.expect("no panic"), 200);
    }
    site.has_no_traces().await;
}

pub(crate) async fn a_session_sleeps_branches_and_goes_back(on: Backend) {
    let (site, server, session) = on.session(json!({"checkpoints": true})).await;
    if on == Backend::Runsc {
        // gVisor cannot pass file descriptors to or from the host, so the request is refused.
        let refused = session.client.post(&session.path("/hibernate"), json!({})).await.json(501);
        assert_eq!(refused["error"]["code"], "not_with_this_runtime", "{refused:#}");
        let reply = session.python("x = 1").await;
        assert_eq!((&reply["status"], &reply["checkpoint"]), (&json!("ok"), &json!(false)));
        assert_eq!(session.printed("print(x)").await, "1\n");
        return;
    }
    let first = session.python("x = [1]; y = x; open('f', 'w').write('1')").await;
    assert_eq!(first["checkpoint"], true, "{first:#}");
    session.python("x.append(2); open('f', 'w').write('2')").await;
    let look = "print(y, y is x, open('f').read())";
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    site.has_no_traces().await;
    assert_eq!(session.printed(look).await, "[1, 2] True 2\n");
    let forked = session.client.post(&session.path("/fork"), json!({"count": 2})).await.json(201);
    for fork in forked["sessions"].as_array().expect("sessions") {
        let fork = Session::of(&server.client(), text(&fork["id"]));
        fork.python("x.append(3)").await;
        assert_eq!(fork.printed(look).await, "[1, 2, 3] True 2\n");
    }
    let ask = json!({"exec_id": first["exec_id"]});
    session.client.post(&session.path("/restore"), ask).await.json(200);
    assert_eq!(session.printed(look).await, "[1] True 1\n");
    server.terminate().await;
}

/// In a container the zygote is a process that code inside can kill. Native sandboxes have no visible zygote.
pub(crate) async fn a_dead_zygote_stops_nothing(on: Backend) {
    if on == Backend::Runsc {
        belljar_testkit::skip!("kernels in gVisor have no zygote");
    }
    let (_site, server, session) = on.session(json!({})).await;
    let kill = "import os, signal\nx = 41\n\
        def is_zygote(pid):\n    \
            words = open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\\0')\n    \
            return b'zygote' in words and int(pid) != os.getpid()\n\
        found = [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and is_zygote(pid)]\n\
        for pid in found: os.kill(pid, signal.SIGKILL)\nprint(len(found))";
    let zygotes = if on == Backend::Docker { "1\n" } else { "0\n" };
    assert_eq!(session.printed(kill).await, zygotes);
    let mut server = server;
    for round in 1..=2 {
        let session = Session::of(&server.client(), &session.id);
        let fork = session.client.post(&session.path("/fork"), json!({})).await.json(201);
        let fork = Session::of(&server.client(), text(&fork["sessions"][0]["id"]));
        assert_eq!(fork.printed("print(x)").await, "41\n", "in round {round}");
        fork.stop().await;
        session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
        assert_eq!(session.printed("print(x)").await, "41\n", "in round {round}");
        session.printed(kill).await;
        server = server.kill().await.serve().await;
    }
    // The next kernel is forked from another zygote.
    let session = Session::of(&server.client(), &session.id);
    assert_eq!(session.python("os._exit(3)").await["kernel_state"], "lost");
    assert_eq!(session.printed("x = 42; print(x)").await, "42\n");
    session.client.post(&session.path("/hibernate"), json!({})).await.json(200);
    assert_eq!(session.printed("print(x)").await, "42\n");
}
