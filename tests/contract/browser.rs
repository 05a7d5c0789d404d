//! A session's browser runs inside its sandbox, on every backend.

use serde_json::{Value, json};

use crate::backend::{BROWSER_IMAGE, Backend, succeeds};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

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
            belljar_testkit::skip!("no image with Chromium; scripts/prepare-docker makes one");
        }
    } else if !std::path::Path::new("/usr/lib/chromium/chromium").exists() {
        belljar_testkit::skip!("there is no Chromium on this machine (apt-get install chromium)");
    }
    let image = [("SANDBOX_IMAGE", BROWSER_IMAGE)];
    let site = on.site(if on.is_container() { &image } else { &[] });
    let server = site.serve().await;
    // gVisor has its own thread for each thread of Chromium, and keeps in memory files that other backends map.
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
    a_saved_page_reads_no_files(&session).await;
    pages_and_strangers_do_not_reach_the_port(&server, &session).await;
    act(&session, "close", json!({})).await;
}

/// A page that is stored in the session, written by any author. It shows images, styles and scripts
/// that are stored beside it, but reads no file.
async fn a_saved_page_reads_no_files(session: &Session) {
    const FILES: &str = r#"
import base64, os
os.makedirs('/session/saved', exist_ok=True)
dot = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg=='
files = {
    'secret.txt': b'c4nary', 'saved/beside.txt': b'c4nary', 'saved/module.js': b'export default "c4nary"',
    'saved/style.css': b'body { color: rgb(1, 2, 3) }', 'saved/plain.js': b'window.plain = 7',
    'saved/dot.png': base64.b64decode(dot),
    'saved/page.html': b"""<!doctype html><title>saved</title><link rel=stylesheet href=style.css>
<body><img id=dot src=dot.png><script src=plain.js></script><iframe id=frame src=../secret.txt></iframe>
<script>
const get = (url) => new Promise((done, fail) => {
  const request = new XMLHttpRequest();
  request.onload = () => done(request.responseText);
  request.onerror = fail;
  request.open('GET', url);
  request.send();
});
const pixels = () => {
  const canvas = document.createElement('canvas');
  canvas.getContext('2d').drawImage(dot, 0, 0);
  return canvas.toDataURL();
};
const ways = {
  fetch: async () => (await fetch('file:///session/secret.txt')).text(),
  near: async () => (await fetch('beside.txt')).text(),
  list: async () => (await fetch('file:///session/')).text(),
  request: () => get('../secret.txt'),
  frame: () => frame.contentDocument.body.innerText,
  module: async () => (await import('./module.js')).default,
  pixels,
};
async function attack() {
  const read = [];
  for (const [name, way] of Object.entries(ways)) {
    try { await way(); read.push(name) } catch {}
  }
  return {read, shown: [dot.naturalWidth, getComputedStyle(document.body).color, window.plain]};
}
</script>""",
}
for name, content in files.items():
    with open('/session/' + name, 'wb') as file: file.write(content)
"#;
    session.python(FILES).await;
    act(session, "goto", json!({"url": "/session/saved/page.html"})).await;
    let tried = act(session, "evaluate", json!({"expression": "await attack()"})).await;
    let expected = json!({"read": [], "shown": [1, "rgb(1, 2, 3)", 7]});
    assert_eq!(tried["result"]["value"], expected, "{tried:#}");
}

/// The port for browser-use, where it is installed, is open to programs of the session only.
async fn pages_and_strangers_do_not_reach_the_port(server: &Server, session: &Session) {
    let look = "import os; path = '/tmp/.belljar-browser/profile/DevToolsActivePort'\n\
                print(open(path).read() if os.path.exists(path) else 'none', end='')";
    let found = session.printed(look).await;
    let Some((port, path)) = found.split_once('\n') else {
        assert_eq!(found, "none");
        let flags = "import glob\n\
             def lines(path):\n\
             \x20   try: return open(path, 'rb').read()\n\
             \x20   except OSError: return b''\n\
             paths = glob.glob('/proc/[0-9]*/cmdline')\n\
             print([path for path in paths if b'--remote-debugging-port' in lines(path)])";
        assert_eq!(session.printed(flags).await, "[]\n");
        return;
    };
    act(session, "goto", json!({"url": "http://localhost:8000/"})).await;
    let attack = format!(
        "await (async () => {{
            const reached = [];
            for (const host of ['127.0.0.1', 'localhost']) {{
                for (const place of ['json/version', 'json/list']) {{
                    try {{ await fetch(`http://${{host}}:{port}/${{installation}}`); reached.push(place) }} catch {{}}
                }}
                await new Promise((done) => {{
                    const socket = new WebSocket(`ws://${{host}}:{port}{path}`);
                    socket.onopen = () => {{ reached.push('socket'); done() }};
                    socket.onerror = done;
                }});
            }}
            return reached;
        }})()"
    );
    let tried = act(session, "evaluate", json!({"expression": attack})).await;
    assert_eq!(tried["result"]["value"], json!([]), "{tried:#}");
    // Code of the session can reach the port.
    let knock = format!(
        "import urllib.request\n\
         try: print(urllib.request.urlopen('http://127.0.0.1:{port}/json/version', timeout=5).status)\n\
         except OSError: print('nobody')"
    );
    assert_eq!(session.printed(&knock).await, "200\n");
    let other = server.session().await;
    assert_eq!(other.printed(&knock).await, "nobody\n");
}
