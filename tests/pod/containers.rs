//! Belljar inside a container with a cgroup of its own, and inside a user namespace with 65,536 ids.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use belljar_sys::process;
use belljar_testkit::wait::eventually_blocking;
use belljar_testkit::{skip, skip_unless_root};
use serde_json::Value;

const IMAGE: &str = "belljar/test-base:1";

/// Where the machine's memory hierarchy is: version 1.
const MEMORY: &str = "/sys/fs/cgroup/memory";

fn has_docker() -> bool {
    let image = Command::new("docker").args(["image", "inspect", IMAGE]).output();
    image.is_ok_and(|output| output.status.success())
}

/// `docker run` of a script. The container may mount, and so make its control groups writable, as a privileged one can.
fn docker_run(more: &[&str], script: &str) -> Command {
    let mut docker = Command::new("docker");
    docker.args(["run", "--rm", "--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN"]);
    docker.args([
        "--security-opt",
        "seccomp=unconfined",
        "--security-opt",
        "systempaths=unconfined",
    ]);
    docker.args(["-v", &format!("{}:/usr/local/bin/belljar:ro", belljar_testkit::belljar())]);
    docker.args(["-e", "BELLJAR_PRELOAD=json"]);
    docker.args(more).args([IMAGE, "sh", "-c", script]).stdin(Stdio::null());
    docker
}

const WRITABLE: &str = "for each in /sys/fs/cgroup/*; do mount -o remount,bind,rw $each; done; ";

fn finding<'a>(diagnosis: &'a Value, feature: &str) -> &'a Value {
    let findings = diagnosis["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["feature"] == feature);
    found.unwrap_or_else(|| panic!("no {feature}: {diagnosis:#}"))
}

fn diagnosis(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

const LIMITS: [&str; 4] = ["no network", "cpu limit", "memory limit", "process limit"];

#[test]
fn a_container_with_writable_cgroups_enforces_everything() {
    if !has_docker() {
        skip!("there is no docker with the image {IMAGE}");
    }
    let script = format!("{WRITABLE} exec belljar doctor --json");
    let diagnosis = diagnosis(&docker_run(&[], &script).output().expect("docker"));
    assert_eq!(diagnosis["posture"], "privileged", "{diagnosis:#}");
    assert_eq!(finding(&diagnosis, "container")["state"], "ok");
    let cgroups = &finding(&diagnosis, "cgroups")["detail"];
    assert!(cgroups.as_str().expect("text").contains("below this container's own"), "{cgroups}");
    for limit in LIMITS {
        assert_eq!(finding(&diagnosis, limit)["state"], "ok", "{diagnosis:#}");
    }
}

#[test]
fn a_container_with_read_only_cgroups_says_what_is_not_enforced() {
    if !has_docker() {
        skip!("there is no docker with the image {IMAGE}");
    }
    let script = "belljar run -c 'print(6 * 7)' >&2; exec belljar doctor --json";
    let output = docker_run(&[], script).output().expect("docker");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("42\n"), "{said}");
    assert!(said.contains("not enforced on this machine: "), "{said}");
    let diagnosis = diagnosis(&output);
    assert_eq!((&diagnosis["usable"], &diagnosis["all_enforced"]), (&true.into(), &false.into()));
    assert_eq!(finding(&diagnosis, "cgroups")["state"], "weak");
    let advice = finding(&diagnosis, "memory limit")["advice"].as_str().expect("advice");
    assert!(advice.contains("cgroup_writable"), "{advice}");
    assert_eq!(finding(&diagnosis, "no network")["state"], "ok");
}

/// A container that runs in the background; removed when dropped.
struct Container {
    id: String,
    docker: Child,
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", "-f", &self.id]).output();
        let _ = self.docker.wait();
    }
}

#[test]
fn sandboxes_count_to_their_container() {
    if !has_docker() || !PathBuf::from(MEMORY).join("docker").exists() {
        skip!("there is no docker on cgroups of version 1 here");
    }
    let name = format!("belljar-test-{}", &process::random_name()[..12]);
    let code = "import time; held = bytearray(b'x' * (100 << 20)); time.sleep(600)";
    let script = format!("{WRITABLE} exec belljar run --timeout 600 -c \"{code}\"");
    let docker = docker_run(&["--name", &name], &script).stdout(Stdio::null()).spawn();
    let _container = Container { id: name.clone(), docker: docker.expect("docker") };
    let mut id = String::new();
    eventually_blocking("the container runs", || {
        let args = ["inspect", "--format", "{{.Id}}", &name];
        let output = Command::new("docker").args(args).output().expect("docker");
        id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && !id.is_empty()
    });
    let own = PathBuf::from(MEMORY).join("docker").join(&id);
    let number = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    let sandboxes = || {
        let entries = fs::read_dir(own.join("belljar")).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
        paths.map(|path| number(path.join("memory.usage_in_bytes"))).sum::<u64>()
    };
    eventually_blocking("the sandbox holds memory", || sandboxes() > 100 << 20);
    assert!(number(own.join("memory.usage_in_bytes")) > 100 << 20, "it counts to the container");
}

