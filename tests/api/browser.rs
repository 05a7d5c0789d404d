//! A session's browser: real Chromium, with pages that the sandbox itself serves.

use http_body_util::Full;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};

use belljar_testkit::client::Answer;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use belljar_testkit::website::Website;

/// A small web shop, on port 8000 of the sandbox.
const SHOP: &str = include_str!("browser_shop.py");

const SHOP_URL: &str = "http://localhost:8000/";

pub(crate) fn has_chromium() -> bool {
    let has = std::path::Path::new("/usr/lib/chromium/chromium").exists();
    if !has {
        belljar_testkit::skip::record(
            "there is no Chromium on this machine (apt-get install chromium)",
        );
    }
    has
}

async fn ask(session: &Session, action: &str, body: Value) -> Answer {
    session.client.post(&session.path(&format!("/browser/{action}")), body).await
}

/// The result of an action that should succeed.
async fn act(session: &Session, action: &str, body: Value) -> Value {
    ask(session, action, body).await.json(200)
}

async fn shop(server: &Server) -> Session {
    let session = server.session().await;
    assert_eq!(session.printed(SHOP).await, "open\n");
    session
}

/// The reference that a snapshot gives to the first line with these words.
fn reference(snapshot: &Value, words: &str) -> String {
    let reply = text(&snapshot["result"]["snapshot"]);
    let line = reply.lines().find(|line| line.contains(words));
    let line = line.unwrap_or_else(|| panic!("no {words} in\n{reply}"));
    let (_, rest) = line.split_once("[ref=").expect("it can be used");
    rest.split_once(']').expect("a name ends").0.to_owned()
}

#[tokio::test]
async fn a_page_is_used_as_a_person_would() {
    if !has_chromium() {
        return;
    }
    let server = Server::start().await;
    let session = shop(&server).await;
    let before = session.client.get(&session.path("/browser")).await.json(200);
    assert_eq!((&before["browser"], &before["tabs"]), (&json!("stopped"), &json!([])));

    let came = act(&session, "goto", json!({"url": SHOP_URL})).await;
    assert_eq!((&came["browser"], &came["title"]), (&json!("started"), &json!("Fruit shop")));
    assert_eq!(came["result"], json!({"status": 200, "mime": "text/html"}), "{came:#}");

    let snapshot = act(&session, "snapshot", json!({})).await;
    let search = reference(&snapshot, "textbox \"Search\"");
    act(&session, "type", json!({"ref": search, "value": "plums"})).await;
    act(&session, "type", json!({"selector": "select", "value": "by price"})).await;
    let found = act(&session, "click", json!({"text": "Find"})).await;
    assert_eq!(found["url"], format!("{SHOP_URL}find?q=plums&by=price"), "{found:#}");
    let said = act(&session, "text", json!({"selector": "p"})).await;
    assert_eq!(said["result"]["text"], "You look for plums.");
    act(&session, "back", json!({})).await;
    // References are valid only on the page that they came from.
    let stale = ask(&session, "click", json!({"ref": search})).await;
    assert!(stale.error(422, "stale_ref").contains(&search));

    act(&session, "type", json!({"selector": "input", "value": "figs", "submit": true})).await;
    let said = act(&session, "text", json!({})).await;
    assert!(text(&said["result"]["text"]).contains("You look for figs."), "{said:#}");
    act(&session, "back", json!({})).await;

    let clicked = act(&session, "click", json!({"text": "Greet"})).await;
    assert_eq!(clicked["dialogs"], json!([{"type": "alert", "message": "hello"}]), "{clicked:#}");
    let value =
        act(&session, "evaluate", json!({"expression": "({links: document.links.length})"}));
    assert_eq!(value.await["result"]["value"], json!({"links": 3}));
    act(&session, "press", json!({"key": "Control+End"})).await;
    let scrolled = act(&session, "scroll", json!({"to": "bottom"})).await;
    assert!(scrolled["result"]["y"].as_i64() > Some(1000), "{scrolled:#}");

    let popup = act(&session, "click", json!({"text": "In a window"})).await;
    assert_eq!((&popup["result"]["opened_tab"], &popup["tab"]), (&json!(2), &json!(2)));
    let closed = act(&session, "close", json!({"tab": 2})).await;
    assert_eq!((closed["tabs"].as_array().map(Vec::len), &closed["tab"]), (Some(1), &json!(1)));

    let file = act(&session, "download", json!({"text": "Prices"})).await;
    assert_eq!(file["result"]["path"], "/session/downloads/prices of today.csv", "{file:#}");
    let again = act(&session, "download", json!({"url": "prices"})).await;
    assert_eq!(again["result"]["path"], "/session/downloads/prices of today (1).csv", "{again:#}");
    let read = "print(open('/session/downloads/prices of today.csv').read(), end='')";
    assert_eq!(session.printed(read).await, "fruit,price\npears,3\nplums,4\n");

    let gone = act(&session, "close", json!({})).await;
    assert_eq!((&gone["browser"], &gone["tabs"]), (&json!("stopped"), &json!([])));
    let inside = session.printed("import glob; print(glob.glob('/tmp/.belljar-browser/*'))").await;
    assert_eq!(inside, "[]\n");
}

