//! `belljar image build`, with real packages.

use crate::fixture::{BASE, call_with_certificates, shared_home, with_shared_images};
use crate::import::docker;

const SMALL: &str = r#"
base = "belljar-test/base"
pip = ["six==1.17.0"]
preload = ["six"]
user = "somebody"
[env]
GREETING = "hello"
"#;

#[test]
fn one_spec_gives_a_native_and_a_docker_image() {
    let context = with_shared_images().file("small.toml", SMALL);
    let name = "belljar-test/small:latest";
    let build = ["image", "build", "-f", "small.toml", "--name", name];
    let built = call_with_certificates(&context, &build);
    assert_eq!(built.code, Some(0), "{built}");
    let first = context.call(["image", "show", name, "--json"]).json();

    let code =
        "import six, os, sys; print(six.__version__, os.environ['GREETING'], sys.executable)";
    let ran = context.run(["--image", name, "-c", code]);
    assert_eq!(ran.stdout(), "1.17.0 hello /opt/venv/bin/python3\n", "{ran}");

    if docker(&["version"]).is_some() {
        assert!(built.stderr().contains("the container engine has it as well"), "{built}");
        let inside = "import six, os; print(six.__version__, os.getuid(), os.getcwd(), \
                      os.path.realpath('/work'), os.path.realpath('/workspace'), os.path.isdir('/data'))";
        let run =
            ["run", "--rm", "--read-only", "--network", "none", name, "python3", "-c", inside];
        let said = docker(&run).expect("it runs");
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(said, "1.17.0 1000 /session /session /session True\n");
        let labels = docker(&["inspect", "--format", "{{json .Config.Labels}}", name]);
        let labels = String::from_utf8_lossy(&labels.expect("it is there")).into_owned();
        assert_eq!(labels.trim(), r#"{"belljar.image":"1","belljar.preload":"six"}"#);
        let users =
            docker(&["run", "--rm", "--network", "none", name, "id", "-un"]).expect("it runs");
        assert_eq!(users, b"somebody\n");
        docker(&["rmi", name]);
    }

    // A second build gives the same layers, byte for byte, so nothing is stored twice.
    let again = call_with_certificates(&context, &[&build[..], &["--no-docker"]].concat());
    assert_eq!(again.code, Some(0), "{again}");
    let second = context.call(["image", "show", name, "--json"]).json();
    assert_eq!(first["layers"], second["layers"]);
    assert_eq!(context.call(["image", "remove", name]).code, Some(0));
}

#[test]
fn a_step_that_fails_shows_why_and_leaves_nothing() {
    let context = with_shared_images()
        .file(
            "missing.toml",
            "base = \"belljar-test/base\"\npip = [\"no-such-package-of-belljar\"]",
        )
        .file("typo.toml", "base = \"x\"\nptp = []");
    let failed =
        call_with_certificates(&context, &["image", "build", "-f", "missing.toml", "--name", "no"]);
    assert_eq!(failed.code, Some(125), "{failed}");
    assert!(failed.stderr().contains("no-such-package-of-belljar"), "{failed}");
    assert!(failed.stderr().contains("pip install"), "{failed}");
    assert_eq!(context.call(["image", "show", "no"]).code, Some(125));
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("it is there");
    let store = shared_home().display().to_string();
    assert!(!mounts.contains(&store), "nothing stays mounted");
    let typo = context.call(["image", "build", "-f", "typo.toml"]);
    assert!(typo.stderr().contains("ptp"), "{typo}");
    let shown = context.call(["image", "build", "--print-spec"]);
    assert!(shown.stdout().contains("rdkit"), "{shown}");
    assert_eq!(context.call(["image", "show", BASE]).code, Some(0));
}
