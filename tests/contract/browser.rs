//! A session's browser is inside of it, whatever that is made of.

use serde_json::{Value, json};

use crate::backend::{BROWSER_IMAGE, Backend, succeeds};
use crate::server::{Session, text};

const SHOP: &str = include_str!("../api/browser_shop.py");

async fn act(session: &Session, action: &str, body: Value) -> Value {
    session.client.post(&session.path(&format!("/browser/{action}")), body).await.json(200)
}

pub(crate) async fn a_page_is_used_and_a_missing_browser_is_said(on: Backend) {
    if on.is_container() {
        let (_site, _server, session) = on.session(json!({})).await;
        let goto = session.path("/browser/goto");
        let refused = session.client.post(&goto, json!({"url": "x.test"})).await;
        let missing = refused.error(409, "no_browser");
        assert!(missing.contains("no Chromium in this sandbox's image"), "{missing}");
        if !succeeds(&["image", "inspect", BROWSER_IMAGE]) {
            eprintln!("skipped: no image with Chromium; scripts/prepare-docker makes one");
            return;
        }
    } else if !std::path::Path::new("/usr/lib/chromium/chromium").exists() {
        eprintln!("skipped: there is no Chromium on this machine (apt-get install chromium)");
        return;
    }
    let image = [("SANDBOX_IMAGE", BROWSER_IMAGE)];
    let site = on.site(if on.is_container() { &image } else { &[] });
    let server = site.serve().await;
    // gVisor has a thread of its own for each of Chromium's, and keeps files in memory that others map.
    let (memory, pids) = if on == Backend::Runsc { ("2G", 2000) } else { ("512M", 256) };
    let session = server.session_with(json!({"limits": {"memory": memory, "pids": pids}})).await;
    assert_eq!(session.printed(SHOP).await, "open\n");
    let came = act(&session, "goto", json!({"url": "http://localhost:8000/"})).await;
    assert_eq!((&came["browser"], &came["title"]), (&json!("started"), &json!("Fruit shop")));
    act(&session, "type", json!({"text": "Search", "value": "figs", "submit": true})).await;
    let said = act(&session, "text", json!({"selector": "p"})).await;
    assert_eq!(said["result"]["text"], "You look for figs.");
    act(&session, "back", json!({})).await;
    let file = act(&session, "download", json!({"text": "Prices"})).await;
    let read = format!("print(open({:?}).readlines()[1], end='')", text(&file["result"]["path"]));
    assert_eq!(session.printed(&read).await, "pears,3\n");
    let picture = act(&session, "screenshot", json!({"name": "shop", "full_page": true})).await;
    let artifact = &picture["artifacts"][0];
    assert_eq!(artifact["mime"], "image/png", "{picture:#}");
    assert!(artifact["size"].as_u64() > Some(1000), "{picture:#}");
    act(&session, "close", json!({})).await;
}
