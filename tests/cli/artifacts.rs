//! Files that code leaves in `/work/artifacts`. Hostile ones are met in `tests/security`.

use std::fs;

use insta::assert_snapshot;

use crate::context::{TestContext, tree};

#[test]
fn artifacts_are_promoted_with_their_folders() {
    let context = TestContext::new();
    let code = "\
import os
os.makedirs('/work/artifacts/plots/2024')
open('/work/artifacts/table.csv', 'w').write('a,b\\n1,2\\n')
open('/work/artifacts/plots/2024/one.txt', 'w').write('one')
open('/work/artifacts/empty', 'w').close()
os.makedirs('/work/artifacts/an empty folder')
";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: /work/artifacts/empty -> [CWD]/outputs/run_[ID]/empty
    belljar: /work/artifacts/plots/2024/one.txt -> [CWD]/outputs/run_[ID]/plots/2024/one.txt
    belljar: /work/artifacts/table.csv -> [CWD]/outputs/run_[ID]/table.csv
    ");
    assert_eq!(
        tree(&context.path("outputs")),
        [
            "run_[ID]",
            "run_[ID]/empty",
            "run_[ID]/plots",
            "run_[ID]/plots/2024",
            "run_[ID]/plots/2024/one.txt",
            "run_[ID]/table.csv",
        ]
    );
}

#[test]
fn the_artifact_map_leads_from_the_sandbox_to_the_host() {
    let context = TestContext::new();
    let result = context.json([
        "--outputs",
        "elsewhere/deep",
        "-c",
        "open('/session/artifacts/h\u{e4}lfte.bin', 'wb').write(bytes(range(256)) * 4096)",
    ]);
    let map = result["artifact_map"].as_object().expect("an object");
    let host = map["/work/artifacts/h\u{e4}lfte.bin"].as_str().expect("a path");
    let id = result["exec_id"].as_str().expect("text");
    assert_eq!(
        host,
        context.path(&format!("elsewhere/deep/{id}/h\u{e4}lfte.bin")).display().to_string()
    );
    let bytes = fs::read(host).expect("a file");
    assert!(bytes.len() == 1 << 20 && bytes.iter().zip(0u8..=255).all(|(a, b)| *a == b));
    assert_eq!(result["artifacts"][0]["size"], 1 << 20);
}

#[test]
fn without_artifacts_nothing_is_left_on_the_host() {
    let context = TestContext::new();
    let code =
        "open('/session/notes.txt', 'w').write('not an artifact'); open('/tmp/x', 'w').close()";
    assert_eq!(context.run(["-c", code]).code, Some(0));
    assert_eq!(tree(&context.path(".")), [""; 0]);
}

#[test]
fn artifacts_survive_an_error_a_timeout_and_a_crash() {
    let context = TestContext::new();
    for ending in ["1 / 0", "while True: pass", "import os; os._exit(7)"] {
        let code = format!("open('/work/artifacts/left.txt', 'w').write('left')\n{ending}");
        let result = context.json(["--timeout", "1", "-c", &code]);
        let host = result["artifact_map"]["/work/artifacts/left.txt"].as_str();
        let host = host.unwrap_or_else(|| panic!("{ending}: {result:#}"));
        assert_eq!(fs::read_to_string(host).expect("a file"), "left", "{ending}");
    }
}

#[test]
fn bash_leaves_artifacts_too() {
    let context = TestContext::new();
    let finished = context.run(["--lang", "bash", "-c", "echo hello > /work/artifacts/hello.txt"]);
    assert_snapshot!(finished, @r"
    exit 0
    --- stdout
    --- stderr
    belljar: /work/artifacts/hello.txt -> [CWD]/outputs/run_[ID]/hello.txt
    ");
}

#[test]
fn what_is_not_taken_is_said() {
    let context = TestContext::new();
    let code = "import os; os.symlink('/etc/passwd', '/work/artifacts/link')";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: not taken: /work/artifacts/link (a symbolic link)
    ");
    assert_eq!(tree(&context.path(".")), [""; 0]);
}

#[test]
fn an_output_directory_that_cannot_be_made_is_said() {
    let context = TestContext::new().file("outputs", "a file is in the way");
    let code = "open('/work/artifacts/x', 'w').close(); print('ran')";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 0
    --- stdout
    ran
    --- stderr
    belljar: not taken: /work/artifacts/x (failed to write `[CWD]/outputs/run_[ID]/x`: Not a directory (os error 20))
    ");
}

#[test]
fn figures_are_counted_and_are_in_the_json() {
    let context = TestContext::new();
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 0
    --- stdout
    <Figure size 640x480 with 1 Axes>
    --- stderr
    belljar: 1 picture(s) were shown; --json has them
    ");
}
