//! `belljar image pull`, from a registry on loopback.

use crate::fixture::{Small, architecture, digest, with_own_store};
use crate::registry::{Impostor, Manners, Registry};
use belljar_testkit::command::TestContext;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn small() -> Small {
    Small::new(&[("etc/motto", b"small is beautiful"), ("bin/tool", &[7; 200_000])], architecture())
}

/// A file of an image, read from its root file system.
fn file_of(context: &TestContext, name: &str, path: &str) -> String {
    let shown = context.call(["image", "show", name, "--json"]).json();
    let root = shown["root"].as_str().expect("it says").trim_start_matches("sha256:").to_owned();
    let path = format!("home/images/roots/{root}/rootfs/{path}");
    std::fs::read_to_string(context.path(&path)).expect("it is unpacked")
}

#[test]
fn an_image_is_pulled_once() {
    let registry = Registry::start();
    registry.push("team/small", "1.0", &small());
    let context = with_own_store();
    let reference = format!("{}/team/small:1.0", registry.address);
    let pulled = context.call(["image", "pull", &reference]);
    assert_eq!(pulled.code, Some(0), "{pulled}");
    assert_eq!(pulled.stdout(), format!("{reference}\n"));
    assert_eq!(file_of(&context, &reference, "etc/motto"), "small is beautiful");
    assert!(pulled.stderr().contains("without Python"), "{pulled}");

    // A second pull under another name downloads nothing and stores nothing twice.
    let again = context.call(["image", "pull", &reference, "--name", "again"]);
    assert_eq!(again.stderr().matches("is there already").count(), 2, "{again}");
    let listed = context.call(["image", "list", "--json"]).json();
    assert_eq!(listed["images"].as_array().map(Vec::len), Some(2));
    let count = |name| std::fs::read_dir(context.path(name)).expect("it is there").count();
    assert_eq!((count("home/images/blobs"), count("home/images/roots")), (3, 1));
    assert_eq!(context.call(["image", "remove", "again"]).code, Some(0));
    assert_eq!((count("home/images/blobs"), count("home/images/roots")), (3, 1));
    assert_eq!(context.call(["image", "remove", &reference]).code, Some(0));
    assert_eq!((count("home/images/blobs"), count("home/images/roots")), (0, 0));
}

#[test]
fn of_several_platforms_ours_is_taken() {
    let registry = Registry::start();
    let (ours, other) = (small(), Small::new(&[("etc/motto", b"other")], "s390x"));
    let mut entries = Vec::new();
    for (image, architecture) in [(&other, "s390x"), (&ours, architecture())] {
        registry.push("multi", architecture, image);
        entries.push(serde_json::json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(&image.manifest),
            "size": image.manifest.len(),
            "platform": { "os": "linux", "architecture": architecture },
        }));
    }
    let index = |entries: &[serde_json::Value]| {
        let index = serde_json::json!({
            "schemaVersion": 2, "mediaType": INDEX, "manifests": entries,
        });
        index.to_string().into_bytes()
    };
    registry.push_manifest("multi", "all", INDEX, &index(&entries));
    registry.push_manifest("multi", "foreign", INDEX, &index(&entries[..1]));
    let context = with_own_store();
    let reference = |tag: &str| format!("{}/multi:{tag}", registry.address);
    assert_eq!(context.call(["image", "pull", &reference("all")]).code, Some(0));
    assert_eq!(file_of(&context, &reference("all"), "etc/motto"), "small is beautiful");
    for tag in ["foreign", "s390x"] {
        let refused = context.call(["image", "pull", &reference(tag)]);
        assert_eq!(refused.code, Some(125));
        assert!(refused.stderr().contains("linux/s390x"), "{refused}");
    }
    // By digest, which must match the content.
    let exact = format!("{}/multi@{}", registry.address, digest(&ours.manifest));
    assert_eq!(context.call(["image", "pull", &exact, "--name", "exact"]).code, Some(0));
}

#[test]
fn what_is_not_there_or_not_for_us_is_said() {
    let registry = Registry::start();
    let context = with_own_store();
    let missing = context.call(["image", "pull", &format!("{}/nothing:1", registry.address)]);
    assert!(missing.stderr().contains("has no such image"), "{missing}");

    let private = Registry::start_private();
    let reference = format!("{}/secret:1", private.address);
    let refused = context.call(["image", "pull", &reference]);
    assert!(refused.stderr().contains("does not let us; give --username"), "{refused}");
    let context =
        context.env("BELLJAR_REGISTRY_USER", "anna").env("BELLJAR_REGISTRY_PASSWORD", "s3cr3t-x");
    let refused = context.call(["image", "pull", &reference]);
    assert_eq!(refused.code, Some(125));
    assert!(!refused.to_string().contains("s3cr3t-x"), "{refused}");
    assert!(refused.stderr().contains("does not let us"), "{refused}");

    let context = context.env("BELLJAR_REGISTRY_PASSWORD", "secret");
    let let_in = context.call(["image", "pull", &reference]);
    assert!(let_in.stderr().contains("has no such image"), "{let_in}");

    let gone = context.call(["image", "pull", "127.0.0.1:1/nobody:1"]);
    assert!(gone.stderr().contains("failed to query the registry `127.0.0.1:1`"), "{gone}");
    let nonsense = context.call(["image", "pull", "Not An Image"]);
    assert!(nonsense.stderr().contains("not the name of an image"), "{nonsense}");
    assert_eq!(context.call(["image", "list", "--json"]).json()["images"], serde_json::json!([]));
}

#[test]
fn what_a_registry_sends_is_not_believed() {
    for (manners, said) in [
        (Manners::Lies, "the image is damaged"),
        (Manners::SendsMore, "sends more than it announced"),
    ] {
        let impostor = Impostor::start(&small(), manners);
        let context = with_own_store();
        let pulled = context.call(["image", "pull", &format!("{}/small:1", impostor.address)]);
        assert_eq!(pulled.code, Some(125));
        assert!(pulled.stderr().contains(said), "{pulled}");
        assert_eq!(context.call(["image", "list"]).stdout(), "");
    }
}

#[test]
fn a_download_that_was_cut_off_is_gone_on_with() {
    let image = small();
    let impostor = Impostor::start(&image, Manners::CutsOff);
    let context = with_own_store();
    let reference = format!("{}/small:1", impostor.address);
    let pulled = context.call(["image", "pull", &reference]);
    assert_eq!(pulled.code, Some(0), "{pulled}");
    let half = format!("{} from {}", digest(&image.layer), image.layer.len() / 2);
    let asked = impostor.asked.lock().expect("nobody panics").clone();
    assert!(asked.iter().any(|asked| asked.ends_with(&half)), "{asked:?}");

    // A download that fails for good leaves its part for the next attempt.
    let impostor = Impostor::start(&image, Manners::NeverFinishes);
    let context = with_own_store();
    let failed = context.call(["image", "pull", &format!("{}/small:1", impostor.address)]);
    assert_eq!(failed.code, Some(125), "{failed}");
    let partial = context.path("home/images/partial").join(&digest(&image.layer)[7..]);
    let kept = std::fs::metadata(partial).expect("it is kept").len();
    assert_eq!(kept, (image.layer.len() / 2) as u64);
    let impostor = Impostor::start(&image, Manners::CutsOff);
    let pulled = context.call(["image", "pull", &format!("{}/small:1", impostor.address)]);
    assert_eq!(pulled.code, Some(0), "{pulled}");
}