/// A user namespace with 65,536 ids, as a pod with `hostUsers: false` has it.
struct UserNamespace {
    holder: Child,
    directory: tempfile::TempDir,
}

/// The host's number for root inside.
const FIRST: u32 = 1_500_000_000;

impl UserNamespace {
    fn new(count: u32) -> UserNamespace {
        let directory = tempfile::tempdir().expect("a directory");
        chown(directory.path(), Some(FIRST), Some(FIRST)).expect("a new owner");
        let mut holder = Command::new("unshare")
            .args(["--user", "sh", "-c", "echo ready; read end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut ready = [0; 6];
        let stdout = holder.stdout.as_mut().expect("it was piped");
        std::io::Read::read_exact(stdout, &mut ready).expect("it is in its namespace");
        for map in ["uid_map", "gid_map"] {
            let path = format!("/proc/{}/{map}", holder.id());
            fs::write(path, format!("0 {FIRST} {count}\n")).expect("a map");
        }
        UserNamespace { holder, directory }
    }

    /// Runs a command as root inside.
    fn run(&self, args: &[&str]) -> Output {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let pid = self.holder.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--user", "--target", &pid, "--setuid", "0", "--setgid", "0", "--"]);
        command.args([
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "--",
        ]);
        command.arg(belljar_testkit::belljar()).args(args).current_dir("/").env("HOME", path(""));
        command.env("BELLJAR_HOME", path("home"));
        command.env("BELLJAR_RUN_DIR", path("run")).env("BELLJAR_STATE_DIR", path("state"));
        command.env("BELLJAR_VOLUMES_DIR", path("volumes")).env("BELLJAR_PRELOAD", "json");
        command.env("BELLJAR_OUTPUTS_DIR", path("outputs")).env("BLOBSTORE_DIR", path("blobs"));
        command.stdin(Stdio::null()).output().expect("nsenter starts")
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        let _ = self.holder.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        let _ = self.holder.wait();
    }
}

#[test]
fn sandboxes_have_ids_of_their_own_within_65536() {
    skip_unless_root!("id maps need root");
    let namespace = UserNamespace::new(65_536);
    let code =
        "import os; print(os.getuid(), os.getgid()); print(open('/proc/self/uid_map').read())";
    let output = namespace.run(&["run", "-c", code]);
    let (out, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words[..2], ["1000", "1000"], "{out}");
    // Numbers of the spawner's namespace: a block, half for root and half for the user.
    let first: u32 = words[3].parse().expect("a number");
    assert!(first >= 64 && first.is_multiple_of(64), "{out}");
    let user = (first + 32).to_string();
    assert_eq!([words[2], words[4]], ["0", "32"], "{out}");
    assert_eq!(words[5..], ["1000", &user, "32"], "{out}\n{said}");
    let diagnosis = diagnosis(&namespace.run(&["doctor", "--json"]));
    assert_eq!(diagnosis["posture"], "user_namespace", "{diagnosis:#}");
    let ids = &finding(&diagnosis, "user ids")["detail"];
    assert!(ids.as_str().expect("text").contains("of 64 ids, for at most 1006"), "{ids}");
    assert_eq!(finding(&diagnosis, "no network")["state"], "ok");
    assert_eq!(diagnosis["usable"], true, "{diagnosis:#}");
    // Loop devices cannot be mounted there, even if the container has some.
    let files = &finding(&diagnosis, "session files")["detail"];
    assert!(files.as_str().expect("text").contains("not enforced: a user namespace"), "{files}");
}

#[test]
fn too_few_ids_are_an_error_that_says_so() {
    skip_unless_root!("id maps need root");
    let output = UserNamespace::new(1000).run(&["run", "-c", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("maps 1000 user and group ids"), "{said}");
    assert!(said.contains("map 65536 ids"), "{said}");
}
