//! What only the container backend has: labels, images, an engine that may refuse.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::backend::{Backend, BackendSite, SHELL_IMAGE, container_of, containers, docker};
use belljar_testkit::client::Answer;
use belljar_testkit::installation::Installation;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

fn on() -> Option<Backend> {
    Backend::Docker.if_available()
}

#[track_caller]
fn failed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !said.contains("panicked"), "{output:?}");
    said
}

/// The error of `belljar run` on an installation that cannot run anything.
#[track_caller]
fn run_refusal(installation: &Installation) -> String {
    failed(&installation.belljar(&["run", "-c", "1"]).output().expect("belljar starts"))
}

#[tokio::test]
async fn labels_tell_whose_a_container_is() {
    let Some(on) = on() else { return };
    let (site, _server, session) = on.session(json!({})).await;
    let seen = docker(&["inspect", &container_of(&session)]);
    let seen: Value = serde_json::from_str(&seen).expect("JSON");
    let (config, host) = (&seen[0]["Config"], &seen[0]["HostConfig"]);
    let labels = config["Labels"].as_object().expect("labels");
    assert_eq!(labels["belljar.owner"], site.owner().expect("an owner"));
    assert_eq!(labels["belljar.session"], session.id);
    assert_eq!(labels["belljar.door"], "socket");
    let name = text(&labels["belljar.name"]);
    assert_eq!(seen[0]["Name"], format!("/belljar-{name}"));
    assert!(name.starts_with(text(&labels["belljar.owner"])), "{name}");
    assert_eq!(text(&labels["belljar.nonce"]).len(), 32);
    // Code inside cannot read the nonce, by which the guest recognises the server.
    let nonce = text(&labels["belljar.nonce"]);
    let search = format!(
        "import glob\nwanted = '{}' + '{}'\n\
         def holds(path):\n\
         \x20   try: return wanted.encode() in open(path, 'rb').read()\n\
         \x20   except OSError: return False\n\
         paths = glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline')\n\
         print([path for path in paths if holds(path)])",
        &nonce[..16],
        &nonce[16..]
    );
    assert_eq!(session.printed(&search).await, "[]\n");
    for (key, wanted) in [
        ("NetworkMode", json!("none")),
        ("ReadonlyRootfs", json!(true)),
        ("CapDrop", json!(["ALL"])),
        ("CgroupnsMode", json!("private")),
        ("Privileged", json!(false)),
        ("PidsLimit", json!(256)),
        ("Memory", json!(512 << 20)),
        ("MemorySwap", json!(512 << 20)),
    ] {
        assert_eq!(host[key], wanted, "{key}");
    }
}

#[tokio::test]
async fn containers_of_a_dead_process_are_reaped() {
    let Some(on) = on() else { return };
    let site = on.site(&[]);
    let code = "print('on', flush=True); import time; time.sleep(1000)";
    let mut running = site.installation.belljar(&["run", "-c", code]);
    let mut running =
        running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let started = belljar_sys::procfs::start_time(running.id()).expect("it runs");
    let label = format!("belljar.owner={}.{started}", running.id());
    eventually("it has a container", async || !containers(&label).is_empty()).await;
    running.kill().expect("it runs");
    running.wait().expect("it is ours");
    assert_eq!(containers(&label).len(), 1, "nobody is left who could remove it");
    // A container of another owner, possibly of the same user, is left alone.
    let stranger = docker(&[
        "create",
        "--label",
        "belljar.owner=somebody",
        "--label",
        "belljar.name=somebody.1.2",
        SHELL_IMAGE,
        "/bin/sleep",
        "1",
    ]);
    let next =
        site.installation.belljar(&["run", "-c", "print('next')"]).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&next.stdout), "next\n", "{next:?}");
    let left = containers("belljar.owner=somebody");
    docker(&["rm", &stranger]);
    assert_eq!((containers(&label).len(), left.len()), (0, 1));
    assert_eq!(names(&site.installation.scratch().run_dir().join("doors")), [""; 0]);
}

#[tokio::test]
async fn an_image_without_python_has_a_shell() {
    let Some(on) = on() else { return };
    let site = on.site(&[("BELLJAR_IMAGES", "belljar/test-*")]);
    let server = site.serve().await;
    let session = server.session_with(json!({"image": SHELL_IMAGE, "key": "k"})).await;
    let command = session.shell("echo hello; pwd; id -u").await;
    assert_eq!(
        (&command["status"], &command["stdout"]),
        (&json!("ok"), &json!("hello\n/session\n1000\n"))
    );
    let bash =
        async |code: &str| session.exec(json!({"language": "bash", "code": code})).await.json(200);
    bash("x=5; echo made > artifacts/file").await;
    assert_eq!(bash("echo $x").await["stdout"], "5\n");
    let python = session.exec(json!({"code": "1"})).await;
    let message = python.error(409, "no_interpreter");
    let expected = format!("the image `{SHELL_IMAGE}` has no python");
    assert!(message.starts_with(&expected), "{message}");
    assert!(python.json(409)["error"]["hint"].is_string(), "{python}");
    assert_eq!(session.show().await["state"], "ready");
    let run = server.post("/v1/run", json!({"code": "1", "image": SHELL_IMAGE})).await;
    run.error(409, "no_interpreter");
    let run = json!({"language": "bash", "code": "echo ran", "image": SHELL_IMAGE});
    assert_eq!(server.post("/v1/run", run).await.json(200)["stdout"], "ran\n");

    // The next server does not know yet that Python is missing, and finds out without harm.
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = belljar_testkit::session::Session::of(&server.client(), &session.id);
    let asked = session.exec(json!({"code": "1"})).await.json(200);
    assert_eq!(
        (&asked["status"], &asked["exit_code"]),
        (&json!("error"), &json!(127)),
        "{asked:#}"
    );
    assert!(text(&asked["reason"]).contains("has no python"), "{asked:#}");
    session.exec(json!({"code": "1"})).await.error(409, "no_interpreter");
    let kept = session.exec(json!({"language": "bash", "code": "echo $x"})).await.json(200);
    assert_eq!(kept["stdout"], "5\n");

    let said = run_refusal(
        &BackendSite::of(on, on.installation().env("SANDBOX_IMAGE", SHELL_IMAGE)).installation,
    );
    assert!(said.contains("has no python"), "{said}");
}

