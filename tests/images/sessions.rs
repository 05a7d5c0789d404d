//! Sandboxes made from images, on the native backend.

use std::path::Path;

use crate::fixture::{BARE, BASE, layer, shared_home, with_own_store, with_shared_images};
use belljar_testkit::cli_server::CliServer;
use belljar_testkit::wait::eventually_blocking;

fn served() -> CliServer {
    served_with(&shared_home())
}

fn served_with(home: &Path) -> CliServer {
    let home = home.to_str().expect("text");
    CliServer::on_tcp_with(&[
        ("BELLJAR_HOME", home),
        ("BELLJAR_BACKEND", "native"),
        ("BELLJAR_IMAGES", "belljar-test/* debian:* nowhere"),
    ])
}

#[test]
fn a_session_has_the_files_of_its_image_and_a_zygote_of_its_own() {
    let served = served();
    let id = served.create(&["--image", BASE]);
    let code = "import numpy, sys; print(sys.executable, numpy.arange(3).sum())";
    let said = served.ok(["exec", &id, "-c", code]);
    assert_eq!(said.stdout(), "/usr/bin/python3 3\n");
    // Kernels of the second session are forked from the image's zygote, which has numpy loaded. The
    // host's zygote does not have it, because BELLJAR_PRELOAD lists other modules here.
    eventually_blocking("the zygote of the image is warm", || {
        let id = served.create(&["--image", BASE]);
        let loaded = served.ok(["exec", &id, "-c", "import sys; 'numpy' in sys.modules"]);
        served.ok(["stop", &id]);
        loaded.stdout() == "True\n"
    });
    let host = served.create(&[]);
    let loaded = served.ok(["exec", &host, "-c", "import sys; 'numpy' in sys.modules"]);
    assert_eq!(loaded.stdout(), "False\n");

    let look = "ls -d /work /workspace /data /opt/belljar/kernels; id -un; touch /usr/x /etc/x; \
                echo fine > /tmp/x; cat /tmp/x; grep -c . /etc/passwd";
    let seen = served.ok(["exec", &id, "--lang", "bash", "-c", look]);
    assert_eq!(seen.stdout(), "/data\n/opt/belljar/kernels\n/work\n/workspace\nbelljar\nfine\n3\n");
    assert_eq!(seen.stderr().matches("Read-only file system").count(), 2, "{seen}");
}

#[test]
fn images_that_are_not_there_or_not_allowed_are_refused() {
    let served = served();
    let missing = served.call(["create", "--image", "nowhere"]);
    assert!(missing.stderr().contains("there is no image `nowhere:latest`"), "{missing}");
    assert!(missing.stderr().contains("`belljar image pull nowhere:latest`"), "{missing}");
    let forbidden = served.call(["create", "--image", "other/image"]);
    assert!(forbidden.stderr().contains("is not allowed here"), "{forbidden}");
    assert!(forbidden.stderr().contains("can allow others with BELLJAR_IMAGES"), "{forbidden}");
    let context = with_shared_images().env("SANDBOX_IMAGE", "nowhere");
    let refused = context.run(["-c", "1"]);
    assert!(refused.stderr().contains("there is no image `nowhere:latest`"), "{refused}");
}

#[test]
fn what_the_operator_names_as_the_default_is_allowed_by_every_name_of_it() {
    let home = shared_home();
    let name = BASE.strip_suffix(":latest").unwrap_or(BASE);
    for variable in ["SANDBOX_IMAGE", "SANDBOX_IMAGE_NAME"] {
        let served = CliServer::on_tcp_with(&[
            ("BELLJAR_HOME", home.to_str().expect("text")),
            ("BELLJAR_BACKEND", "native"),
            (variable, name),
        ]);
        let tagged = format!("{name}:latest");
        for args in [&[][..], &["--image", name], &["--image", &tagged]] {
            let id = served.create(args);
            let shown = served.ok(["show", &id, "--json"]).json();
            assert!(shown["image"].as_str().is_some_and(|it| it.starts_with(name)), "{shown}");
            served.ok(["stop", &id]);
        }
    }
}

#[test]
fn without_python_there_are_shells() {
    let served = served();
    let id = served.create(&["--image", BARE]);
    let said = served.ok(["exec", &id, "--lang", "bash", "-c", "x=6; echo $((x * 7))"]);
    assert_eq!(said.stdout(), "42\n");
    let refused = served.call(["exec", &id, "-c", "1"]);
    assert!(refused.to_string().contains("has no python"), "{refused}");
    let again = served.ok(["exec", &id, "--lang", "bash", "-c", "echo $x"]);
    assert_eq!(again.stdout(), "6\n");
}

#[test]
fn volumes_are_in_sandboxes_of_any_image() {
    let served = served();
    let volume = |args: &[&str]| {
        let done = served.context().finish(served.context().belljar(["volume"]).args(args));
        assert_eq!(done.code, Some(0), "{done}");
    };
    volume(&["create", "shared", "--size", "4M"]);
    let bare = served.create(&["--image", BARE, "--volume", "shared"]);
    served.ok(["exec", &bare, "--lang", "bash", "-c", "echo from bare > /volumes/shared/a"]);
    let host = served.create(&["--volume", "shared:ro"]);
    let read = served.ok(["exec", &host, "-c", "print(open('/volumes/shared/a').read(), end='')"]);
    assert_eq!(read.stdout(), "from bare\n");
    served.ok(["stop", &bare, &host]);
    volume(&["remove", "shared"]);
}

#[test]
fn an_image_in_use_goes_with_its_last_sandbox() {
    // A separate store, so that the test does not wait for builds of other tests.
    let files = layer(&[("etc/only-here", b"yes"), ("bin/nothing", b"")]);
    let context = with_own_store().file("more.tar", files);
    let home = context.path("home");
    assert_eq!(
        context.call(["image", "import", "more.tar", "--name", "belljar-test/more"]).code,
        Some(0)
    );
    let shown = context.call(["image", "show", "belljar-test/more", "--json"]).json();
    let root = shown["root"].as_str().expect("a digest").trim_start_matches("sha256:");
    let root = home.join("images/roots").join(root);
    let served = served_with(&home);
    let id = served.create(&["--image", "belljar-test/more"]);
    let removed = context.call(["image", "remove", "belljar-test/more"]);
    assert_eq!(removed.code, Some(0), "{removed}");
    assert!(removed.stderr().contains("still uses its files"), "{removed}");
    assert!(root.join("rootfs/etc/only-here").exists());
    let alive = served.ok(["show", &id, "--json"]).json();
    assert_eq!(alive["state"], "ready");
    drop(served);
    // The next command that changes the store removes what is left.
    eventually_blocking("its root is gone", || {
        context.call(["image", "import", "more.tar", "--name", "belljar-test/other"]);
        context.call(["image", "remove", "belljar-test/other"]);
        !root.exists()
    });
}
