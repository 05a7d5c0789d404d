//! `belljar session datasets | upload | stage | export`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use belljar_sys::privileges;
use insta::assert_snapshot;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::Finished;

/// The output without tokens and without the times in names of exports.
fn steady(finished: &Finished) -> String {
    let text = finished.to_string();
    let lines = text.lines().map(|line| {
        let line = match line.split_once("?token=") {
            Some((link, _)) => format!("{}?token=[TOKEN]", &link[..2]),
            None => line.to_owned(),
        };
        match line.split_once("_20") {
            Some((name, rest)) => {
                let rest = rest.split_once('Z').map_or(rest, |(_, rest)| rest);
                // Exports of the same second also have a number.
                let rest = rest.trim_start_matches(|c: char| c == '-' || c.is_ascii_digit());
                format!("{name}_[TIME]{rest}\n")
            }
            None => line + "\n",
        }
    });
    lines.collect()
}

#[test]
fn a_file_is_uploaded_once_and_read_by_code() {
    let served = CliServer::on_tcp();
    let id = served.create(&["--key", "demo", "--datasets", "API"]);
    assert_snapshot!(served.call(["datasets", "demo"]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: there are no datasets yet
    ");
    let context = served.context();
    let write =
        |name: &str, content: &[u8]| fs::write(context.path(name), content).expect("a file");
    write("sales.csv", b"a,b\n1,2\n3,4\n");
    write("empty.csv", b"");
    let twenty: Vec<u8> = b"\x00123456789".repeat(2_000_000);
    write("twenty.bin", &twenty);

    assert_snapshot!(served.call(["upload", "demo", "sales.csv"]), @r"
    exit 0
    --- stdout
    /session/data/sales.csv: 12 B
    --- stderr
    ");
    assert_snapshot!(served.call(["upload", &id, "empty.csv"]), @r"
    exit 0
    --- stdout
    /session/data/empty.csv: 0 B
    --- stderr
    ");
    assert_snapshot!(served.call(["upload", &id, "empty.csv"]), @r"
    exit 0
    --- stdout
    /session/data/empty.csv: 0 B
    --- stderr
    belljar: the server has it already; nothing was sent
    ");
    assert_snapshot!(served.call(["upload", &id, "twenty.bin", "--name", "2024/ü b.bin"]), @r"
    exit 0
    --- stdout
    /session/data/2024/ü b.bin: 19.07 MiB
    --- stderr
    ");
    assert_snapshot!(served.call(["upload", &id, "twenty.bin"]), @r"
    exit 0
    --- stdout
    /session/data/twenty.bin: 19.07 MiB
    --- stderr
    belljar: the server has it already; nothing was sent
    ");
    let code = "import hashlib; print(hashlib.sha256(open('/session/data/2024/ü b.bin', 'rb').read()).hexdigest()); print(open('/session/data/sales.csv').read())";
    let seen = served.ok(["exec", "demo", "-c", code]).stdout();
    let staged = served.ok(["upload", &id, "twenty.bin", "--json"]).json();
    assert_eq!(staged["cached"], true);
    assert_eq!(seen, format!("{}\na,b\n1,2\n3,4\n\n", staged["sha256"].as_str().expect("a hash")));
    // Another session of the same tenant has it too.
    let other = served.create(&["--datasets", "API"]);
    assert!(served.ok(["upload", &other, "twenty.bin"]).stderr().contains("has it already"));

    let table = served.ok(["datasets", "demo"]).stdout();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(
        rows[0],
        ["name", "status", "size", "format", "rows", "columns", "modified", "path"]
    );
    assert_eq!(rows[2][..6], ["2024/ü b.bin", "LOADED", "19.07 MiB", "binary", "-", "-"]);
    assert_eq!(rows[4][..6], ["sales.csv", "LOADED", "12 B", "csv", "2", "2"]);
    let json = served.ok(["datasets", "demo", "--json"]).json();
    assert_eq!(json["datasets"][2]["columns"], serde_json::json!(["a", "b"]));
    assert_eq!(json["access"], "API");
}

#[test]
fn what_cannot_be_uploaded_is_said() {
    let served = CliServer::on_tcp_with(&[("BELLJAR_DATASET_SIZE", "1M")]);
    let context = served.context();
    let id = served.create(&["--datasets", "API"]);
    let without = served.create(&[]);
    fs::write(context.path("a.csv"), "a\n").expect("a file");
    fs::write(context.path("large.bin"), vec![7; 20_000_000]).expect("a file");
    assert_snapshot!(served.call(["upload", &id, "missing.csv"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to read `missing.csv`: No such file or directory (os error 2)
    ");
    assert_snapshot!(served.call(["upload", &id, "."]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `.` is a directory; upload its files one by one
    ");
    assert_snapshot!(served.call(["upload", &id, "/proc/self/mem"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to read `/proc/self/mem`: Input/output error (os error 5)
    ");
    assert_snapshot!(served.call(["upload", "nobody", "a.csv"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no session with the id or key `nobody`; `belljar session list` shows all
    ");
    assert_snapshot!(served.call(["upload", &without, "a.csv"]), @r#"
    exit 125
    --- stdout
    --- stderr
    belljar: session `ses_[ID]` takes no datasets: create it with "datasets": "API" to stage them
    "#);
    assert_snapshot!(served.call(["upload", &id, "a.csv", "--name", "../a"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: dataset: the name of a dataset is a path of up to 8 names, each of 1 to 200 bytes, without control characters, `\` or a dot at its beginning
    ");
    assert_snapshot!(served.call(["upload", &id, "large.bin"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: it is larger than the limit of 1048576 bytes (BELLJAR_DATASET_SIZE)
    ");
    assert_snapshot!(served.call(["datasets", &without]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: this session has no datasets: it was created without access to any
    ");
    assert_snapshot!(served.call(["datasets", "nobody"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no session with the id or key `nobody`; `belljar session list` shows all
    ");
    assert_snapshot!(served.call(["stage", &id, "sales/q1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to fetch the dataset: there is no source for dataset `sales/q1`; add an entry with its name or a prefix of it to BELLJAR_DATASET_SOURCES
    ");
    // Files whose size is reported as 0, as in `/proc`, are read to their end.
    let reply = served.ok(["upload", &id, "/proc/version", "--name", "version"]).stdout();
    assert!(reply.starts_with("/session/data/version: ") && !reply.contains(" 0 B"), "{reply}");
}

#[test]
fn files_of_others_stay_theirs() {
    let served = CliServer::on_tcp();
    let context = served.context();
    let id = served.create(&["--datasets", "API"]);
    let code = "open('/session/artifacts/x.txt', 'w').close()";
    let artifact = served.leave(&id, code).remove(0);
    fs::write(context.path("secret.csv"), "a\n").expect("a file");
    fs::create_dir(context.path("closed")).expect("a directory");
    let mode = |name: &str, mode| {
        fs::set_permissions(context.path(name), fs::Permissions::from_mode(mode)).expect("ours");
    };
    mode(".", 0o755);
    mode("secret.csv", 0o000);
    mode("closed", 0o555);
    mode("state", 0o000);
    // Root may read everything, so run as another user.
    let nobody = |args: &[&str]| {
        let mut command = context.belljar(args);
        if privileges::own_ids().0 == 0 {
            let copy = context.path("belljar");
            if !copy.exists() {
                fs::copy(command.get_program(), &copy).expect("a copy");
            }
            command = context.program("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy).args(args);
        }
        context.finish(&mut command)
    };
    assert_snapshot!(nobody(&["session", "upload", &id, "secret.csv"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to read `secret.csv`: Permission denied (os error 13)
    ");
    assert_snapshot!(nobody(&["artifacts", "get", &artifact, "-o", "closed"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to write `closed/art_[ID].part`: Permission denied (os error 13)
    ");
    assert_snapshot!(nobody(&["artifacts", "verify"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to look for the database of artifacts `[CWD]/state/artifacts.db`: Permission denied (os error 13)
    ");
    mode("state", 0o700);
}

#[test]
fn an_upload_survives_a_killed_server() {
    let mut served = CliServer::on_socket();
    let id = served.create(&["--datasets", "API"]);
    let content: Vec<u8> = b"9876543210".repeat(2_000_000);
    fs::write(served.context().path("twenty.bin"), &content).expect("a file");
    served.kill();
    let socket = served.context().path("socket");
    fs::remove_file(&socket).expect("it was left");
    // A server that receives a part of the upload, and then disconnects.
    let half = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let context = served.context();
    let mut command = context.belljar(["session", "upload", &id, "twenty.bin"]);
    let running = context.leave_running(&mut command);
    let answers = [
        format!(
            "{{\"id\":\"{id}\",\"state\":\"ready\",\"image\":\"\",\"storage\":\"TMPFS\",\
                 \"datasets\":\"API\",\"limits\":{{\"memory\":1,\"cpus\":1.0,\"pids\":1,\"tmpfs\":1}},\
                 \"network\":\"none\",\"ttl\":1,\"created\":\"\",\"last_used\":\"\",\"expires\":\"\",\
                 \"running\":0,\"queued\":0,\"execs\":0}}"
        ),
        "{\"error\":{\"code\":\"content_unknown\",\"message\":\"unknown\"}}".to_owned(),
    ];
    let (mut stream, _) = half.accept().expect("a client");
    for (status, answer) in ["200 OK", "404 Not Found"].iter().zip(&answers) {
        read_request(&mut stream);
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{answer}", answer.len())
            .expect("it listens");
    }
    read_request(&mut stream);
    write!(stream, "HTTP/1.1 100 Continue\r\n\r\n").expect("it listens");
    stream.read_exact(&mut vec![0; 1 << 20]).expect("a megabyte of it");
    drop((stream, half));
    fs::remove_file(&socket).expect("it was ours");
    // Long enough for the client to try to reach the server and fail.
    thread::sleep(Duration::from_millis(300));
    served.start();
    assert_snapshot!(running.finish(), @r"
    exit 0
    --- stdout
    /session/data/twenty.bin: 19.07 MiB
    --- stderr
    belljar: lost the server; waiting for it for 60 seconds
    belljar: the server is back
    ");
}

/// Reads the head of a request. Requests here have no body.
fn read_request(stream: &mut impl Read) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a request");
        head.push(byte[0]);
    }
}

#[test]
fn the_server_fetches_what_its_sources_have() {
    let source = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = source.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for mut stream in source.incoming().flatten() {
            read_request(&mut stream);
            let body = "a,b\n1,2\n";
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/csv\r\nconnection: close\r\n";
            let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
        }
    });
    let sources = format!(
        "{{\"sales/\": {{\"url\": \"http://{address}/{{name}}.csv\", \"allow\": [\"127.0.0.1\"]}}}}"
    );
    let served = CliServer::on_tcp_with(&[("BELLJAR_DATASET_SOURCES", &sources)]);
    let id = served.create(&["--datasets", "API"]);
    assert_snapshot!(served.call(["stage", &id, "sales/q1.csv"]), @r"
    exit 0
    --- stdout
    /session/data/sales/q1.csv: 8 B
    --- stderr
    ");
    assert_snapshot!(served.call(["stage", &id, "sales/q1.csv"]), @r"
    exit 0
    --- stdout
    /session/data/sales/q1.csv: 8 B
    --- stderr
    belljar: the server has it already; --refresh asks the source again
    ");
    let fresh = served.ok(["stage", &id, "sales/q1.csv", "--refresh", "--json"]).json();
    assert_eq!((&fresh["status"], &fresh["source"]), (&"LOADED".into(), &"sales/q1.csv".into()));
    assert_snapshot!(served.call(["stage", &id, "other/q1.csv"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to fetch the dataset: there is no source for dataset `other/q1.csv`; add an entry with its name or a prefix of it to BELLJAR_DATASET_SOURCES
    ");
}

#[test]
fn files_are_exported_with_the_time_in_their_names() {
    let served = CliServer::on_socket();
    let id = served.create(&["--datasets", "API"]);
    assert_snapshot!(served.call(["export", &id]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: there is nothing in /session/data
    ");
    let write = "open('/session/data/new.csv', 'w').write('a\\n1\\n'); None";
    served.ok(["exec", &id, "-c", write]);
    let exported = served.call(["export", &id]);
    assert_snapshot!(steady(&exported), @r"
    exit 0
    --- stdout
    new.csv (4 B) -> [CWD]/exports/new_[TIME].csv
      `belljar artifacts get art_[ID]`
    --- stderr
    ");
    let json = served.ok(["export", &id, "new.csv", "--json"]).json();
    let path = json["exports"][0]["host_path"].as_str().expect("a path");
    assert_eq!(fs::read(path).expect("a file"), b"a\n1\n");
    let artifact = json["exports"][0]["id"].as_str().expect("an id");
    assert_eq!(served.artifacts(["get", artifact, "-o", "-"]).stdout(), "a\n1\n");
    assert_snapshot!(steady(&served.call(["export", &id, "new.csv", "none.csv"])), @r"
    exit 125
    --- stdout
    new.csv (4 B) -> [CWD]/exports/new_[TIME].csv
      `belljar artifacts get art_[ID]`
    --- stderr
    belljar: not exported: /session/data/none.csv (there is no such file)
    ");

    let served = CliServer::on_tcp();
    let id = served.create(&["--datasets", "API"]);
    served.ok(["exec", &id, "-c", write]);
    let exported = served.ok(["export", &id]).stdout();
    assert!(exported.contains("\n  http://127.0.0.1:"), "{exported}");
}
