//! Artifacts come out of the sandbox, and links among them lead nowhere.

use std::fs;

use belljar_engine::artifacts::Digest;
use serde_json::{Value, json};

use crate::backend::Backend;
use belljar_testkit::values::{names, text};

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value:#}"))
}

/// The link to an artifact, as a path.
fn link(artifact: &Value) -> &str {
    let url = text(&artifact["url"]);
    &url[url.find("/artifacts/").expect("a link")..]
}

fn below(path: &Value) -> &str {
    text(path).trim_start_matches("/session/artifacts/")
}

/// Paths of the artifacts that were taken, and of those that were refused.
fn reply(result: &Value) -> (Vec<&str>, Vec<&str>) {
    let taken = result["artifacts"].as_array().into_iter().flatten();
    let refused = result["artifacts_refused"].as_array().into_iter().flatten();
    (
        taken.map(|one| below(&one["path"])).collect(),
        refused.map(|one| below(&one["path"])).collect(),
    )
}

pub(crate) async fn many_small_files_and_a_large_one_come_out(on: Backend) {
    let (_site, server, session) = on.session(json!({"storage": "BIND"})).await;
    let code = "import os\nos.makedirs('/session/artifacts/many')\n\
                for n in range(300): open(f'/session/artifacts/many/{n:03}.txt', 'w').write(str(n))";
    let result = session.python(code).await;
    let many = list(&result["artifacts"]);
    assert_eq!(
        (&result["status"], many.len()),
        (&json!("ok"), 300),
        "{}",
        result["artifacts_refused"]
    );
    for n in [0, 150, 299] {
        let path = format!("/session/artifacts/many/{n:03}.txt");
        assert_eq!(
            (text(&many[n]["path"]), &many[n]["size"]),
            (path.as_str(), &json!(n.to_string().len()))
        );
        assert_eq!(server.get(link(&many[n])).await.text(200), n.to_string());
        let host_path = text(&result["artifact_map"][&path]);
        assert_eq!(fs::read_to_string(host_path).expect("a file of the host"), n.to_string());
    }
    assert_eq!(session.shell("find artifacts -type f").await["stdout"], "", "taken, not copied");

    let large = "with open('/session/artifacts/large.bin', 'wb') as file:\n\
                 \x20   for n in range(50): file.write(bytes([n]) * (1 << 20))";
    let result = session.exec(json!({"code": large, "timeout": 60})).await.json(200);
    let content: Vec<u8> = (0..50).flat_map(|n| std::iter::repeat_n(n, 1 << 20)).collect();
    let artifact = &list(&result["artifacts"])[0];
    assert_eq!(
        (&artifact["size"], text(&artifact["sha256"])),
        (&json!(50 << 20), &*Digest::of(&content).to_string())
    );
    let fetched = server.get(link(artifact)).await;
    assert_eq!(fetched.status, 200);
    assert!(fetched.body == content);
}

pub(crate) async fn hostile_files_lead_nowhere(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    fs::write(server.path("secret"), "host secret").expect("a file");
    let secret = server.path("secret").display().to_string();
    let code = format!(
        "import os, socket\nos.chdir('/session/artifacts')\n\
         os.symlink('/etc/passwd', 'link')\nos.symlink('{secret}', 'out')\nos.symlink('/etc', 'etc')\n\
         os.mkfifo('pipe')\nsocket.socket(socket.AF_UNIX).bind('socket')\n\
         open('plain', 'w').write('plain')\nopen('a\\nb\\x1b[31m', 'w').write('odd')\n\
         os.makedirs('..\\\\..\\\\deep')\nopen('..\\\\..\\\\deep/x', 'w').write('x')\n\
         open(b'not-\\xff-text', 'w').write('bytes')\n\
         with open('hole', 'w') as f: f.truncate(1 << 40)\n\
         try: os.link('/etc/passwd', 'foreign')\nexcept OSError: pass"
    );
    let result = session.python(&code).await;
    assert_eq!(result["status"], "ok", "{result:#}");
    let (taken, refused) = reply(&result);
    assert_eq!(taken.len(), 4, "{result:#}");
    assert!(taken.contains(&"plain"), "{taken:?}");
    for name in ["link", "out", "etc", "pipe", "socket", "hole"] {
        assert!(refused.contains(&name), "{name}: {refused:?}");
    }
    for artifact in list(&result["artifacts"]) {
        let content = server.get(link(artifact)).await.text(200);
        assert!(["plain", "odd", "x", "bytes"].contains(&content.as_str()), "{content}");
        assert!(!text(&artifact["name"]).contains(['\n', '\x1b']), "{artifact:#}");
    }
    // Code may replace the directory itself by anything.
    for replace in ["rm -rf artifacts; ln -s /etc artifacts", "rm artifacts; mkfifo artifacts"] {
        let result = session.shell(replace).await;
        assert_eq!((&result["status"], reply(&result).0), (&json!("ok"), vec![]), "{replace}");
    }
    let back = session.shell("rm artifacts; mkdir artifacts; echo back > artifacts/file").await;
    assert_eq!(reply(&back).0, ["file"]);
}

pub(crate) async fn a_run_leaves_its_artifacts(on: Backend) {
    let site = on.site(&[]);
    let server = site.serve().await;
    let code = "import pathlib\n\
                pathlib.Path('/work/artifacts/sub').mkdir()\n\
                pathlib.Path('/work/artifacts/table.csv').write_text('a,b\\n')\n\
                pathlib.Path('/work/artifacts/sub/data.bin').write_bytes(bytes(range(256)))\n\
                print('made')\n6 * 7";
    let result = server.post("/v1/run", json!({"code": code})).await.json(200);
    assert_eq!(
        (&result["status"], &result["stdout"]),
        (&json!("ok"), &json!("made\n")),
        "{result:#}"
    );
    assert_eq!(result["results"][0]["data"]["text/plain"], "42");
    let outputs = server.path("outputs").join(text(&result["exec_id"]));
    assert_eq!(names(&outputs), ["sub", "table.csv"]);
    let host = outputs.join("table.csv").display().to_string();
    assert_eq!(result["artifact_map"]["/work/artifacts/table.csv"], host);
    assert_eq!(fs::read(outputs.join("sub/data.bin")).expect("a file").len(), 256);
    let bash = json!({"language": "bash", "code": "echo $WHO; pwd; exit 4", "env": {"WHO": "me"}});
    let bash = server.post("/v1/run", bash).await.json(200);
    assert_eq!((&bash["stdout"], &bash["exit_code"]), (&json!("me\n/session\n"), &json!(4)));
    site.has_no_traces().await;
}
