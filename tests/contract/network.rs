//! Network access: none, or only to what the policy lists.

use serde_json::json;

use crate::backend::Backend;
use belljar_testkit::session::Session;
use belljar_testkit::website::Website;

async fn fetched(session: &Session, url: &str) -> String {
    let code = format!(
        "import urllib.request, urllib.error\n\
         try:\n    print(urllib.request.urlopen({url:?}, timeout=20).read().decode())\n\
         except urllib.error.HTTPError as e:\n    print(e.code, e.read().decode())\n\
         except Exception as e:\n    print(type(e).__name__, e)"
    );
    session.printed(&code).await
}

pub(crate) async fn only_listed_hosts_are_reached(on: Backend) {
    let (listed, elsewhere) = (Website::start().await, Website::start().await);
    let allowed = listed.address.to_string();
    let most = format!("open {allowed}");
    let site = on.site(&[("BELLJAR_MAX_NETWORK", most.as_str())]);
    let server = site.serve().await;
    let session = server.session_with(json!({"network": {"allow": [allowed]}})).await;
    let said = fetched(&session, &listed.url("/python")).await;
    assert!(said.starts_with("GET /python HTTP/1.1"), "{said}");
    let said = fetched(&session, &elsewhere.url("/")).await;
    assert!(said.starts_with("403 belljar: "), "{said}");
    let said = fetched(&session, &listed.url(&format!("/to/{}", elsewhere.url("/")))).await;
    assert!(said.starts_with("403 belljar: "), "{said}");
    // A direct connection, without the proxy, fails.
    let around = format!(
        "import socket\nprint(socket.socket().connect_ex(('127.0.0.2', {})) != 0)",
        listed.address.port()
    );
    assert_eq!(session.printed(&around).await, "True\n");
    assert!(elsewhere.heads().is_empty());
    let reply = server.get(&session.path("/network")).await.json(200);
    assert_eq!((&reply["reached"], &reply["refused"]), (&json!(2), &json!(2)), "{reply:#}");

    // Without a policy there is no network access, and no proxy.
    let closed = server.session().await;
    let look = "import os, socket\n\
        print([k for k in os.environ if 'proxy' in k.lower()])\n\
        print(socket.socket().connect_ex(('127.0.0.1', 3128)) != 0)";
    assert_eq!(closed.printed(look).await, "[]\nTrue\n");
    let said = fetched(&closed, &listed.url("/closed")).await;
    assert!(said.contains("Error"), "{said}");
    assert_eq!(listed.heads().len(), 2);
    let unlisted = json!({"network": {"allow": ["127.0.0.3:1"]}});
    server.post("/v1/sessions", unlisted).await.error(403, "network_not_allowed");
}
