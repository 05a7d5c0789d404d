//! Operations on a session's files have the same effect as on a plain directory: the same random
//! calls run against both.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hyper::Method;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::files::{at, get, put};
use belljar_testkit::client::Answer;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

#[derive(Debug, Clone)]
enum Step {
    Write(String, String),
    Append(String, String),
    MakeDirectory(String),
    Remove(String, bool),
    Move(String, String),
    Copy(String, String),
    Read(String),
    Stat(String),
    List(String),
}

fn path() -> impl Strategy<Value = String> {
    // Few names, so that steps meet on the same files. The odd names mean something to shells,
    // URLs, patterns or terminals.
    let odd =
        vec!["c d", "*", "-r", ".h", "%2F", "q?x=1&y#z", "\u{fc}\u{4e16}", "a\nb\u{1b}[m", "'\\\""];
    let name =
        prop_oneof![5 => prop::sample::select(vec!["a", "b"]), 1 => prop::sample::select(odd)];
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    let content = "[a-z\u{e4}]{0,12}";
    prop_oneof![
        3 => (path(), content).prop_map(|(path, content)| Step::Write(path, content)),
        2 => (path(), content).prop_map(|(path, content)| Step::Append(path, content)),
        2 => path().prop_map(Step::MakeDirectory),
        1 => (path(), any::<bool>()).prop_map(|(path, all)| Step::Remove(path, all)),
        2 => (path(), path()).prop_map(|(from, to)| Step::Move(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Step::Copy(from, to)),
        1 => path().prop_map(Step::Read),
        1 => path().prop_map(Step::Stat),
        1 => path().prop_map(Step::List),
    ]
}

#[test]
fn files_of_a_session_are_like_those_of_a_directory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("an event loop");
    let server = runtime.block_on(Server::start());
    let session = runtime.block_on(server.session());
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let number = std::cell::Cell::new(0);
    let steps = prop::collection::vec(step(), 1..30);
    TestRunner::new(config)
        .run(&steps, |steps| {
            number.set(number.get() + 1);
            runtime.block_on(compare(&server, &session, number.get(), &steps));
            Ok(())
        })
        .expect("both are alike");
}

async fn compare(server: &Server, session: &Session, number: u32, steps: &[Step]) {
    let model = tempfile::tempdir().expect("a directory");
    let top = format!("case-{number}");
    put(server, session, &format!("{top}?mkdir"), "").await.json(200);
    let inside = |path: &str| format!("{top}/{}", encoded(path));
    for (done, step) in steps.iter().enumerate() {
        let reply = match step {
            Step::Write(path, content) => {
                put(server, session, &inside(path), content.clone()).await
            }
            Step::Append(path, content) => {
                put(server, session, &(inside(path) + "?append"), content.clone()).await
            }
            Step::MakeDirectory(path) => put(server, session, &(inside(path) + "?mkdir"), "").await,
            Step::Remove(path, all) => {
                let query = if *all { "?recursive" } else { "" };
                let path = at(session, &(inside(path) + query));
                server.send(server.request(Method::DELETE, &path, "")).await
            }
            Step::Move(from, to) | Step::Copy(from, to) => {
                let body =
                    json!({"to": format!("{top}/{to}"), "copy": matches!(step, Step::Copy(..))});
                if is_merge(model.path(), step) {
                    continue;
                }
                server.post(&at(session, &inside(from)), body).await
            }
            Step::Read(path) => get(server, session, &inside(path)).await,
            Step::Stat(path) => get(server, session, &(inside(path) + "?stat")).await,
            Step::List(path) => get(server, session, &(inside(path) + "?list")).await,
        };
        let expected = model_of(model.path(), step);
        let history = &steps[..=done];
        let seen = outcome(step, &reply);
        assert_eq!(seen, expected.map_err(|error| code(&error)), "{history:#?}\n{reply}");
    }
    let listed = get(server, session, &format!("{top}?list&recursive")).await.json(200);
    let mut seen = Vec::new();
    for file in listed["files"].as_array().expect("a list") {
        let path = text(&file["path"]);
        let content = match text(&file["kind"]) {
            "file" => Some(get(server, session, &inside(path)).await.text(200)),
            _ => None,
        };
        seen.push((path.to_owned(), content));
    }
    assert_eq!(seen, contents(model.path()), "{steps:#?}");
}

/// Copies a directory into an existing one: which entry fails first depends on their order.
fn is_merge(root: &Path, step: &Step) -> bool {
    let Step::Copy(from, to) = step else { return false };
    root.join(from).is_dir() && root.join(to).is_dir()
}

