//! A server with its records in Postgres, and the move from SQLite.

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::postgres::Postgres;

/// The variables of a session survive: the new server finds its sandbox again.
#[test]
fn a_server_moves_to_postgres_with_its_sessions() {
    let mut served = CliServer::on_socket();
    let id = served.create(&["--key", "demo"]);
    let code = "x = 6 * 7; open('/session/artifacts/a.txt', 'w').write('kept')";
    let artifacts = served.leave(&id, code);
    let database = Postgres::shared().database();

    let refused = served.context().call(["migrate", "--to", &database]);
    assert_eq!(refused.code, Some(125), "{refused}");
    assert!(refused.stderr().contains("another belljar server"), "{refused}");
    let bad = served.context().call(["migrate", "--to", "postgres://me:hunter2@host:x/y"]);
    assert_eq!(bad.code, Some(125), "{bad}");
    assert!(!bad.to_string().contains("hunter2"), "{bad}");

    served.kill();
    for _ in 0..2 {
        let moved = served.context().call(["migrate", "--to", &database]);
        assert_eq!(moved.code, Some(0), "{moved}");
        assert!(moved.stdout().contains("sessions"), "{moved}");
    }
    served.set_env("BELLJAR_DATABASE_URL", &database);
    served.start();
    let answer = served.ok(["exec", "demo", "-c", "x"]);
    assert_eq!(answer.stdout(), "42\n");
    let listed = served.artifacts(["list", "--json"]);
    assert!(listed.stdout().contains(&artifacts[0]), "{listed}");
    assert_eq!(served.artifacts(["verify"]).code, Some(0));

    // A killed server finds its sessions again, as with SQLite.
    served.kill();
    served.start();
    assert_eq!(served.ok(["exec", "demo", "-c", "x + 1"]).stdout(), "43\n");
    let made = served.context().call(["key", "create", "--name", "ci", "--json"]);
    assert_eq!(made.code, Some(0), "{made}");
    assert_eq!(Postgres::shared().sql(&database, "SELECT name FROM keys"), "ci");
    let (owners, sessions) = (
        Postgres::shared().sql(&database, "SELECT count(*) FROM nodes"),
        Postgres::shared().sql(&database, "SELECT count(*) FROM sessions WHERE owner IS NOT NULL"),
    );
    assert_eq!((owners.as_str(), sessions.as_str()), ("1", "1"));
}
