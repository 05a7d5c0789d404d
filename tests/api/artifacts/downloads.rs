//! Downloads: whole files, ranges, and response headers.

use std::fs;
use std::path::Path;

use hyper::Method;
use serde_json::Value;

use super::ArtifactSession as _;
use super::{ask, link, list, only};
use belljar_testkit::client::Answer;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

#[track_caller]
fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test]
async fn parts_are_served_as_the_standard_has_them() {
    let server = Server::start().await;
    let result = server.session().await.leaves("digits", "0123456789").await;
    let artifact = only(&result);
    let (link, etag) = (link(artifact), format!("\"{}\"", text(&artifact["sha256"])));
    let get = async |headers: &[(&str, &str)]| ask(&server, Method::GET, &link, headers).await;
    let whole = get(&[]).await;
    assert_eq!(whole.text(200), "0123456789");
    assert_eq!((header(&whole, "etag"), header(&whole, "accept-ranges")), (&*etag, "bytes"));
    assert_eq!(header(&whole, "content-length"), "10");
    let head = ask(&server, Method::HEAD, &link, &[]).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    for name in ["etag", "content-length", "content-type", "content-disposition"] {
        assert_eq!(header(&head, name), header(&whole, name), "{name}");
    }
    for (range, part, installation) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=3-5", "345", "bytes 3-5/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=7-100", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=-100", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = get(&[("range", range)]).await;
        assert_eq!(
            (answer.text(206).as_str(), header(&answer, "content-range")),
            (part, installation)
        );
        assert_eq!(header(&answer, "content-length"), part.len().to_string());
    }
    for beyond in ["bytes=10-", "bytes=10-11", "bytes=-0", "bytes=99999999999999999999-"] {
        let answer = get(&[("range", beyond)]).await;
        assert_eq!((answer.status, header(&answer, "content-range")), (416, "bytes */10"));
        assert_eq!(answer.body.len(), 0, "{beyond}");
    }
    for odd in ["bytes=0-1,4-5", "bytes=5-2", "bytes=", "lines=1-2", "bytes=a-b"] {
        assert_eq!(get(&[("range", odd)]).await.text(200), "0123456789", "{odd}");
    }
    // `If-Range`: the range if the tag still matches, otherwise the whole file.
    let part = |tag: &str| [("range", "bytes=1-2".to_owned()), ("if-range", tag.to_owned())];
    for (tag, status) in
        [(&*etag, 206), ("\"another\"", 200), ("Thu, 01 Jan 1970 00:00:00 GMT", 200)]
    {
        let [(range, bytes), (if_range, tag)] = part(tag);
        assert_eq!(get(&[(range, &bytes), (if_range, &tag)]).await.status, status, "{tag}");
    }
    for known in [&*etag, &format!("W/{etag}"), &format!("\"x\", {etag}"), "*"] {
        let answer = get(&[("if-none-match", known)]).await;
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{known}");
        assert_eq!(header(&answer, "etag"), etag);
    }
    assert_eq!(get(&[("if-none-match", "\"x\"")]).await.status, 200);
    let empty = server.session().await.leaves("empty", "").await;
    let empty = super::link(only(&empty));
    assert_eq!(server.get(&empty).await.text(200), "");
    assert_eq!(ask(&server, Method::GET, &empty, &[("range", "bytes=0-")]).await.status, 416);
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        assert_eq!(ask(&server, method, &link, &[]).await.status, 405);
    }
}

#[tokio::test]
async fn a_large_file_is_the_sum_of_its_parts() {
    const SIZE: usize = 30 << 20;
    const PART: usize = 7_000_003;
    let server = Server::start().await;
    let session = server.session().await;
    let code = format!(
        "import hashlib, os\ndata = os.urandom({SIZE})\n\
         with open('/session/artifacts/large.bin', 'wb') as f: f.write(data)\n\
         print(hashlib.sha256(data).hexdigest())"
    );
    let result = session.python(&code).await;
    let artifact = only(&result);
    assert_eq!(artifact["sha256"], text(&result["stdout"]).trim());
    let link = link(artifact);
    let original = fs::read(text(&artifact["host_path"])).expect("the content");
    let mut parts = Vec::with_capacity(SIZE);
    for from in (0..SIZE).step_by(PART) {
        let range = format!("bytes={from}-{}", from + PART - 1);
        let part = ask(&server, Method::GET, &link, &[("range", &range)]).await;
        assert_eq!(part.status, 206);
        parts.extend_from_slice(&part.body);
    }
    assert!(parts == original, "the parts make up the whole");
    assert!(server.get(&link).await.body == original, "and the whole is the whole");
    let before = server.rss();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let (client, link) = (server.client(), link.clone());
        waiting.push(tokio::spawn(async move { client.get(&link).await.body.len() }));
    }
    for one in waiting {
        assert_eq!(one.await.expect("no panic"), SIZE);
    }
    assert!(server.rss() < before + (SIZE as u64), "it is not held in memory");
}