/// The path, percent-encoded for a URL.
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'/';
    path.bytes()
        .map(|byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// The content of the response, or its error code.
fn outcome(step: &Step, reply: &Answer) -> Result<String, String> {
    if !matches!(reply.status, 200 | 204) {
        return Err(text(&reply.json(reply.status)["error"]["code"]).to_owned());
    }
    let about = |file: &Value| match text(&file["kind"]) {
        // The size of a directory depends on the file system.
        "file" => format!("file {}", file["size"]),
        other => other.to_owned(),
    };
    Ok(match step {
        Step::Read(_) => reply.text(200),
        Step::Stat(_) => about(&reply.json(200)),
        Step::List(_) => {
            let listed = reply.json(200);
            let files = listed["files"].as_array().expect("a list").iter();
            files.map(|file| format!("{} {}\n", text(&file["path"]), text(&file["kind"]))).collect()
        }
        _ => String::new(),
    })
}

fn kind(path: &Path) -> &'static str {
    if path.is_dir() { "directory" } else { "file" }
}

fn model_of(root: &Path, step: &Step) -> io::Result<String> {
    let at = |path: &String| root.join(path);
    match step {
        Step::Write(path, content) => {
            make_parent(&at(path))?;
            if at(path).is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            fs::write(at(path), content)?;
        }
        Step::Append(path, content) => {
            make_parent(&at(path))?;
            let mut file = fs::File::options().append(true).create(true).open(at(path))?;
            io::Write::write_all(&mut file, content.as_bytes())?;
        }
        Step::MakeDirectory(path) => fs::create_dir_all(at(path))?,
        Step::Remove(path, all) => match fs::symlink_metadata(at(path))?.is_dir() {
            true if *all => fs::remove_dir_all(at(path))?,
            true => fs::remove_dir(at(path))?,
            false => fs::remove_file(at(path))?,
        },
        Step::Move(from, to) => fs::rename(at(from), at(to))?,
        Step::Copy(from, to) => copy(&at(from), &at(to))?,
        Step::Read(path) => {
            if at(path).is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            return fs::read_to_string(at(path));
        }
        Step::Stat(path) => {
            let found = fs::symlink_metadata(at(path))?;
            return Ok(match found.is_dir() {
                true => "directory".into(),
                false => format!("file {}", found.len()),
            });
        }
        Step::List(path) => {
            let mut found = Vec::new();
            for entry in fs::read_dir(at(path))? {
                let entry = entry?;
                let name = entry.file_name().into_string().expect("text");
                found.push((name, kind(&entry.path())));
            }
            // Sorted by name alone, before the kind is appended.
            found.sort();
            return Ok(found.iter().map(|(name, kind)| format!("{name} {kind}\n")).collect());
        }
    }
    Ok(String::new())
}

fn make_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().expect("below the root");
    match fs::metadata(parent) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(parent),
        Err(error) => Err(error),
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let is_directory = fs::symlink_metadata(from)?.is_dir();
    let parent = to.parent().expect("below the root");
    fs::read_dir(parent)?;
    match (is_directory, to.is_dir()) {
        (true, _) if parent.starts_with(from) => Err(io::ErrorKind::InvalidInput.into()),
        (true, _) if to.is_file() => Err(io::ErrorKind::NotADirectory.into()),
        (true, _) => copy_tree(from, to),
        (false, true) => Err(io::ErrorKind::IsADirectory.into()),
        (false, false) => {
            let content = fs::read(from)?;
            fs::write(to, content)
        }
    }
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (one, other) = (entry?.path(), to.to_owned());
        let other = other.join(one.file_name().expect("a name"));
        if one.is_dir() { copy_tree(&one, &other)? } else { fs::copy(&one, &other).map(drop)? }
    }
    Ok(())
}

fn code(error: &io::Error) -> String {
    use io::ErrorKind as Error;
    match error.kind() {
        Error::NotFound => "file_not_found",
        Error::NotADirectory => "not_a_directory",
        Error::IsADirectory => "is_a_directory",
        Error::DirectoryNotEmpty => "not_empty",
        Error::AlreadyExists => "exists",
        Error::InvalidInput => "invalid",
        other => panic!("unexpected: {other:?}"),
    }
    .to_owned()
}

fn contents(root: &Path) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below").display().to_string();
            if path.is_dir() {
                found.push((name, None));
                waiting.push(path);
            } else {
                found.push((name, Some(fs::read_to_string(path).expect("a file"))));
            }
        }
    }
    found.sort();
    found
}
