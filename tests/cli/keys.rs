//! `belljar key`: keys are shown once and revoked for good, and every step is in the audit log.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;
use rusqlite::Connection;
use serde_json::Value;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::{Finished, TestContext};
use belljar_testkit::wait::eventually_blocking;

/// A context with its own state directory, which does not exist yet.
fn context() -> TestContext {
    let context = TestContext::new();
    let state = context.path("state").display().to_string();
    context.env("BELLJAR_STATE_DIR", &state)
}

fn create(context: &TestContext, args: &[&str]) -> Value {
    let finished = context.call([&["key", "create", "--json"], args].concat());
    assert_eq!(finished.code, Some(0), "{finished}");
    finished.json()
}

fn list(context: &TestContext) -> Vec<Value> {
    let keys = context.call(["key", "list", "--json"]).json();
    keys["keys"].as_array().expect("a list").clone()
}

fn audit(context: &TestContext) -> Vec<Value> {
    let log = fs::read_to_string(context.path("state/audit.log")).expect("an audit log");
    log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

/// The output without ids, secrets and times, which differ between runs.
fn redacted(finished: &Finished) -> String {
    let mut text = finished.to_string();
    for (prefix, digits) in [("key_", 32), ("bjk_", 64)] {
        let parts: Vec<&str> = text.split(prefix).collect();
        let hide = |part: &&str| match part.bytes().take_while(u8::is_ascii_hexdigit).count() {
            count if count == digits => format!("[...]{}", &part[count..]),
            _ => (*part).to_owned(),
        };
        let rest = parts[1..].iter().map(hide);
        text = std::iter::once(parts[0].to_owned()).chain(rest).collect::<Vec<_>>().join(prefix);
    }
    let is_time = |word: &str| word.len() >= 24 && word.as_bytes()[10] == b'T';
    let words = text
        .split(' ')
        .map(|word| if is_time(word) { format!("[TIME]{}", &word[24..]) } else { word.to_owned() });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_key_is_shown_once_and_only_its_hash_is_kept() {
    let context = context();
    let made = context.call(["key", "create", "--name", "ci"]);
    assert_snapshot!(redacted(&made), @r"
    exit 0
    --- stdout
    bjk_[...]
    --- stderr
    Created key_[...] for tenant default. This is the key; it is not shown again:
    It is the only valid key: from now on the server refuses requests without a key.
    `belljar key revoke --allow-keyless key_[...]` allows local use without keys again.
    ");
    let second = context.call(["key", "create", "--name", "laptop"]);
    assert_snapshot!(redacted(&second), @r"
    exit 0
    --- stdout
    bjk_[...]
    --- stderr
    Created key_[...] for tenant default. This is the key; it is not shown again:
    ");
    assert_ne!(made.stdout, second.stdout);
    let secret = made.stdout();
    let secret = secret.trim();
    for entry in fs::read_dir(context.path("state")).expect("the state directory").flatten() {
        let contents = fs::read(entry.path()).expect("a file");
        let found = contents.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the key is in {:?}", entry.path());
    }
    let mode = fs::metadata(context.path("state")).expect("it was made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "users' code is in there");
}

#[test]
fn lists_show_limits_and_never_hashes_or_secrets() {
    let context = context();
    assert_snapshot!(context.call(["key", "list"]), @r"
    exit 0
    --- stdout
    --- stderr
    There are no keys; `belljar key create --name NAME` creates one.
    ");
    assert!(list(&context).is_empty());
    assert!(!context.path("state").exists(), "who only looks makes nothing");

    let limits = ["--requests-per-minute", "60", "--max-sessions", "5"];
    let more = ["--max-memory", "4G", "--max-pids", "1000", "--tenant", "acme"];
    let made = create(&context, &[&["--name", "agent of ä"], &limits[..], &more].concat());
    assert_eq!(
        made["limits"],
        serde_json::json!({
            "requests_per_minute": 60, "sessions": 5, "memory": 4_294_967_296_u64, "pids": 1000
        })
    );
    let plain = create(&context, &["--name", "ci"]);
    context.call(["key", "revoke", text(&plain["id"])]);
    let table = context.call(["key", "list"]);
    assert_snapshot!(redacted(&table), @r"
    exit 0
    --- stdout
    id                                    name        tenant   per minute  sessions  asleep  memory    pids  created                   revoked
    ------------------------------------  ----------  -------  ----------  --------  ------  --------  ----  ------------------------  ------------------------
    key_[...]  agent of ä  acme     60          5         5       4.00 GiB  1000  [TIME]  -
    key_[...]  ci          default  -           -         -       -         -     [TIME]  [TIME]
    --- stderr
    ");
    let keys = list(&context);
    assert_eq!(keys.len(), 2);
    for key in keys {
        let fields: Vec<_> = key.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(fields, ["created", "id", "limits", "name", "revoked", "tenant"]);
    }
}

#[test]
fn a_revoked_key_stays_revoked() {
    let context = context();
    let (first, last) = (create(&context, &["--name", "a"]), create(&context, &["--name", "b"]));
    let id = text(&first["id"]);
    assert_snapshot!(redacted(&context.call(["key", "revoke", id])), @r"
    exit 0
    --- stdout
    Revoked key_[...].
    --- stderr
    ");
    assert_snapshot!(redacted(&context.call(["key", "revoke", id])), @r"
    exit 0
    --- stdout
    key_[...] was revoked before, at [TIME].
    --- stderr
    ");
    let revoked = context.call(["key", "revoke", "--json", text(&last["id"])]);
    assert!(revoked.json()["revoked"].is_string(), "{revoked}");
    assert!(revoked.stderr().contains("no valid key is left"), "{revoked}");
    assert!(list(&context).iter().all(|key| key["revoked"].is_string()));
}

#[test]
fn after_the_last_key_there_is_a_way_back_to_local_use_without_keys() {
    let served = CliServer::on_tcp();
    let context = served.context();
    let is_let_in = || served.call(["list"]).code == Some(0);
    let (first, last) = (create(context, &["--name", "a"]), create(context, &["--name", "b"]));
    let (first, last) = (text(&first["id"]), text(&last["id"]));
    eventually_blocking("keys are wanted", || !is_let_in());

    let refused = context.call(["key", "revoke", "--allow-keyless", first]);
    assert_eq!(refused.code, Some(125), "{refused}");
    assert!(refused.stderr().contains(&format!("valid keys first: {last}")), "{refused}");
    assert!(list(context).iter().all(|key| key["revoked"].is_null()), "nothing has changed");
    let unknown = context.call(["key", "revoke", "--allow-keyless", "key_0123"]);
    assert!(unknown.stderr().contains("there is no key `key_0123`"), "{unknown}");

    context.call(["key", "revoke", first]);
    let revoked = context.call(["key", "revoke", last]);
    assert_snapshot!(redacted(&revoked), @r"
    exit 0
    --- stdout
    Revoked key_[...].
    --- stderr
    belljar: warning: no valid key is left; the server refuses all requests until `belljar key create --name NAME` creates one, or `belljar key revoke --allow-keyless` allows local use without keys
    ");
    assert!(!is_let_in(), "revoking alone opens nothing");
    assert_snapshot!(context.call(["key", "revoke", "--allow-keyless"]), @r"
    exit 0
    --- stdout
    --- stderr
    A server on loopback or a UNIX socket needs no key any more; everyone who can reach it there may use it.
    ");
    eventually_blocking("no key is needed", is_let_in);
    assert!(list(context).is_empty());
    let log = audit(context);
    assert_eq!(text(&log[log.len() - 1]["action"]), "keyless_allow");

    // Revoke and allow in one step, then again with nothing to do.
    let only = create(context, &["--name", "c"]);
    eventually_blocking("keys are wanted again", || !is_let_in());
    let both = context.call(["key", "revoke", "--allow-keyless", text(&only["id"])]);
    assert!(both.stdout().starts_with("Revoked"), "{both}");
    eventually_blocking("no key is needed again", is_let_in);
    let nothing = context.call(["key", "revoke", "--allow-keyless"]);
    assert_eq!(nothing.stderr(), "There are no keys; none is needed.\n");
}

#[test]
fn a_key_that_does_not_exist_cannot_be_revoked() {
    let context = context();
    assert_snapshot!(context.call(["key", "revoke", "key_0123"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no key `key_0123`: there are no keys at all
    ");
    let made = create(&context, &["--name", "a"]);
    assert_snapshot!(context.call(["key", "revoke", "key_0123"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no key `key_0123`; `belljar key list` shows all
    ");
    let by_secret = context.call(["key", "revoke", text(&made["secret"])]);
    assert_snapshot!(by_secret, @r"
    exit 125
    --- stdout
    --- stderr
    belljar: give the id of a key, such as key_5a1f...; `belljar key list` shows them
    ");
    assert_eq!(list(&context)[0]["revoked"], Value::Null);
    assert_eq!(audit(&context).len(), 1, "what was not done is not in the log");
}

#[test]
fn keys_made_and_revoked_are_in_the_audit_log() {
    let context = context();
    let made = create(&context, &["--name", "ci", "--tenant", "acme"]);
    let id = text(&made["id"]);
    context.call(["key", "revoke", id]);
    context.call(["key", "revoke", id]);
    let lines = audit(&context);
    let reply = |line: &Value| {
        let (action, tenant) = (text(&line["action"]), text(&line["tenant"]));
        format!("{tenant} {action} {}: {}", text(&line["outcome"]), text(&line["detail"]))
    };
    let uid = belljar_sys::privileges::own_ids().0;
    let detail = format!("{id} named \"ci\", on the command line by uid {uid}");
    assert_eq!(
        lines.iter().map(reply).collect::<Vec<_>>(),
        [
            format!("acme key_create created: {detail}"),
            format!("acme key_revoke revoked: {detail}"),
        ]
    );
    let log = fs::read_to_string(context.path("state/audit.log")).expect("text");
    assert!(!log.contains(text(&made["secret"])));
}

#[test]
fn a_wrong_flag_is_named() {
    let context = context();
    for (args, complaint) in [
        (&["--name", ""][..], "expected a name that is not empty"),
        (&["--name", "  "], "expected a name that is not empty"),
        (&["--name", "a\nb"], "expected at most 100 printable characters"),
        (&[], "--name <NAME>"),
        (&["--name", "a", "--tenant", ""], "expected a name that is not empty"),
        (&["--name", "a", "--requests-per-minute", "0"], "0 is not in 1.."),
        (&["--name", "a", "--max-sessions", "some"], "invalid value 'some'"),
        (&["--name", "a", "--max-memory", "lots"], "expected a size such as 512M or 2G"),
        (&["--name", "a", "--max-pids", "-1"], "unexpected argument '-1'"),
    ] {
        let finished = context.call([&["key", "create"], args].concat());
        assert_eq!(finished.code, Some(2), "{args:?}: {finished}");
        assert!(finished.stderr().contains(complaint), "{args:?}: {finished}");
    }
    assert!(!context.path("state").exists());
}

#[test]
fn a_state_directory_that_cannot_be_used_is_trouble() {
    let context = TestContext::new().file("file", "").env("BELLJAR_STATE_DIR", "file");
    assert_snapshot!(context.call(["key", "create", "--name", "a"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to create the state directory `[CWD]/file`: File exists (os error 17)
    ");
    assert_snapshot!(context.call(["key", "list"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to open the database `[CWD]/file/belljar.db`: Not a directory (os error 20)
    ");
    // Not even root can write there.
    let context = TestContext::new().env("BELLJAR_STATE_DIR", "/proc/sys/belljar");
    let finished = context.call(["key", "create", "--name", "a"]);
    assert_eq!(finished.code, Some(125), "{finished}");
    assert!(finished.stderr().contains("failed to create the state directory"), "{finished}");
}

#[test]
fn a_damaged_database_is_left_alone() {
    let context = context().file("state/belljar.db", "not a database at all, but long enough");
    for args in [&["key", "create", "--name", "a"][..], &["key", "list"], &["usage"]] {
        let finished = context.call(args);
        assert_eq!(finished.code, Some(125), "{finished}");
        assert!(finished.stderr().contains("belljar.db` is damaged"), "{finished}");
        assert_eq!(finished.stdout(), "");
    }
    let left = fs::read_to_string(context.path("state/belljar.db")).expect("it is still there");
    assert_eq!(left, "not a database at all, but long enough");
}

#[test]
fn a_locked_database_is_said_to_be_locked() {
    let context = context();
    create(&context, &["--name", "a"]);
    let other = Connection::open(context.path("state/belljar.db")).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    let finished = context.call(["key", "create", "--name", "b"]);
    assert_eq!(finished.code, Some(125), "{finished}");
    assert!(finished.stderr().contains("database is locked"), "{finished}");
    assert_eq!(finished.stdout(), "", "no key was made");
    assert_eq!(list(&context).len(), 1, "reading goes on");
}

#[test]
fn many_at_once_all_make_a_key() {
    let context = context();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let context = &context;
            scope.spawn(move || create(context, &["--name", &number.to_string()]));
        }
    });
    assert_eq!(list(&context).len(), 8);
    assert_eq!(audit(&context).len(), 8);
}
