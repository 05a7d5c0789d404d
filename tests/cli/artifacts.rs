//! Files that code leaves in `/work/artifacts`. Hostile ones are tested in `tests/security`.

use std::fs;

use insta::assert_snapshot;

use belljar_testkit::command::{TestContext, tree};

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
    exit 123
    --- stdout
    --- stderr
    belljar: not taken: /work/artifacts/link (a symbolic link)
    ");
    assert_eq!(tree(&context.path(".")), [""; 0]);
}

#[test]
fn an_output_directory_that_cannot_be_made_is_an_error_of_its_own() {
    let context = TestContext::new().file("outputs", "a file is in the way");
    let code = "open('/work/artifacts/x', 'w').close(); print('ran')";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 123
    --- stdout
    ran
    --- stderr
    belljar: not taken: /work/artifacts/x (failed to write `[CWD]/outputs/run_[ID]/x`: Not a directory (os error 20))
    ");
}

#[test]
fn lost_artifacts_do_not_hide_how_the_code_ended() {
    let context = TestContext::new().file("outputs", "a file is in the way");
    let code = "open('/work/artifacts/x', 'w').close()\nraise SystemExit(7)";
    assert_eq!(context.run(["-c", code]).code, Some(7));
    let finished = context.call(["run", "--json", "-c", "open('/work/artifacts/x', 'w').close()"]);
    assert_eq!(finished.code, Some(123), "{finished}");
    let result = finished.json();
    assert_eq!((&result["status"], &result["exit_code"]), (&"ok".into(), &0.into()));
    assert_eq!(result["artifacts_refused"][0]["path"], "/work/artifacts/x");
}

const FIGURES: &str = "\
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
plt.plot([2, 1])
None";

#[test]
fn figures_that_were_shown_are_saved_beside_the_artifacts() {
    let context = TestContext::new();
    let own = "open('/work/artifacts/figure-2.png', 'w').write('of the code')\n";
    assert_snapshot!(context.run(["-c", &format!("{own}{FIGURES}")]), @r"
    exit 0
    --- stdout
    <Figure size 640x480 with 1 Axes>
    <Figure size 640x480 with 1 Axes>
    --- stderr
    belljar: /work/artifacts/figure-2.png -> [CWD]/outputs/run_[ID]/figure-2.png
    belljar: figure -> [CWD]/outputs/run_[ID]/figure-1.png
    belljar: figure -> [CWD]/outputs/run_[ID]/figure-2-2.png
    ");
    let run = fs::read_dir(context.path("outputs")).expect("a directory").next().expect("a run");
    let run = run.expect("an entry").path();
    for name in ["figure-1.png", "figure-2-2.png"] {
        let bytes = fs::read(run.join(name)).expect("a file");
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
    assert_eq!(fs::read(run.join("figure-2.png")).expect("a file"), b"of the code");
}

#[test]
fn figures_that_cannot_be_saved_are_lost_artifacts() {
    let context = TestContext::new().file("outputs", "a file is in the way");
    assert_snapshot!(context.run(["-c", FIGURES]), @r"
    exit 123
    --- stdout
    <Figure size 640x480 with 1 Axes>
    <Figure size 640x480 with 1 Axes>
    --- stderr
    belljar: not saved: figure 1 (Not a directory (os error 20))
    belljar: not saved: figure 2 (Not a directory (os error 20))
    ");
}

#[test]
fn invalid_images_are_reported_and_nothing_is_written() {
    let context = TestContext::new();
    let code = "\
class Liar:
    def __init__(self, data): self.data = data
    def _repr_mimebundle_(self, **_): return self.data
display(Liar({'image/png': 'no base64!', 'text/plain': 'a'}))
display(Liar({'image/../../x': 'aGk=', 'text/plain': 'b'}))
display(Liar({'image/svg+xml': '<svg/>', 'text/plain': 'c'}))";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 123
    --- stdout
    a
    b
    c
    --- stderr
    belljar: figure -> [CWD]/outputs/run_[ID]/figure-2.svg
    belljar: not saved: figure 1 (Invalid symbol 33, offset 8.)
    ");
}

#[test]
fn what_is_left_in_the_working_directory_is_named() {
    let context = TestContext::new();
    let code = "\
import os
os.makedirs('deep/er'); os.makedirs('.cache')
for name in ['out.csv', 'deep/er/b\\x1b[31m.txt', '.cache/x', 'artifacts/kept', 'data/d', '/tmp/t']:
    open(name, 'w').write('12345')
";
    assert_snapshot!(context.run(["-c", code]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: /work/artifacts/kept -> [CWD]/outputs/run_[ID]/kept
    belljar: not kept: data/d, deep/er/b\u{1b}[31m.txt, out.csv (15 B in the working directory); files in /work/artifacts are kept
    ");
    let many = "for n in range(30): open(f'{n:02}', 'w').close()";
    let said = context.run(["-c", many]).stderr();
    assert!(said.contains("not kept: 00, 01, 02, 03, 04 and 25 more (0 B"), "{said}");
    let left = &context.json(["-c", many])["left_behind"];
    assert_eq!((&left["files"], left["named"].as_array().map(Vec::len)), (&30.into(), Some(20)));
}
