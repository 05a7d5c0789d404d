//! `belljar usage`: the usage that the server has stored.

use insta::assert_snapshot;
use rusqlite::Connection;

use belljar_testkit::command::TestContext;

/// A state directory with the daily usage of two tenants, some of it long ago.
fn context() -> TestContext {
    let context = TestContext::new();
    let state = context.path("state").display().to_string();
    let context = context.env("BELLJAR_STATE_DIR", &state);
    assert_eq!(context.call(["key", "create", "--name", "a"]).code, Some(0));
    Connection::open(context.path("state/belljar.db"))
        .and_then(|database| {
            database.execute_batch(
                "INSERT INTO usage (tenant, day, sessions, runs, ok, error, timeout, interrupted,
                     crashed, oom, cpu_us, memory_mib_ms, bytes_in, bytes_out) VALUES
                 ('acme', '2024-02-28', 1, 0, 5, 0, 0, 0, 0, 0, 1000000, 0, 10, 20),
                 ('acme', '2024-02-29', 3, 7, 40, 5, 4, 3, 2, 1, 12345678, 3686400000, 1536, 5),
                 ('zoo', '2024-02-29', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                 ('zoo', date('now'), 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                 ('zoo', date('now', '-29 days'), 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                 ('zoo', date('now', '-32 days'), 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
            )
        })
        .expect("the table is as we know it");
    context
}

#[test]
fn a_line_per_tenant_and_day() {
    let context = context();
    let acme = ["usage", "--since", "2024-02-01", "--tenant", "acme"];
    assert_snapshot!(context.call(acme), @r"
    exit 0
    --- stdout
    day         tenant  sessions  runs  crashed  error  interrupted  ok  oom  timeout  cpu s  memory GiB s  in        out
    ----------  ------  --------  ----  -------  -----  -----------  --  ---  -------  -----  ------------  --------  ----
    2024-02-28  acme    1         0     0        0      0            5   0    0        1.0    0.0           10 B      20 B
    2024-02-29  acme    3         7     2        5      3            40  1    4        12.3   3600.0        1.50 KiB  5 B
    --- stderr
    ");
    let json = context.call([&acme[..], &["--json"]].concat()).json();
    assert_eq!(json["since"], "2024-02-01");
    assert_snapshot!(serde_json::to_string_pretty(&json["usage"][1]).expect("JSON"), @r#"
    {
      "bytes_in": 1536,
      "bytes_out": 5,
      "cpu_seconds": 12.345678,
      "day": "2024-02-29",
      "execs": {
        "crashed": 2,
        "error": 5,
        "interrupted": 3,
        "ok": 40,
        "oom": 1,
        "timeout": 4
      },
      "memory_gib_seconds": 3600.0,
      "runs": 7,
      "sessions": 3,
      "tenant": "acme"
    }
    "#);
    let all = context.call(["usage", "--since", "2024-02-29", "--json"]).json();
    let all = all["usage"].as_array().expect("a list").iter();
    let tenants: Vec<_> = all.map(|row| row["tenant"].as_str().expect("a name")).collect();
    assert_eq!(tenants, ["acme", "zoo", "zoo", "zoo", "zoo"]);
}

#[test]
fn the_last_thirty_days_are_shown_by_default() {
    let recent = context().call(["usage", "--json"]).json();
    assert_eq!(recent["usage"].as_array().map(Vec::len), Some(2), "{recent:#}");
}

#[test]
fn nothing_used_is_said() {
    let nothing = ["usage", "--since", "2024-03-01", "--tenant", "acme"];
    assert_snapshot!(context().call(nothing), @r"
    exit 0
    --- stdout
    --- stderr
    Nothing was used since 2024-03-01.
    ");
    let fresh = TestContext::new();
    let state = fresh.path("state").display().to_string();
    let fresh = fresh.env("BELLJAR_STATE_DIR", &state);
    let empty = fresh.call(["usage", "--since", "2024-03-01", "--json"]);
    assert_eq!(empty.json(), serde_json::json!({"since": "2024-03-01", "usage": []}));
    assert!(!fresh.path("state").exists(), "who only looks makes nothing");
}

#[test]
fn a_day_that_is_none_is_refused() {
    let context = TestContext::new();
    let complaint = "expected a day such as 2026-01-31";
    for day in ["yesterday", "2026-1-1", "2026-13-01", "2026-02-30"] {
        let finished = context.call(["usage", "--since", day]);
        assert_eq!(finished.code, Some(2), "{finished}");
        let expected = format!("invalid value '{day}' for '--since <YYYY-MM-DD>': {complaint}");
        assert!(finished.stderr().contains(&expected), "{finished}");
    }
}
