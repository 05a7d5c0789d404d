//! Images and packages with hostile Python code. The code runs when an image is loaded, before any
//! session asks for it, and must not reach more than code in a sandbox does.
//!
//! The payload (`hostile/payload.py`) makes Python run it in every possible way, and records what
//! it reached. Kernels start with the memory of the loaded interpreter, so a later session reads
//! that record.

use std::fs;
use std::path::Path;
use std::process::Command;

use belljar_sys::cgroup::Layout;
use belljar_sys::{ids, procfs};
use serde_json::{Value, json};

use belljar_testkit::attack_host::AttackHost;
use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::TestContext;
use belljar_testkit::wait::eventually_blocking;

const IMAGE: &str = "belljar-test/hostile:latest";

/// Runs `hostile/make.py WHAT`, which writes to a directory of the context.
fn make(context: &TestContext, what: &str, host: &AttackHost) -> String {
    let reply = |key: &str| {
        let found = host.env.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let config = json!({
        "files": reply("HOST_CANARY_PATHS").split(':').collect::<Vec<_>>(),
        "port": reply("HOST_PORT").parse::<u16>().expect("a port"),
        "abstract": reply("HOST_ABSTRACT_SOCKET"),
        "host_name": reply("HOST_HOSTNAME"),
        "caught": context.path("caught"),
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/hostile/make.py");
    let installation = context.path(what);
    fs::create_dir_all(&installation).expect("a directory");
    let made = Command::new("/usr/bin/python3")
        .arg(script)
        .args([what, installation.to_str().expect("text"), &config.to_string()])
        .output()
        .expect("python3 runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8_lossy(&made.stdout).trim().to_owned()
}

/// A server with a victim session, which has a secret and a running program, and the mark by which
/// that program is recognised.
fn with_victim(home: &Path, host: &AttackHost) -> (CliServer, String) {
    let served = CliServer::on_tcp_with(&[
        ("BELLJAR_HOME", home.to_str().expect("text")),
        ("BELLJAR_BACKEND", "native"),
        ("BELLJAR_IMAGES", "belljar-test/*"),
        ("BELLJAR_PRELOAD", "hostile_preloaded"),
        // No pool: the sessions below are to be created on request.
        ("BELLJAR_POOL", "0"),
    ]);
    let mark = format!("victim-{}", &host.canary[..12]);
    let id = served.create(&[]);
    let code = "import subprocess, sys\n\
                open('/session/secret', 'w').write('CANARY')\n\
                subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', 'MARK'])\n\
                print('there')";
    let code = code.replace("CANARY", &host.canary).replace("MARK", &mark);
    assert_eq!(served.ok(["exec", &id, "-c", &code]).stdout(), "there\n");
    (served, mark)
}

/// What the payload found in the loaded interpreter, and a session of `image` whose kernel started
/// with that interpreter's memory.
fn found_while_loading(served: &CliServer, image: &[&str]) -> (Vec<Value>, String) {
    let code = "import json, sys; print(json.dumps(getattr(sys, 'hostile', [])))";
    let mut found = Vec::new();
    let mut session = String::new();
    eventually_blocking(
        "a kernel begins with the memory of an interpreter in which the payload has run",
        || {
            session = served.create(image);
            let reply = served.ok(["exec", &session, "-c", code]).json();
            found = reply.as_array().expect("a list").clone();
            let loaded = found.iter().any(while_loading);
            if !loaded {
                // An ordinary kernel, started by executing Python. The same code ran there, as a
                // reference: it must find no problem.
                for outcome in &found {
                    assert_eq!(problems(outcome, "", ""), Vec::<String>::new(), "{outcome:#}");
                }
                served.ok(["stop", &session]);
            }
            loaded
        },
    );
    (found.into_iter().filter(while_loading).collect(), session)
}

fn while_loading(outcome: &Value) -> bool {
    outcome["argv"].as_array().is_some_and(|argv| argv.iter().any(|word| word == "preloaded"))
}

/// What the payload reached although it must not.
fn problems(outcome: &Value, mark: &str, canary: &str) -> Vec<String> {
    let strings = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
    };
    let mut problems = strings(&outcome["reached"]);
    // A search that failed proves nothing.
    problems.extend(strings(&outcome["failed"]).iter().map(|why| format!("failed: {why}")));
    let seen = &outcome["seen"];
    let processes = seen["processes"].as_object().expect("processes were looked for");
    if processes.len() > 6 {
        problems.push(format!("it sees {} processes", processes.len()));
    }
    if seen["interfaces"].as_array().is_some_and(|names| names.iter().any(|name| name == "eth0")) {
        problems.push("it sees the host's network".to_owned());
    }
    for word in [mark, canary].iter().filter(|word| !word.is_empty()) {
        if outcome.to_string().contains(*word) {
            problems.push(format!("it has seen {word}"));
        }
    }
    problems
}

/// Problems with rights and limits of the processes that this server started, seen from the host.
/// All processes but the spawner are in sandboxes.
fn seen_from_outside(served: &CliServer) -> Vec<String> {
    let layout = Layout::parse(&fs::read_to_string("/proc/self/mountinfo").expect("mounts"));
    let parents = procfs::parents();
    let in_sandboxes = procfs::descendants(&parents, served.pid());
    let in_sandboxes = in_sandboxes.iter().filter(|pid| parents.get(pid) != Some(&served.pid()));
    let mut seen = 0;
    let mut problems = Vec::new();
    for pid in in_sandboxes {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if status.is_empty() || procfs::is_zombie(*pid) {
            // It ended meanwhile.
            continue;
        }
        seen += 1;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
        };
        let command = procfs::command_line(*pid, 200).unwrap_or_default();
        let mut of_it = Vec::new();
        let mut claim = |holds: bool, what: String| {
            if !holds {
                of_it.push(format!("process {pid} ({command}): {what}"));
            }
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            claim(field(set) == "0000000000000000", format!("{set} is {}", field(set)));
        }
        claim(field("Seccomp") == "2", "has no seccomp filter".to_owned());
        claim(field("NoNewPrivs") == "1", "may gain privileges".to_owned());
        let own_levels = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let levels = |status: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            line.map_or(0, |line| line.split_whitespace().count())
        };
        let nested = levels(&status) > levels(&own_levels);
        claim(nested, "is in the host's PID namespace".to_owned());
        let uids: Vec<u32> =
            field("Uid").split_whitespace().filter_map(|id| id.parse().ok()).collect();
        let own = |uid: &u32| *uid >= ids::IdRange::USUAL.first + ids::IdRange::USUAL.block_size;
        claim(uids.iter().all(own), format!("has no ids of its own: {uids:?}"));
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let limit = |file: &str| {
            let directories = layout.directories_of(&cgroups);
            let files = directories.iter().filter_map(|at| fs::read_to_string(at.join(file)).ok());
            files.filter_map(|text| text.trim().parse::<u64>().ok()).min()
        };
        let memory = limit("memory.limit_in_bytes").or_else(|| limit("memory.max"));
        claim(memory.is_some_and(|bytes| bytes < 1 << 40), format!("memory limit: {memory:?}"));
        let pids = limit("pids.max");
        claim(pids.is_some_and(|count| count < 10_000), format!("limit of processes: {pids:?}"));
        // A process that is about to end has left its control groups already, so its limits mean nothing.
        let lives = fs::exists(format!("/proc/{pid}")).unwrap_or(false);
        if lives && !procfs::is_zombie(*pid) && procfs::command_line(*pid, 200) == Some(command) {
            problems.append(&mut of_it);
        }
    }
    assert!(seen > 1, "no process was found");
    problems
}

/// Asserts that the payload found only what it may find.
fn assert_harmless(
    served: &CliServer,
    image: &[&str],
    ways: &[&str],
    mark: &str,
    host: &AttackHost,
) {
    let (found, session) = found_while_loading(served, image);
    for way in ways {
        assert!(found.iter().any(|outcome| outcome["way"] == *way), "{way} was not tried");
    }
    let mut all = seen_from_outside(served);
    for outcome in &found {
        let way = outcome["way"].as_str().unwrap_or_default();
        let found = problems(outcome, mark, &host.canary);
        all.extend(found.iter().map(|problem| format!("{way}: {problem}")));
    }
    let left = "import os; print(os.path.exists('/tmp/hostile-leftover'))";
    let left = served.ok(["exec", &session, "-c", left]);
    if left.stdout() != "False\n" {
        all.push("a session finds what was written while its image was loaded".to_owned());
    }
    all.dedup();
    assert!(all.is_empty(), "code of an image reached:\n  {}", all.join("\n  "));
}

#[test]
fn a_hostile_image_reaches_nothing_while_it_is_loaded() {
    let host = AttackHost::start();
    let context = TestContext::new();
    let home = context.path("home");
    make(&context, "tree", &host);
    let context = context.env("BELLJAR_HOME", home.to_str().expect("text"));
    let imported = context.call(["image", "import", "tree", "--name", IMAGE]);
    assert_eq!(imported.code, Some(0), "{imported}");
    let (served, mark) = with_victim(&home, &host);
    let ways = ["interpreter", "pth", "sitecustomize", "preload"];
    assert_harmless(&served, &["--image", IMAGE], &ways, &mark, &host);
}

#[test]
fn a_hostile_package_that_setup_installed_reaches_nothing() {
    let host = AttackHost::start();
    let context = TestContext::new();
    let home = context.path("home");
    let wheel = make(&context, "wheel", &host);
    let context = context
        .env("BELLJAR_HOME", home.to_str().expect("text"))
        .env("BELLJAR_PACKAGES", &wheel)
        // The wheel is the only package to install, and has no dependencies.
        .env("PIP_NO_INDEX", "1");
    let made = context.call(["setup"]);
    assert_eq!(made.code, Some(0), "{made}");
    let (served, mark) = with_victim(&home, &host);
    // Neither setup nor the server may run code of the package outside of a sandbox.
    let caught = fs::read_to_string(context.path("caught")).unwrap_or_default();
    assert_eq!(caught, "", "code of a package ran on the host");
    let ways = ["pth", "sitecustomize", "preload"];
    assert_harmless(&served, &[], &ways, &mark, &host);
}
