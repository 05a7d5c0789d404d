//! Code that replaces the directory where its datasets are written.

use serde_json::json;

use super::DatasetSession as _;
use super::serve;
use belljar_testkit::values::text;

#[tokio::test]
async fn a_place_that_is_gone_or_another_is_not_written_to() {
    let server = serve(&[]).await;
    for (spoil, code) in [
        ("rm -rf /session/data", "no_place_inside"),
        ("rm -rf /session/data; echo mine > /session/data", "no_place_inside"),
        ("rm -rf /session/data; ln -s /tmp /session/data", "no_place_inside"),
        ("rm -rf /session/data; ln -s /session/artifacts /session/data", "no_place_inside"),
        ("chmod 555 /session/data", "not_permitted_inside"),
    ] {
        let session = server.session().await;
        session.shell(spoil).await;
        let message = session.put("t.csv", "secret").await.error(409, code);
        let named = if code == "no_place_inside" { "/session/data" } else { "t.csv" };
        assert!(message.contains(named), "{message}");
        let failed = session.dataset("t.csv").await;
        assert_eq!(failed["status"], "FAILED", "{spoil}: {failed:#}");
        let known = format!("t.csv?sha256={}", super::sha256("secret"));
        session.put(&known, "").await.error(409, code);
        let found = session.shell("grep -rl secret /tmp /session /dev/shm; true").await;
        assert_eq!(found["stdout"], "", "{spoil}");
        // An export finds nothing there, and does not follow a link.
        session.shell("echo private > /tmp/private.csv").await;
        let exported = session.export(json!({})).await;
        assert_eq!(exported["exports"], json!([]), "{spoil}: {exported:#}");
        // Uploads work again when the directory is restored.
        session.shell("chmod 755 data; rm -rf data; mkdir data").await;
        session.put("t.csv", "secret").await.json(200);
        session.stop().await;
    }
}

#[tokio::test]
async fn folders_that_lead_elsewhere_are_not_followed() {
    let server = serve(&[]).await;
    let session = server.session().await;
    session.shell("cd data; ln -s /tmp link; echo x > file; mkdir folder; ln -s file alias").await;
    for name in ["link/t.csv", "file/t.csv", "folder"] {
        let answer = session.put(name, "secret").await;
        assert_eq!(answer.status, 409, "{name}: {answer}");
        assert_eq!(session.status(name).await, "FAILED", "{name}");
    }
    assert_eq!(session.all_in("/tmp").await, Vec::<String>::new());
    // A link with the dataset's name is replaced, and its target is not changed.
    session.put("alias", "new").await.json(200);
    let looked = session.shell("cd data; cat file alias; test -L alias || echo plain").await;
    assert_eq!(text(&looked["stdout"]), "x\nnewplain\n");
}

/// The temporary file is hidden, but code can find it.
#[tokio::test]
async fn code_that_interferes_with_an_upload_harms_only_its_own_session() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let code = "import os\nprint('ready', flush=True)\n\
                while not os.path.exists('/session/go'):\n\
                \x20   for name in os.listdir('/session/data'):\n\
                \x20       if name.endswith('.part'):\n\
                \x20           try:\n\
                \x20               os.unlink('/session/data/' + name)\n\
                \x20               os.symlink('/session/secret', '/session/data/' + name)\n\
                \x20           except OSError: pass";
    session.shell("echo secret > /session/secret").await;
    let meddling = session.begin("meddling", "running", json!({"code": code})).await;
    session.has_printed("meddling", "ready").await;
    for turn in 0..5 {
        let answer = session.put("t.bin", super::numbered(turn, 2 << 20)).await;
        match answer.status {
            200 => {}
            500 => panic!("an error of the code is not one of the server: {answer}"),
            _ => assert_eq!(session.status("t.bin").await, "FAILED", "{answer}"),
        }
    }
    session.release().await;
    meddling.result().await;
    assert_eq!(session.shell("cat /session/secret").await["stdout"], "secret\n");
}