#[tokio::test]
async fn what_cannot_be_done_is_said_precisely() {
    if !has_chromium() {
        return;
    }
    let server = Server::start().await;
    let session = shop(&server).await;
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    let refused = async |action: &str, body: Value, code: &str| {
        ask(&session, action, body).await.error(422, code).to_owned()
    };
    let nobody =
        refused("goto", json!({"url": "http://localhost:8001/"}), "navigation_failed").await;
    assert!(nobody.contains("net::ERR_CONNECTION_REFUSED"), "{nobody}");
    let outside = refused("goto", json!({"url": "https://example.org"}), "navigation_failed").await;
    assert!(outside.contains("net::ERR_"), "{outside}");
    let missing = refused("goto", json!({"url": "/session/no.html"}), "navigation_failed").await;
    assert!(missing.contains("net::ERR_FILE_NOT_FOUND"), "{missing}");
    let slow = json!({"url": format!("{SHOP_URL}slow"), "timeout": 0.5});
    assert!(refused("goto", slow, "page_timeout").await.contains("/slow"));
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    let nothing = json!({"text": "no such thing", "timeout": 0.3});
    assert!(refused("click", nothing, "no_such_element").await.contains("no such thing"));
    let disabled = json!({"text": "Sold out", "timeout": 0.3});
    assert!(refused("click", disabled, "element_not_usable").await.contains("disabled"));
    let covered = json!({"selector": "#below", "timeout": 0.3});
    assert!(refused("click", covered, "element_not_usable").await.contains("<div#above>"));
    refused("click", json!({"selector": "a!!"}), "invalid").await;
    refused("click", json!({}), "invalid").await;
    refused("click", json!({"tab": 9, "text": "Find"}), "no_such_tab").await;
    refused("press", json!({"key": "Hyper+x"}), "invalid").await;
    let thrown = refused("evaluate", json!({"expression": "null.x"}), "script_failed").await;
    assert!(thrown.starts_with("TypeError"), "{thrown}");
    let endless = json!({"expression": "for (;;) ;", "timeout": 0.5});
    refused("evaluate", endless, "page_timeout").await;
    let value = act(&session, "evaluate", json!({"expression": "6 * 7"})).await;
    assert_eq!(value["result"]["value"], 42, "the page goes on: {value:#}");
    refused("evaluate", json!({"expression": "'x'.repeat(2e6)"}), "answer_too_large").await;
    let absent = json!({"url": format!("{SHOP_URL}absent")});
    assert!(refused("download", absent, "download_failed").await.contains("404"));
    refused("screenshot", json!({"url": SHOP_URL, "html": "x"}), "invalid").await;
    refused("screenshot", json!({"name": "../x"}), "invalid").await;
    refused("screenshot", json!({"width": 1_000_000}), "invalid").await;
    refused("goto", json!({"uri": SHOP_URL}), "invalid").await;
    ask(&session, "fly", json!({})).await.error(404, "not_found");
    assert_eq!(session.client.get(&session.path("/browser")).await.json(200)["browser"], "kept");
}

/// Requests a screenshot as an image.
async fn picture(session: &Session, body: Value) -> Answer {
    let path = session.path("/browser/screenshot");
    let mut request = session.client.request(Method::POST, &path, body.to_string());
    request.headers_mut().insert("accept", "image/png".parse().expect("a header"));
    let request: hyper::Request<Full<Bytes>> = request;
    session.client.send(request).await
}

