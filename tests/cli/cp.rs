//! `belljar session cp`: files and directories, in both directions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::tree;

#[test]
fn files_are_copied_both_ways() {
    let served = CliServer::on_socket();
    served.create(&["--key", "demo"]);
    let here = |name: &str| served.context().path(name);
    fs::write(here("notes.txt"), "hello").expect("a file");
    fs::write(here("tool"), "#!/bin/sh\necho works\n").expect("a file");
    fs::set_permissions(here("tool"), fs::Permissions::from_mode(0o755)).expect("permissions");
    let shell = |code: &str| served.ok(["exec", "demo", "--lang", "bash", "-c", code]).stdout();
    // Into a directory under the same name, or under another name.
    served.ok(["cp", "notes.txt", "demo:"]);
    served.ok(["cp", "tool", "demo:bin/run"]);
    served.ok(["cp", "notes.txt", "demo:/tmp/"]);
    assert_eq!(shell("cat notes.txt; bin/run; cat /tmp/notes.txt"), "helloworks\nhello");
    fs::write(here("notes.txt"), "").expect("a file");
    served.ok(["cp", "notes.txt", "demo:notes.txt"]);
    assert_eq!(shell("wc -c < notes.txt"), "0\n");

    served.ok(["cp", "demo:bin/run", "back"]);
    assert_eq!(fs::read_to_string(here("back")).expect("a file"), "#!/bin/sh\necho works\n");
    let mode = fs::metadata(here("back")).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o755);
    fs::create_dir(here("d")).expect("a directory");
    served.ok(["cp", "demo:/tmp/notes.txt", "d"]);
    assert_eq!(fs::read_to_string(here("d/notes.txt")).expect("a file"), "hello");
    shell("ln -s /tmp/notes.txt link; head -c 3000000 /dev/zero > zeros");
    assert_eq!(served.ok(["cp", "demo:link", "-"]).stdout(), "hello");
    assert_eq!(served.ok(["cp", "demo:zeros", "-"]).stdout.len(), 3_000_000);
    fs::write(here("input"), "from a pipe").expect("a file");
    let mut command = served.context().belljar(["session", "cp", "-", "demo:in/piped"]);
    let sent =
        served.context().finish(command.stdin(fs::File::open(here("input")).expect("a file")));
    assert_eq!(sent.code, Some(0), "{sent}");
    assert_eq!(shell("cat in/piped"), "from a pipe");
}

#[test]
fn directories_are_copied_with_all_that_is_in_them() {
    let served = CliServer::on_socket();
    served.create(&["--key", "demo"]);
    let here = |name: &str| served.context().path(name);
    fs::create_dir_all(here("tree/a/b c")).expect("directories");
    fs::create_dir(here("tree/empty")).expect("a directory");
    fs::write(here("tree/a/b c/f"), "deep").expect("a file");
    fs::write(here("tree/run"), "#!/bin/sh\n").expect("a file");
    fs::set_permissions(here("tree/run"), fs::Permissions::from_mode(0o755)).expect("permissions");
    symlink("a/b c/f", here("tree/link")).expect("a link");
    let shell = |code: &str| served.ok(["exec", "demo", "--lang", "bash", "-c", code]).stdout();
    served.ok(["cp", "tree", "demo:other"]);
    assert_eq!(
        shell("cd /session/other; find . | sort; cat link; stat -c %a run; cd .."),
        ".\n./a\n./a/b c\n./a/b c/f\n./empty\n./link\n./run\ndeep755\n"
    );
    served.ok(["cp", "tree", "demo:/tmp"]);
    assert_eq!(shell("diff -r /tmp/tree other && echo same"), "same\n");
    served.ok(["cp", "demo:other", "back"]);
    assert_eq!(tree(&here("back")), tree(&here("tree")));
    fs::create_dir(here("d")).expect("a directory");
    shell("mkfifo other/pipe");
    let copied = served.ok(["cp", "demo:other", "d"]);
    assert_eq!(tree(&here("d/other")), tree(&here("tree")));
    assert_eq!(copied.stderr(), "", "what is inside was left out inside");
    // To standard output, as an archive.
    let archive = served.ok(["cp", "demo:other/a", "-"]).stdout;
    let mut names: Vec<String> = tar::Archive::new(&archive[..])
        .entries()
        .expect("an archive")
        .map(|entry| entry.expect("an entry").path().expect("a path").display().to_string())
        .collect();
    names.sort();
    assert_eq!(names, ["b c/", "b c/f"]);
}

#[test]
fn what_cannot_be_copied_is_said_and_leaves_nothing() {
    let served = CliServer::on_socket();
    served.create(&["--key", "demo"]);
    let here = |name: &str| served.context().path(name);
    fs::write(here("file"), "x").expect("a file");
    let said = |args: [&str; 2]| {
        let refused = served.call(["cp", args[0], args[1]]);
        assert_ne!(refused.code, Some(0), "{args:?}: {refused}");
        refused.stderr()
    };
    assert!(said(["demo:none", "x"]).contains("No such file"), "{}", said(["demo:none", "x"]));
    assert!(said(["file", "file2"]).contains("neither `file` nor `file2` is in a session"));
    assert!(said(["demo:a", "demo:b"]).contains("both sides are in sessions"));
    assert!(said(["file", "nobody:"]).contains("no session with the id or key `nobody`"));
    assert!(said(["none", "demo:"]).contains("failed to read `none`"));
    assert!(said(["file", "demo:/usr/x"]).contains("Read-only file system"));
    assert!(said(["demo:/etc/passwd", "no/such/place"]).contains("failed to write"));
    assert!(said(["-", "demo:"]).contains("needs a name"));
    assert!(!here("x").exists());
    let left: Vec<String> =
        tree(&here(".")).into_iter().filter(|name| name.contains(".part")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Files of a session come from untrusted code. Links must not redirect what is written on this machine.
#[test]
fn nothing_is_written_outside_of_what_was_asked_for() {
    let served = CliServer::on_socket();
    served.create(&["--key", "demo"]);
    let here = |name: &str| served.context().path(name);
    fs::create_dir_all(here("back/sub")).expect("a directory");
    fs::create_dir(here("outside")).expect("a directory");
    symlink(here("outside"), here("back/sub/link")).expect("a link");
    let outside = here("outside").display().to_string();
    let make = format!(
        "mkdir -p t/link t/sub/link; echo bad > t/sub/link/f; ln -s {outside} t/out; echo bad > t/link/f"
    );
    served.ok(["exec", "demo", "--lang", "bash", "-c", &make]);
    let copied = served.call(["cp", "demo:t", "back/x"]);
    assert_eq!(copied.code, Some(0), "{copied}");
    // The destination has a link where the archive has a directory.
    fs::rename(here("back/sub"), here("back/x/sub2")).expect("a directory");
    served.ok(["exec", "demo", "--lang", "bash", "-c", "mv t/sub t/sub2"]);
    let over = served.call(["cp", "demo:t/.", "back/x"]);
    assert!(tree(&here("outside")).is_empty(), "{over}");
}
