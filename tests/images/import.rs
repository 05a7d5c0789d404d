//! `belljar image import`: every format of images, and imports that are killed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::fixture::{Small, architecture, digest, gzip, layer, with_own_store};
use belljar_testkit::command::TestContext;

fn small() -> Small {
    Small::new(&[("etc/motto", b"imported"), ("usr/bin/python3", b"#!/bin/sh")], architecture())
}

/// Writes an OCI layout that names its image `team/lab:2`.
fn write_layout(context: &TestContext, directory: &str, image: &Small) {
    let root = context.path(directory);
    fs::create_dir_all(root.join("blobs/sha256")).expect("a directory");
    for blob in [&image.layer, &image.config, &image.manifest] {
        fs::write(root.join("blobs/sha256").join(&digest(blob)[7..]), blob).expect("a file");
    }
    fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file");
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest(&image.manifest),
        "size": image.manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": "team/lab:2"},
    }]});
    fs::write(root.join("index.json"), index.to_string()).expect("a file");
}

#[track_caller]
fn ok(context: &TestContext, args: &[&str]) -> String {
    let finished = context.call([&["image"], args].concat());
    assert_eq!(finished.code, Some(0), "{finished}");
    finished.stdout().trim_end().to_owned()
}

#[test]
fn layouts_and_root_file_systems_are_told_apart() {
    let image = small();
    let content = layer(&[("etc/motto", b"imported"), ("bin/sh", b"")]);
    let context = with_own_store()
        .file("Plain-1.0.tar", &content)
        .file("packed.tar.gz", gzip(&content))
        .file("tree/etc/motto", "imported");
    write_layout(&context, "layout", &image);
    let tar = |args: &[&str]| {
        let status = Command::new("tar").current_dir(context.path("")).args(args).status();
        assert!(status.expect("tar runs").success());
    };
    tar(&["-cf", "layout.tar", "-C", "layout", "."]);
    tar(&["--zstd", "-cf", "tree.tar.zst", "-C", "tree", "."]);
    assert_eq!(ok(&context, &["import", "layout"]), "team/lab:2");
    assert_eq!(ok(&context, &["import", "layout.tar", "--name", "from-tar"]), "from-tar:latest");
    assert_eq!(ok(&context, &["import", "Plain-1.0.tar"]), "plain-1.0:latest");
    assert_eq!(ok(&context, &["import", "packed.tar.gz"]), "packed:latest");
    assert_eq!(ok(&context, &["import", "tree"]), "tree:latest");
    assert_eq!(ok(&context, &["import", "tree.tar.zst", "--name", "zstd"]), "zstd:latest");
    let listed = context.call(["image", "list", "--json"]).json();
    for image in listed["images"].as_array().expect("a list") {
        let root = image["root"].as_str().expect("a digest").trim_start_matches("sha256:");
        let path = context.path(&format!("home/images/roots/{root}/rootfs/etc/motto"));
        assert_eq!(fs::read_to_string(path).expect("unpacked"), "imported");
    }
    // Images with the same layers share a root: the layout twice, the archive plain and compressed.
    let roots = fs::read_dir(context.path("home/images/roots")).expect("there").count();
    assert_eq!(roots, 4);
}

#[test]
fn what_is_damaged_or_hostile_is_refused_and_leaves_nothing() {
    let image = small();
    let context = with_own_store()
        .file("text.tar", "this is no archive, whatever its name says")
        .file("empty.tar", "")
        .file("hostile.tar", layer(&[("etc/x", b"")]));
    write_layout(&context, "swapped", &image);
    let blob = context.path("swapped/blobs/sha256").join(&digest(&image.layer)[7..]);
    fs::write(blob, gzip(&layer(&[("etc/motto", b"something else")]))).expect("a file");
    write_layout(&context, "lacking", &image);
    let blob = context.path("lacking/blobs/sha256").join(&digest(&image.layer)[7..]);
    fs::remove_file(blob).expect("it was there");
    for (from, said) in [
        ("text.tar", "damaged"),
        ("empty.tar", "it is empty"),
        ("swapped", "the image is damaged"),
        ("lacking", "the image is incomplete"),
        ("nowhere", "No such file"),
    ] {
        let refused = context.call(["image", "import", from, "--name", "x"]);
        assert_eq!(refused.code, Some(125), "{refused}");
        assert!(refused.stderr().contains(said), "{from}: {refused}");
    }
    assert_eq!(context.call(["image", "list"]).stdout(), "");
    let bounded = context
        .env("BELLJAR_IMAGE_LIMIT", "1M")
        .file("big.tar", layer(&[("etc/big", &[0; 2 << 20])]));
    let refused = bounded.call(["image", "import", "big.tar"]);
    assert!(refused.stderr().contains("BELLJAR_IMAGE_LIMIT"), "{refused}");
}

#[test]
fn killed_at_any_moment_it_leaves_nothing_half_done() {
    let files: Vec<(String, Vec<u8>)> =
        (0..3000).map(|n| (format!("etc/{n}"), vec![1; 10_000])).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, c)| (n.as_str(), &c[..])).collect();
    let context = with_own_store().file("many.tar", layer(&files));
    for delay_ms in [20, 60, 120, 200, 300] {
        let mut child =
            context.belljar(["image", "import", "many.tar"]).spawn().expect("belljar starts");
        std::thread::sleep(Duration::from_millis(delay_ms));
        child.kill().and_then(|()| child.wait().map(|_| ())).expect("it can be killed");
        // The next command finds the whole image or none, never a part of it.
        let listed = context.call(["image", "list", "--json"]).json();
        for image in listed["images"].as_array().expect("a list") {
            assert_eq!(image["unpacked"]["entries"], 3000);
        }
    }
    assert_eq!(ok(&context, &["import", "many.tar"]), "many:latest");
    let count = |name: &str| fs::read_dir(context.path(name)).expect("it is there").count();
    assert_eq!((count("home/images/new"), count("home/images/roots")), (0, 1));
    ok(&context, &["remove", "many"]);
    assert_eq!(count("home/images/roots"), 0);
}

/// Output of `docker ARGS`, or `None` if that fails.
pub(crate) fn docker(args: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("docker").args(args).output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn what_docker_saves_is_imported() {
    if docker(&["version"]).is_none() {
        belljar_testkit::skip!("no container engine answers");
    }
    let context = with_own_store()
        .file("Dockerfile", "FROM scratch\nADD l /\nENV A=b\nLABEL belljar.preload=json,csv\n");
    fs::create_dir_all(context.path("l/etc")).expect("a directory");
    fs::write(context.path("l/etc/motto"), "from docker").expect("a file");
    let tag = format!("belljar-test-save:{}", std::process::id());
    let built = Command::new("docker")
        .env("DOCKER_BUILDKIT", "0")
        .args(["build", "-q", "-t", &tag])
        .arg(context.path(""))
        .output()
        .expect("docker runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let saved = docker(&["save", &tag]);
    docker(&["rmi", &tag]);
    let context = context.file("saved.tar", saved.expect("it saves"));
    assert_eq!(ok(&context, &["import", "saved.tar"]), tag);
    let shown = context.call(["image", "show", &tag, "--json"]).json();
    assert_eq!(shown["preload"], serde_json::json!(["json", "csv"]));
    assert!(shown["env"].to_string().contains(r#"["A","b"]"#), "{shown}");
}
