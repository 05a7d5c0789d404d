//! Exports of datasets to the host.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::DatasetSession as _;
use super::serve;
use belljar_testkit::client::Client;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};

/// The path of an export on the host, by the name of its dataset.
#[track_caller]
fn place_of(exported: &Value, dataset: &str) -> PathBuf {
    let mut exports = exported["exports"].as_array().expect("a list").iter();
    let export = exports.find(|export| export["dataset"] == dataset);
    text(&export.unwrap_or_else(|| panic!("no {dataset}: {exported:#}"))["host_path"]).into()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Why something was not exported.
#[track_caller]
fn refusal(exported: &Value, path: &str) -> String {
    let mut refused = exported["refused"].as_array().expect("a list").iter();
    let refused = refused.find(|refused| refused["path"] == path);
    text(&refused.unwrap_or_else(|| panic!("no {path}: {exported:#}"))["reason"]).to_owned()
}

async fn with_files(server: &Server, script: &str) -> Session {
    let session = server.session().await;
    let made = session.shell(&format!("cd data; {script}")).await;
    assert_eq!(made["status"], "ok", "{made:#}");
    session
}

/// Content behind one of our links.
async fn follow(client: &Client, url: &Value) -> String {
    let url = text(url);
    let path = url.split_once("://").map_or(url, |(_, rest)| &rest[rest.find('/').expect("/")..]);
    client.get(path).await.text(200)
}

#[tokio::test]
async fn one_several_or_all_are_exported_and_stay() {
    let server = serve(&[]).await;
    let session =
        with_files(&server, "echo 1 > a.csv; mkdir d; echo 2 > d/b.csv; echo 3 > c").await;
    session.put("staged.csv", "4\n").await.json(200);

    let before = text(&session.shell("date -u +%Y%m%d").await["stdout"]).trim().to_owned();
    let one = session.export(json!({"datasets": ["a.csv"]})).await;
    assert_eq!(
        (one["exports"].as_array().expect("a list").len(), &one["refused"]),
        (1, &json!([]))
    );
    let installation = place_of(&one, "a.csv");
    assert_eq!(
        (installation.parent(), read(&installation)),
        (Some(&*server.path("exports")), "1\n".to_owned())
    );
    let file = installation.file_name().expect("a name").to_string_lossy().into_owned();
    // `a_20261115T105959Z.csv`
    let stamp =
        file.strip_prefix("a_").and_then(|rest| rest.strip_suffix("Z.csv")).expect("a time");
    let (day, time) = stamp.split_once('T').expect("a time");
    assert!((day.len(), time.len()) == (8, 6) && (day.to_owned() + time).parse::<u64>().is_ok());
    let today = session.shell("date -u +%Y%m%d").await;
    assert!((before.as_str()..=text(&today["stdout"])).contains(&day), "{before} {day}");

    let artifact = &one["exports"][0];
    assert_eq!((&artifact["name"], &artifact["size"]), (&json!("a.csv"), &json!(2)));
    assert_eq!(artifact["sha256"], super::sha256("1\n"));
    assert_eq!(follow(&server, &artifact["url"]).await, "1\n");
    let known = server.get(&session.path("/artifacts")).await.json(200).to_string();
    assert!(known.contains(text(&artifact["id"])), "{known}");

    let several = json!({"datasets": ["d/b.csv", "missing.csv", "staged.csv", "d"]});
    let several = session.export(several).await;
    assert_eq!(several["exports"].as_array().expect("a list").len(), 2, "{several:#}");
    assert_eq!(place_of(&several, "d/b.csv").parent(), Some(&*server.path("exports/d")));
    assert_eq!(read(&place_of(&several, "staged.csv")), "4\n");
    let reason = refusal(&several, "/session/data/missing.csv");
    assert!(reason.to_lowercase().contains("no such file"), "{reason}");
    refusal(&several, "/session/data/d");
    assert_eq!(several["refused"].as_array().expect("a list").len(), 2, "{several:#}");

    let all = session.export(json!({})).await;
    assert_eq!(
        (all["exports"].as_array().expect("a list").len(), &all["refused"]),
        (4, &json!([]))
    );
    for (name, content) in
        [("a.csv", "1\n"), ("d/b.csv", "2\n"), ("c", "3\n"), ("staged.csv", "4\n")]
    {
        assert_eq!(read(&place_of(&all, name)), content);
    }
    assert_eq!(session.shell("cat data/a.csv data/d/b.csv data/c").await["stdout"], "1\n2\n3\n");
    let nothing = session.export(json!({"datasets": []})).await;
    assert_eq!(nothing, json!({"exports": [], "refused": []}));
    let typo = server.post(&session.path("/datasets/export"), json!({"dataset": ["a"]})).await;
    typo.error(422, "invalid");
    assert!(server.installation.audit().iter().any(|entry| entry["action"] == "dataset.export"));
}

#[tokio::test]
async fn nothing_is_ever_overwritten() {
    let server = serve(&[]).await;
    let session = with_files(&server, "echo 0 > t.csv").await;
    let mut places = Vec::new();
    for turn in 0..5 {
        session.shell(&format!("echo {turn} > data/t.csv")).await;
        let ask = || session.export(json!({"datasets": ["t.csv"]}));
        let (one, two) = tokio::join!(ask(), ask());
        for exported in [one, two] {
            let installation = place_of(&exported, "t.csv");
            // An export can be edited, and this changes no other file.
            assert_eq!(read(&installation), format!("{turn}\n"));
            fs::write(&installation, format!("mine, {turn}")).expect("it can be written");
            places.push((installation, turn));
        }
    }
    for (installation, turn) in &places {
        assert_eq!(read(installation), format!("mine, {turn}"));
    }
    assert_eq!(names(&server.path("exports")).len(), 10);
    let last = session.export(json!({})).await;
    assert_eq!(follow(&server, &last["exports"][0]["url"]).await, "4\n");
}

#[tokio::test]
async fn what_is_no_plain_file_is_refused_with_the_reason() {
    let server = serve(&[]).await;
    fs::write(server.path("outside"), "outside").expect("a file");
    let session = with_files(
        &server,
        "echo 1 > good.csv; ln -s /etc/passwd link; ln -s good.csv alias; ln -s / root; \
         mkfifo pipe; truncate -s 1T sparse",
    )
    .await;
    let all = session.export(json!({})).await;
    let named = ["good.csv", "link", "alias", "root", "pipe", "sparse", "root/etc/passwd"];
    let named = session.export(json!({"datasets": named})).await;
    for exported in [&all, &named] {
        assert_eq!(exported["exports"].as_array().expect("a list").len(), 1, "{exported:#}");
        assert_eq!(read(&place_of(exported, "good.csv")), "1\n");
        for (name, reason) in [
            ("link", "link"),
            ("alias", "link"),
            ("root", "link"),
            ("pipe", "pipe"),
            ("sparse", ""),
        ] {
            let reply = refusal(exported, &format!("/session/data/{name}"));
            assert!(reply.contains(reason) && !reply.is_empty(), "{name}: {reply}");
        }
    }
    refusal(&named, "/session/data/root/etc/passwd");
    assert!(refusal(&all, "/session/data/sparse").contains("1099511627776 bytes"), "{all:#}");
    assert_eq!(names(&server.path("exports")).len(), 2);
}

#[tokio::test]
async fn any_name_can_be_exported_and_leads_nowhere_else() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let code = "import os\nroot = b'/session/data/'\n\
                for name in [b'new\\nline.csv', b'bytes-\\xff.csv', b'esc\\x1b[31m', b'..a', b'.hidden',\n\
                \x20            b'-rf', b'x' * 255, b'back\\\\slash.csv']:\n\
                \x20   open(root + name, 'wb').write(name)\n\
                os.makedirs(root + b'a\\nb/c')\n\
                open(root + b'a\\nb/c/d', 'w').write('deep')";
    session.printed(code).await;
    let all = session.export(json!({})).await;
    let exports = all["exports"].as_array().expect("a list");
    for export in exports {
        let installation = Path::new(text(&export["host_path"]));
        assert!(installation.starts_with(server.path("exports")), "{export:#}");
        assert!(!text(&export["host_path"]).chars().any(char::is_control), "{export:#}");
        let size = fs::metadata(installation).expect("it is there").len();
        assert_eq!(export["size"], size, "{export:#}");
    }
    // All of them, except a name that is too long for the added time.
    let refused = all["refused"].as_array().expect("a list");
    assert_eq!(exports.len() + refused.len(), 9, "{all:#}");
    assert!(refused.len() <= 1, "{all:#}");
    assert_eq!(read(&place_of(&all, "a\nb/c/d")), "deep");
    assert_eq!(read(&place_of(&all, "new\nline.csv")), "new\nline.csv");
}

#[tokio::test]
async fn one_of_very_many_is_found() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let code = "for n in range(1500): open(f'/session/data/{n}.csv', 'w').write(f'{n}')";
    session.printed(code).await;
    // Some of these are missing from a bounded listing.
    let wanted: Vec<String> = (0..1500).step_by(50).map(|n| format!("{n}.csv")).collect();
    let exported = session.export(json!({"datasets": wanted})).await;
    assert_eq!(exported["refused"], json!([]), "{exported:#}");
    for name in &wanted {
        assert_eq!(read(&place_of(&exported, name)) + ".csv", *name);
    }
}