fn size_of(png: &[u8]) -> (u32, u32) {
    assert!(png.starts_with(b"\x89PNG\r\n"), "{}", String::from_utf8_lossy(png));
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

#[tokio::test]
async fn a_picture_is_an_artifact_and_the_answer() {
    if !has_chromium() {
        return;
    }
    let server = Server::start().await;
    let session = shop(&server).await;
    let html = "<body style='margin:0'><div style='height:3000px'>tall</div>";
    let reply = act(&session, "screenshot", json!({"html": html, "name": "tall"})).await;
    let artifact = &reply["artifacts"][0];
    assert_eq!(
        (&artifact["name"], &artifact["mime"]),
        (&json!("tall.png"), &json!("image/png")),
        "{reply:#}"
    );
    let reply = [&reply["result"]["width"], &reply["result"]["height"]];
    assert_eq!(reply, [&json!(1280), &json!(800)]);
    let whole = picture(&session, json!({"html": html, "full_page": true, "width": 640})).await;
    assert_eq!(size_of(&whole.body), (640, 3000));
    let id = whole.headers["belljar-artifact"].to_str().expect("text").to_owned();
    let kept = server.client().get(&format!("/v1/artifacts/{id}")).await.json(200);
    assert_eq!(kept["size"].as_u64(), Some(whole.body.len() as u64));

    // Screenshots of a file, of a page that is waited for, and of an element. The current page does
    // not change.
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    session.python("open('/session/page.html', 'w').write('<h1>a file</h1>')").await;
    assert_eq!(size_of(&picture(&session, json!({"file": "page.html"})).await.body), (1280, 800));
    let late = json!({"url": format!("{SHOP_URL}late"), "wait_for": "#late", "selector": "#late"});
    assert_eq!(size_of(&picture(&session, late).await.body), (120, 30));
    let idle = json!({"url": SHOP_URL, "until": "networkidle", "wait_ms": 10, "scale": 2});
    assert_eq!(size_of(&picture(&session, idle).await.body), (2560, 1600));
    let status = session.client.get(&session.path("/browser")).await.json(200);
    assert_eq!(
        (&status["title"], status["tabs"].as_array().map(Vec::len)),
        (&json!("Fruit shop"), Some(1))
    );
    let button = picture(&session, json!({"selector": "button"})).await;
    assert!(size_of(&button.body).0 < 200);

    // An action is an execution: it has a record and events, and with an id it happens only once.
    let body = json!({"html": "once", "exec_id": "picture-1"});
    let (first, second) =
        (act(&session, "screenshot", body.clone()).await, act(&session, "screenshot", body).await);
    assert_eq!(first["artifacts"][0]["id"], second["artifacts"][0]["id"]);
    assert_eq!(first["duration_ms"], second["duration_ms"]);
    let other = json!({"html": "another", "exec_id": "picture-1"});
    ask(&session, "screenshot", other).await.error(409, "exec_differs");
    let execs = session.client.get(&session.path("/execs?limit=1")).await.json(200);
    assert_eq!(execs["execs"][0]["language"], "browser");
    let path = session.path("/browser/screenshot");
    let mut events = server.client().post_stream(&path, json!({"html": "streamed"})).await;
    let mut names = Vec::new();
    while let Some(event) = events.next().await {
        names.push(event.name);
    }
    assert_eq!(names.last().map(String::as_str), Some("done"), "{names:?}");
    assert!(names.iter().any(|name| name == "artifacts"), "{names:?}");
}

#[tokio::test]
async fn an_idle_browser_is_stopped_and_started_again() {
    if !has_chromium() {
        return;
    }
    let server = Server::with(&[("BELLJAR_BROWSER_IDLE", "1")]).await;
    let session = shop(&server).await;
    let before = session.show().await["memory_used"].as_u64().expect("it is known");
    act(&session, "goto", json!({"url": format!("{SHOP_URL}login")})).await;
    let stored = json!({"expression": "localStorage.basket = 'pears'"});
    act(&session, "evaluate", stored).await;
    let used = session.show().await["memory_used"].as_u64();
    eventually("its browser is gone", async || {
        session.show().await["memory_used"].as_u64() < Some(before + (3 << 20))
    })
    .await;
    assert!(used > Some(before + (50 << 20)), "{used:?}");
    let processes = "import glob; print(sum('chrom' in open(p).read() \
        for p in glob.glob('/proc/[0-9]*/cmdline')))";
    assert_eq!(session.printed(processes).await, "0\n");
    let back = act(&session, "text", json!({})).await;
    assert_eq!(
        (&back["browser"], text(&back["result"]["text"])),
        (&json!("restored"), "You are ada."),
        "{back:#}"
    );
    let basket = act(&session, "evaluate", json!({"expression": "localStorage.basket"})).await;
    assert_eq!(basket["result"]["value"], "pears");
}

#[tokio::test]
async fn a_browser_crash_is_reported_and_the_next_action_starts_a_new_one() {
    if !has_chromium() {
        return;
    }
    let server = Server::start().await;
    let session = shop(&server).await;
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    // Only the page crashes.
    let crashed = ask(&session, "goto", json!({"url": "chrome://crash"})).await;
    crashed.error(422, "page_crashed");
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    // The whole browser is killed.
    let kill = "import glob, os, signal\n\
        for path in glob.glob('/proc/[0-9]*/cmdline'):\n    \
            if b'--remote-debugging-pipe' in open(path, 'rb').read():\n        \
                os.kill(int(path.split('/')[2]), signal.SIGKILL)";
    session.python(kill).await;
    // The browser may die a moment after the signal. Then this call reports the crash.
    let mut met = ask(&session, "text", json!({})).await;
    if met.status == 422 {
        met.error(422, "browser_crashed");
        met = ask(&session, "text", json!({})).await;
    }
    let lost = met.json(200);
    assert_eq!(lost["browser"], "lost", "{lost:#}");
    assert!(text(&lost["note"]).contains("SIGKILL"), "{lost:#}");
    assert_eq!(lost["url"], "about:blank");

    // A page that exceeds the memory limit.
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    let hungry = "const all = []; for (;;) all.push(new Uint8Array(1 << 24).fill(1));";
    let ended = ask(&session, "evaluate", json!({"expression": hungry})).await;
    let message = ended.error(507, "browser_out_of_memory");
    assert!(message.contains("memory limit"), "{message}");
    let back = act(&session, "goto", json!({"url": SHOP_URL})).await;
    assert_eq!(back["title"], "Fruit shop", "{back:#}");
}

#[tokio::test]
async fn actions_wait_their_turn_and_can_be_interrupted() {
    if !has_chromium() {
        return;
    }
    let server = Server::start().await;
    let session = shop(&server).await;
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    let (client, path) = (session.client.clone(), session.path("/browser/wait"));
    let long = json!({"wait_ms": 15000, "exec_id": "long"});
    let waiting = tokio::spawn(async move { client.post(&path, long).await });
    session.reaches("long", "running").await;
    // The next action waits in the same queue; code in other languages does not.
    let (client, path) = (session.client.clone(), session.path("/browser/text"));
    let next = tokio::spawn(async move { client.post(&path, json!({"selector": "h1"})).await });
    assert_eq!(session.printed("print(1)").await, "1\n");
    assert!(!next.is_finished());
    server.post(&session.path("/execs/long/interrupt"), json!({})).await.json(200);
    waiting.await.expect("it ends").error(409, "interrupted");
    let said = next.await.expect("it ends").json(200);
    assert_eq!((&said["browser"], &said["result"]["text"]), (&json!("kept"), &json!("Fruit")));
}

#[tokio::test]
async fn it_survives_the_server() {
    if !has_chromium() {
        return;
    }
    let server = Server::start().await;
    let session = shop(&server).await;
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    act(&session, "type", json!({"selector": "input", "value": "quinces"})).await;
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server.client(), &session.id);
    let typed = json!({"expression": "document.querySelector('input').value"});
    let value = act(&session, "evaluate", typed).await;
    assert_eq!(
        (&value["browser"], &value["result"]["value"]),
        (&json!("kept"), &json!("quinces")),
        "{value:#}"
    );
}

