//! Network access of a sandbox whose server was killed.

use std::sync::Arc;

use serde_json::json;

use belljar_testkit::installation::Installation;
use belljar_testkit::session::Session;
use belljar_testkit::website::Website;

#[tokio::test]
async fn old_connections_end_and_new_ones_wait_for_the_successor() {
    let site = Website::start().await;
    let installation = Installation::new().env("BELLJAR_NETWORK", &site.address.to_string());
    let server = Arc::new(installation).serve().await;
    let session = server.session().await;
    let code = format!(
        "import urllib.request, os, time\n\
         r = urllib.request.urlopen({:?})\n\
         print(r.readline().decode(), end='', flush=True)\n\
         try: print('ended', len(r.read()), flush=True)\n\
         except Exception as e: print('ended', type(e).__name__, flush=True)\n\
         while not os.path.exists('/session/go'): time.sleep(0.01)\n\
         print(urllib.request.urlopen({:?}, timeout=60).read().split()[1].decode())",
        site.url("/hold"),
        site.url("/during"),
    );
    let pending = session.begin("visit", "running", json!({"code": code})).await;
    session.has_printed("visit", "held").await;
    // The code continues, and sends a request while no server is there to answer.
    session.shell("touch /session/go").await;
    let installation = server.kill().await;
    pending.abandon();
    // Long enough for the request to arrive, if there were a way around the server.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(site.heads().len(), 1, "{:?}", site.heads());

    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    session.reaches("visit", "finished").await;
    let result = session.exec_info("visit").await;
    let said = result["result"]["stdout"].as_str().expect("text").to_owned();
    assert!(said.starts_with("held\nended ") && said.ends_with("/during\n"), "{result:#}");
    let after = format!(
        "import urllib.request\nprint(urllib.request.urlopen({:?}).status)",
        site.url("/after")
    );
    assert_eq!(session.printed(&after).await, "200\n");
    assert_eq!(site.heads().len(), 3);
    let reply = server.get(&session.path("/network")).await.json(200);
    assert_eq!(reply["reached"], 2, "{reply:#}");
}

#[tokio::test]
async fn an_operator_who_takes_it_back_takes_it_back_from_those_who_live() {
    let site = Website::start().await;
    let own = site.address.to_string();
    let installation = Arc::new(Installation::new().env("BELLJAR_NETWORK", &own));
    let server = installation.serve().await;
    let session = server.session().await;
    let code = format!(
        "import urllib.request, urllib.error\n\
         try: print(urllib.request.urlopen({:?}).status)\n\
         except urllib.error.HTTPError as e: print(e.code)",
        site.url("/")
    );
    assert_eq!(session.printed(&code).await, "200\n");
    let installation = server.kill().await;
    let mut less = installation.belljar(&["serve"]);
    less.env("BELLJAR_NETWORK", "none").env("BELLJAR_MAX_NETWORK", "example.org");
    let server = installation.serve_by(less).await;
    let session = Session::of(&server.client(), &session.id);
    session.becomes("ready").await;
    assert_eq!(session.printed(&code).await, "403\n");
}