#[tokio::test]
async fn images_that_are_not_there_or_not_allowed_are_refused() {
    let Some(on) = on() else { return };
    let missing = "belljar/not-there:9";
    let site = on.site(&[("SANDBOX_IMAGE", missing), ("BELLJAR_IMAGES", "belljar/test-*")]);
    let server = site.serve().await;
    let says_what_to_do = |answer: &Answer| {
        let message = answer.error(503, "no_image");
        assert!(message.contains(missing) && message.contains("SANDBOX_IMAGE"), "{message}");
    };
    says_what_to_do(&server.post("/v1/sessions", json!({})).await);
    says_what_to_do(&server.post("/v1/run", json!({"code": "1"})).await);
    let said = run_refusal(&site.installation);
    assert!(said.contains(missing) && said.contains("SANDBOX_IMAGE"), "{said}");
    let other = json!({"image": "ubuntu:24.04"});
    let message = server.post("/v1/sessions", other).await.error(422, "invalid");
    assert!(message.contains("ubuntu:24.04"), "{message}");
    // Images that are allowed still work.
    server.session_with(json!({"image": SHELL_IMAGE})).await;
}

#[tokio::test]
async fn an_engine_that_cannot_be_used_is_said_at_the_start() {
    let Some(on) = on() else { return };
    for (name, value, words) in [
        (
            "DOCKER_HOST",
            "unix:///nowhere/docker.sock",
            ["no container engine answers", "DOCKER_HOST"],
        ),
        ("DOCKER_HOST", "tcp://127.0.0.1:1", ["no container engine answers", "DOCKER_HOST"]),
        ("BELLJAR_DOCKER_RUNTIME", "kata-of-nobody", ["kata-of-nobody", "BELLJAR_DOCKER_RUNTIME"]),
    ] {
        let site = on.site(&[(name, value)]);
        let refused = site.installation.refusal().await;
        assert!(!refused.contains("panicked"), "{refused}");
        for said in [refused, run_refusal(&site.installation)] {
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
}

/// An engine that accepts connections and never answers: a daemon that is stuck or stopped.
#[tokio::test]
async fn an_engine_that_hangs_is_soon_said_to() {
    let Some(on) = on() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("docker.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let site = on.site(&[("DOCKER_HOST", &format!("unix://{}", socket.display()))]);
    let begun = Instant::now();
    let said = run_refusal(&site.installation);
    assert!(said.contains("has not answered for 5 s"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_engine_without_gpus_says_so() {
    let Some(on) = on() else { return };
    if docker(&["info", "--format", "{{json .Runtimes}}"]).contains("nvidia") {
        belljar_testkit::skip!("this engine may have GPUs");
    }
    let site = on.site(&[("BELLJAR_GPUS", "all")]);
    let server = site.serve().await;
    let message = server.post("/v1/sessions", json!({})).await.error(503, "no_gpu");
    assert!(message.contains("BELLJAR_GPUS"), "{message}");
    let said = run_refusal(&site.installation);
    assert!(said.contains("BELLJAR_GPUS"), "{said}");
    site.has_no_traces().await;
}

#[tokio::test]
async fn a_user_without_access_to_the_engine_reads_what_to_do() {
    belljar_testkit::skip_unless_root!("only root can do this to a container engine");
    let Some(on) = on() else { return };
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).expect("ours");
    // A directory that the user `nobody` can access.
    let binary = directory.path().join("belljar");
    std::fs::copy(belljar_testkit::belljar(), &binary).expect("a copy");
    let installation = on.installation();
    let mut command: Command =
        installation.command(&binary.display().to_string(), &["run", "-c", "1"]);
    command.current_dir(directory.path()).uid(NOBODY).gid(NOBODY);
    for (name, below) in [
        ("HOME", ""),
        ("BELLJAR_HOME", "home"),
        ("BELLJAR_RUN_DIR", "run"),
        ("BELLJAR_STATE_DIR", "state"),
    ] {
        command.env(name, directory.path().join(below));
    }
    let said = failed(&command.output().expect("it starts"));
    assert!(said.contains("you are not allowed to use it") && said.contains("usermod"), "{said}");
}