#[tokio::test]
async fn an_answer_says_what_it_is_and_lets_nothing_run() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = r#"
import os
os.chdir('/session/artifacts')
page = '<html><script>alert(1)</script></html>'
svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
files = {'page.html': page, 'drawing.svg': svg, 'page.png': page, 'page.xhtml': page,
         'page': page, 'drawing.jpeg': svg, 'page.htm': page, 'script.js': 'alert(1)',
         'quo"te\\.txt': 'x', 'line\r\nSet-Cookie: a=b.txt': 'x', 'gr\u00fc\u00df \u65e5.txt': 'x'}
for name, text in files.items():
    with open(name, 'w') as f: f.write(text)
for name, data in {'utf16.html': page.encode('utf-16'), 'nul.html': page.encode() + b'\0',
                   'paper.pdf': b'%PDF-1.7\\n', 'real.png': b'\x89PNG\r\n\x1a\n\0\0\0\rIHDR'}.items():
    with open(name, 'wb') as f: f.write(data)
"#;
    let result = session.python(code).await;
    assert_eq!(result["status"], "ok", "{result:#}");
    let artifact = |name: &str| -> &Value {
        let artifacts = list(&result["artifacts"]);
        let found = artifacts.iter().find(|artifact| artifact["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {artifacts:#?}"))
    };
    for artifact in list(&result["artifacts"]) {
        let answer = server.get(&link(artifact)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff");
        assert_eq!(header(&answer, "referrer-policy"), "no-referrer");
        assert!(answer.headers.get("set-cookie").is_none());
        let (kind, policy) =
            (header(&answer, "content-type"), header(&answer, "content-security-policy"));
        assert_eq!(kind, text(&artifact["mime"]));
        let runs = ["html", "svg", "xml", "script"].iter().any(|active| kind.contains(active));
        assert!(
            !runs || policy.starts_with("sandbox") && !policy.contains("allow-same-origin"),
            "{kind} {policy}"
        );
        // Types that are only displayed, such as PDF, run no scripts either.
        assert!(runs || policy.contains("script-src 'none'"), "{kind} {policy}");
        let part = ask(&server, Method::GET, &link(artifact), &[("range", "bytes=0-1")]).await;
        assert_eq!((part.status, header(&part, "content-security-policy")), (206, policy));
    }
    for (name, kind) in [
        ("page.html", "text/html; charset=utf-8"),
        ("drawing.svg", "image/svg+xml"),
        ("page.png", "text/plain; charset=utf-8"),
        ("drawing.jpeg", "text/plain; charset=utf-8"),
        ("page", "text/plain; charset=utf-8"),
        ("real.png", "image/png"),
        ("nul.html", "application/octet-stream"),
    ] {
        assert_eq!(artifact(name)["mime"], kind, "{name}");
    }
    let disposition = async |name: &str, query: &str| {
        let answer = server.get(&format!("{}{query}", link(artifact(name)))).await;
        header(&answer, "content-disposition").to_owned()
    };
    for (name, query, expected) in [
        ("page.html", "", "inline; filename=\"page.html\"; filename*=UTF-8''page.html"),
        (
            "page.html",
            "&download=1",
            "attachment; filename=\"page.html\"; filename*=UTF-8''page.html",
        ),
        ("page.html", "&download=0", "inline; filename=\"page.html\"; filename*=UTF-8''page.html"),
        ("quo\"te\\.txt", "", "inline; filename=\"quo_te_.txt\"; filename*=UTF-8''quo%22te%5C.txt"),
        (
            "gr\u{fc}\u{df} \u{65e5}.txt",
            "",
            "inline; filename=\"gr__ _.txt\"; filename*=UTF-8''gr%C3%BC%C3%9F%20%E6%97%A5.txt",
        ),
        (
            "line%0D%0ASet-Cookie: a=b.txt",
            "",
            "inline; filename=\"line_0D_0ASet-Cookie: a=b.txt\"; \
          filename*=UTF-8''line%250D%250ASet-Cookie%3A%20a%3Db.txt",
        ),
    ] {
        assert_eq!(disposition(name, query).await, expected);
    }
}

#[tokio::test]
async fn damaged_content_is_not_served() {
    let server = Server::start().await;
    let session = server.session().await;
    let small = session.leaves("small", "precious").await;
    let gone = session.leaves("gone", "more of it").await;
    let host = |result: &Value| text(&only(result)["host_path"]).to_owned();
    // Changes the file on disk without the server's knowledge.
    fs::remove_file(host(&small)).expect("it was there");
    fs::write(host(&small), "previous").expect("written");
    for headers in [&[][..], &[("range", "bytes=0-3")]] {
        let answer = ask(&server, Method::GET, &link(only(&small)), headers).await;
        answer.error(500, "artifact_damaged");
    }
    fs::remove_file(host(&gone)).expect("it was there");
    server.get(&link(only(&gone))).await.error(500, "artifact_damaged");
    assert_eq!(ask(&server, Method::HEAD, &link(only(&gone)), &[]).await.status, 500);
    eventually("the operator is told", async || server.said().contains("is damaged")).await;
    // Storing the same content again repairs it.
    fs::remove_file(host(&small)).expect("it was there");
    let again = session.leaves("small", "precious").await;
    assert!(Path::new(&host(&again)).exists());
    assert_eq!(server.get(&link(only(&small))).await.text(200), "precious");
}
