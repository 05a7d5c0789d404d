//! Hostile code: its artifacts escape nowhere, block nothing and fill nothing.

use serde_json::json;

use super::ArtifactSession as _;
use super::{blobs, link, list, only, reason, refused, reply};
use belljar_testkit::server::Server;
use belljar_testkit::values::text;

#[tokio::test]
async fn only_plain_files_are_taken() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    std::fs::write(server.path("secret"), "host secret").expect("a file");
    let secret = server.path("secret").display().to_string();
    let code = format!(
        "import os, socket\nos.chdir('/session/artifacts')\n\
         os.symlink('/etc/passwd', 'link')\nos.symlink('{secret}', 'out')\nos.symlink('/etc', 'etc')\n\
         os.symlink('link', 'chain')\nos.symlink('.', 'self')\n\
         os.mkfifo('pipe')\nsocket.socket(socket.AF_UNIX).bind('socket')\n\
         with open('/session/own', 'w') as f: f.write('own')\nos.link('/session/own', 'hard')\n\
         with open('plain', 'w') as f: f.write('plain')\n\
         with open('hole', 'w') as f: f.truncate(1 << 40)\n\
         for mknod in [0o020666, 0o060666]:\n\
         \x20   try: os.mknod('device', mknod, os.makedev(1, 3))\n\
         \x20   except OSError: pass\n\
         try: os.link('/etc/passwd', 'foreign')\nexcept OSError: pass"
    );
    let result = session.python(&code).await;
    assert_eq!(result["status"], "ok", "{result:#}");
    assert_eq!(reply(&result), ["hard", "plain"]);
    for (name, why) in [
        ("link", "a symbolic link"),
        ("out", "a symbolic link"),
        ("etc", "a symbolic link"),
        ("chain", "a symbolic link"),
        ("self", "a symbolic link"),
        ("pipe", "a named pipe"),
        ("socket", "a socket"),
    ] {
        assert_eq!(reason(&result, name), why);
    }
    assert!(reason(&result, "hole").contains("1099511627776 bytes"), "{result:#}");
    assert_eq!(refused(&result).len(), 8, "{result:#}");
    assert_eq!(session.shell("cat own").await["stdout"], "own", "its other name is not touched");
    // A refusal is reported once, and does not affect later executions.
    let next = session.leaves("next", "x").await;
    assert_eq!((reply(&next), refused(&next)), (vec!["next"], vec![]));
    assert_eq!(blobs(&server.installation).len(), 3);
}

#[tokio::test]
async fn the_directory_may_become_anything() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    for replace in [
        "rm -rf artifacts",
        "echo file > artifacts",
        "rm artifacts; ln -s /etc artifacts",
        "rm artifacts; mkdir real; echo x > real/file; ln -s real artifacts",
        "rm artifacts; mkfifo artifacts",
        "rm artifacts; ln -s artifacts artifacts",
    ] {
        let result = session.shell(replace).await;
        assert_eq!((&result["status"], reply(&result)), (&json!("ok"), vec![]), "{replace}");
    }
    let back = session.shell("rm artifacts; mkdir artifacts; echo back > artifacts/file").await;
    assert_eq!(reply(&back), ["file"]);
    // The directory loses all permissions, and gets them back.
    let closed = session.shell("echo x > artifacts/in; chmod 000 artifacts").await;
    assert_eq!(reply(&closed), [""; 0]);
    assert!(!refused(&closed).is_empty(), "{closed:#}");
    assert_eq!(reply(&session.shell("chmod 755 artifacts").await), ["in"]);
    let closed = session.shell("cd artifacts; echo y > unreadable; chmod 000 unreadable").await;
    assert!(!reason(&closed, "unreadable").is_empty());
    assert_eq!(reply(&session.shell("chmod 644 artifacts/unreadable").await), ["unreadable"]);
}

#[tokio::test]
async fn trees_are_followed_so_far_and_no_further() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import os\nos.chdir('/session/artifacts')\n\
                for depth in range(40):\n\
                \x20   open('file', 'w').close()\n\
                \x20   os.mkdir('d' * 200)\n\
                \x20   os.chdir('d' * 200)";
    let result = session.python(code).await;
    assert_eq!(result["status"], "ok", "{result:#}");
    assert!(list(&result["artifacts"]).len() > 15, "{result:#}");
    let depth = text(&list(&result["artifacts"])[0]["path"]).matches("dd/").count();
    assert!(depth <= 32, "{depth}");
    assert!(!refused(&result).is_empty(), "what lies deeper is said: {result:#}");
    let next = session.leaves("next", "x").await;
    assert_eq!((reply(&next), refused(&next)), (vec!["next"], vec![]));
}

/// Files and links are swapped while the server lists, opens and removes them.
#[tokio::test]
async fn names_that_are_swapped_lead_nowhere_else() {
    let server = Server::start().await;
    let session = server.session().await;
    let swapper = "import os\nprint('swapping', flush=True)\nos.chdir('/session/artifacts')\n\
                   while not os.path.exists('/session/go'):\n\
                   \x20   for make in [lambda: os.symlink('/etc/passwd', '/session/n'),\n\
                   \x20                lambda: open('/session/n', 'w').close(),\n\
                   \x20                lambda: os.mkfifo('/session/n')]:\n\
                   \x20       make(); os.rename('/session/n', 'swapped')\n\
                   \x20   os.mkdir('/session/d'); open('/session/d/passwd', 'w').close()\n\
                   \x20   os.rename('/session/d', 'folder')\n\
                   \x20   os.rename('folder', '/session/e'); os.symlink('/etc', 'folder')\n\
                   \x20   os.unlink('folder'); os.system('rm -rf /session/e')";
    let ask = json!({"command": ["python3", "-c", swapper], "background": true, "exec_id": "s"});
    session.exec(ask).await.json(202);
    session.has_printed("s", "swapping").await;
    for _ in 0..10 {
        let result = session.shell("true").await;
        assert_eq!(result["status"], "ok", "{result:#}");
        for artifact in list(&result["artifacts"]) {
            assert_eq!(artifact["size"], 0, "nothing but empty files was ever there: {artifact:#}");
        }
    }
    session.release().await;
    session.reaches("s", "finished").await;
    let info = session.exec_info("s").await;
    assert_eq!(info["result"]["status"], "ok", "{info:#}");
}

#[tokio::test]
async fn two_results_never_claim_one_file() {
    let server = Server::start().await;
    let session = server.session().await;
    let mut waiting = Vec::new();
    for n in 0..8 {
        let session = session.clone();
        let command = format!("cd artifacts; for f in $(seq 10); do echo {n} > {n}-$f; done");
        waiting.push(tokio::spawn(async move { session.shell(&command).await }));
    }
    let mut paths = Vec::new();
    for result in waiting {
        let result = result.await.expect("no panic");
        paths.extend(reply(&result).into_iter().map(str::to_owned));
    }
    let last = session.python("1").await;
    paths.extend(reply(&last).into_iter().map(str::to_owned));
    let all = paths.len();
    paths.sort();
    paths.dedup();
    assert_eq!((paths.len(), all), (80, 80));
    assert_eq!(session.inside().await, "");
    let one = session.leaves("one", "x").await;
    assert_eq!(server.get(&link(only(&one))).await.text(200), "x");
}