#[tokio::test]
async fn the_network_is_what_the_session_may_reach() {
    if !has_chromium() {
        return;
    }
    let site = Website::start().await;
    let most = site.address.to_string();
    let server = Server::with(&[("BELLJAR_MAX_NETWORK", &most)]).await;
    let session = server.session_with(json!({"network": {"allow": [most]}})).await;
    assert_eq!(session.printed(SHOP).await, "open\n");
    act(&session, "goto", json!({"url": site.url("/visited")})).await;
    let said = act(&session, "text", json!({})).await;
    assert!(text(&said["result"]["text"]).contains("GET /visited"), "{said:#}");
    for url in ["http://127.0.0.3:80/", "https://127.0.0.3/"] {
        let refused = ask(&session, "goto", json!({"url": url})).await;
        refused.error(422, "navigation_failed");
    }
    act(&session, "goto", json!({"url": SHOP_URL})).await;
    // Chromium updates the title of a tab on its own, sometimes a moment after the page has loaded.
    eventually("the title is that of the page", async || {
        act(&session, "text", json!({})).await["title"] == "Fruit shop"
    })
    .await;
    let reply = session.client.get(&session.path("/network")).await.json(200).to_string();
    assert!(reply.contains("127.0.0.3") && !reply.contains("example"), "{reply}");
    assert_eq!(site.heads().iter().filter(|head| head.starts_with("GET /visited ")).count(), 1);
}
