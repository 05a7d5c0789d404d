//! A directory of the host at `/workspace`, which code may change.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use belljar_testkit::cli_server::CliServer;

/// A server that allows workspaces below `projects`, and a project there.
fn project() -> (CliServer, tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a directory");
    let project = root.path().join("projects/sales");
    fs::create_dir_all(&project).expect("a directory");
    fs::write(project.join("notes.md"), "notes").expect("a file");
    let allowed = root.path().join("projects");
    let served = CliServer::on_tcp_with(&[("BELLJAR_WORKSPACES", allowed.to_str().expect("text"))]);
    (served, root, project)
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[test]
fn what_code_writes_there_is_there_afterwards_and_the_users() {
    let (mut served, _root, project) = project();
    if is_root() {
        // The owner is not the server's user, its user id and group id differ, and the directory is closed to others.
        for path in [project.clone(), project.join("notes.md")] {
            chown(path, Some(4242), Some(4343)).expect("root may");
        }
    }
    fs::set_permissions(&project, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let id = served.create(&["--workspace", project.to_str().expect("text")]);
    let python = |served: &CliServer, code: &str| served.ok(["exec", &id, "-c", code]).stdout();
    let code = "import os; os.makedirs('deep/er'); open('deep/er/made.txt', 'w').write('made'); \
                open('notes.md', 'a').write(' and more'); \
                print(open('/workspace/notes.md').read(), os.path.samefile('.', '/workspace'))";
    assert_eq!(python(&served, code), "notes and more True\n");
    assert_eq!(
        fs::read_to_string(project.join("notes.md")).expect("it is there"),
        "notes and more"
    );
    let (made, own) = (project.join("deep/er/made.txt"), fs::metadata(&project).expect("there"));
    let reply = fs::metadata(&made).expect("it is there");
    assert_eq!((reply.uid(), reply.gid()), (own.uid(), own.gid()));
    // Commands start there too, and changes on the host are visible at once.
    fs::write(project.join("late.txt"), "late").expect("a file");
    fs::write(project.join("of-others.txt"), "whose?").expect("a file");
    if is_root() {
        chown(project.join("late.txt"), Some(4242), Some(4343)).expect("root may");
    }
    let bash = |code: &str| served.call(["exec", &id, "--lang", "bash", "-c", code]);
    let listed = bash("cat late.txt; rm late.txt; ls").stdout();
    assert_eq!(listed, "latedeep\nnotes.md\nof-others.txt\n");
    assert!(!project.join("late.txt").exists());
    // Files of other owners can be read, but not changed.
    if is_root() {
        bash("cat of-others.txt && echo mine > of-others.txt");
        assert_eq!(fs::read_to_string(project.join("of-others.txt")).expect("there"), "whose?");
    }
    // Other directories are as without a workspace, and nothing can be added beside it.
    let reply = bash("cd /session && pwd && touch x /tmp/x && ls; touch /run/x").to_string();
    assert!(reply.contains("/session\nartifacts\ndata\nx\n"), "{reply}");
    assert!(reply.contains("Read-only file system"), "{reply}");
    let shown = served.ok(["show", &id, "--json"]).json();
    assert_eq!(shown["workspace"].as_str(), project.to_str());
    let warnings = shown["warnings"].to_string();
    assert!(warnings.contains("size of the workspace is not limited"), "{shown}");

    // The workspace is the same after the server was killed, and after hibernation.
    python(&served, "x = 41");
    served.kill();
    served.start();
    assert_eq!(python(&served, "open('after.txt', 'w').write('1'); x + 1"), "42\n");
    let id = served.create(&["--workspace", project.to_str().expect("text")]);
    let python = |code: &str| served.ok(["exec", &id, "-c", code]).stdout();
    python("x = 41");
    served.ok(["hibernate", &id]);
    assert_eq!(python("open('awake.txt', 'w').write('1'); x + 2"), "43\n");
    assert!(project.join("after.txt").exists() && project.join("awake.txt").exists());
}

/// On the host, such a file would run with the rights of the directory's owner.
#[test]
fn no_file_there_can_be_made_to_run_as_its_owner() {
    let (served, _root, project) = project();
    let id = served.create(&["--workspace", project.to_str().expect("text")]);
    let code = r#"
import ctypes, errno, os, stat
libc = ctypes.CDLL(None, use_errno=True)
open('plain', 'w').write('#!/bin/sh\nid\n')
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
ways = {
    'chmod': lambda: os.chmod('plain', 0o4755),
    'chmod group': lambda: os.chmod('plain', 0o2755),
    'fchmod': lambda: os.fchmod(os.open('plain', os.O_RDONLY), 0o6755),
    'open': lambda: os.open('a', os.O_CREAT | os.O_WRONLY, 0o4755),
    'unnamed': lambda: os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755),
    'mknod': lambda: os.mknod('b', 0o4755 | stat.S_IFREG),
}
for name, way in ways.items():
    try:
        way()
        print(name, 'was possible')
    except OSError as error:
        assert error.errno == errno.EPERM, (name, error)
assert libc.syscall(437, -100, b'c', how, 24) == -1 and ctypes.get_errno() == errno.ENOSYS
assert libc.syscall(452, -100, b'plain', 0o4755, 0) == -1
os.chmod('plain', 0o755)
"#;
    let done = served.ok(["exec", &id, "-c", code]);
    assert_eq!(done.stdout(), "", "{done}");
    for entry in fs::read_dir(&project).expect("it is there") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{entry:?}");
    }
    assert_eq!(
        fs::metadata(project.join("plain")).expect("there").permissions().mode() & 0o777,
        0o755
    );
}

#[test]
fn only_directories_that_the_operator_named_are_workspaces() {
    let (served, root, project) = project();
    let outside = root.path().join("outside");
    fs::create_dir(&outside).expect("a directory");
    symlink(&outside, root.path().join("projects/link")).expect("a link");
    let at = |path: &str| root.path().join(path).to_str().expect("text").to_owned();
    for path in
        [at("outside"), at("projects/link"), at("projects/../outside"), "/etc".into(), "/".into()]
    {
        let refused = served.call(["create", "--workspace", &path]);
        assert_eq!(refused.code, Some(125), "{path}: {refused}");
        assert!(refused.stderr().contains("BELLJAR_WORKSPACES"), "{path}: {refused}");
    }
    let missing = served.call(["create", "--workspace", &at("projects/missing")]);
    assert!(missing.stderr().contains("cannot be used"), "{missing}");
    // A session that is found by its key keeps its workspace. A request for another one is refused.
    served.create(&["--key", "k", "--workspace", project.to_str().expect("text")]);
    let other = served.call(["create", "--key", "k", "--workspace", &at("projects")]);
    assert!(other.stderr().contains("workspace"), "{other}");
    // Without the setting, a server allows no workspace.
    let plain = CliServer::on_socket();
    let refused = plain.call(["create", "--workspace", project.to_str().expect("text")]);
    assert!(refused.stderr().contains("BELLJAR_WORKSPACES"), "{refused}");
    // Some directories are always refused.
    let all = CliServer::on_tcp_with(&[("BELLJAR_WORKSPACES", "/")]);
    for path in ["/etc", "/", "/usr/local/bin", "/root"] {
        let refused = all.call(["create", "--workspace", path]);
        assert!(refused.stderr().contains("is refused: "), "{path}: {refused}");
    }
}
