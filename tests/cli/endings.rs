//! How code ends, and how that is reported: by the exit status, and in words.

use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::Value;

use belljar_testkit::command::{Finished, TestContext};
use belljar_testkit::wait::PATIENCE;

fn python(code: &str) -> Finished {
    TestContext::new().run(["-c", code])
}

#[test]
fn sys_exit_sets_the_exit_status() {
    assert_snapshot!(python("print('bye')\nimport sys; sys.exit(3)"), @r"
    exit 3
    --- stdout
    bye
    --- stderr
    ");
    assert_snapshot!(python("raise SystemExit"), @r"
    exit 0
    --- stdout
    --- stderr
    ");
    assert_snapshot!(python("raise SystemExit('this is why')"), @r"
    exit 1
    --- stdout
    --- stderr
    this is why
    ");
    assert_eq!(python("raise SystemExit(256 + 7)").code, Some(7));
}

#[test]
fn a_traceback_shows_the_users_lines_and_not_ours() {
    let code = "\
def divide(x):
    return 1 / x

print('before')
divide(0)
";
    assert_snapshot!(python(code), @r#"
    exit 1
    --- stdout
    before
    --- stderr
    Traceback (most recent call last):
      File "<cell 1>", line 5, in <module>
        divide(0)
      File "<cell 1>", line 2, in divide
        return 1 / x
               ~~^~~
    ZeroDivisionError: division by zero
    "#);
    assert_snapshot!(python("if True print(1)"), @r#"
    exit 1
    --- stdout
    --- stderr
      File "<cell 1>", line 1
        if True print(1)
                ^^^^^
    SyntaxError: invalid syntax
    "#);
}

#[test]
fn input_fails_at_once_without_input() {
    let finished = TestContext::new().run_with_input(["-"], "name = input('Your name? ')");
    assert_snapshot!(finished, @r#"
    exit 1
    --- stdout
    --- stderr
    Traceback (most recent call last):
      File "<cell 1>", line 1, in <module>
        name = input('Your name? ')
               ^^^^^^^^^^^^^^^^^^^^
    EOFError: input() is not available here: this execution takes no input; pass the value in the code instead
    "#);
}

#[test]
fn a_crash_is_called_one_and_said_at_once() {
    for (code, exit, reason) in [
        ("os._exit(7)", 7, "the kernel exited with status 7"),
        ("os._exit(0)", 0, "the kernel exited with status 0"),
        ("os.abort()", 134, "the kernel was killed by signal 6"),
        ("os.kill(os.getpid(), 9)", 137, "the kernel was killed by signal 9"),
        (
            "import ctypes; ctypes.string_at(0)",
            139,
            "the kernel died of a segmentation fault (signal 11)",
        ),
    ] {
        let finished = python(&format!("print('before', flush=True)\nimport os\n{code}"));
        assert!(finished.took < PATIENCE, "{code}: {finished:?}");
        assert_eq!(
            finished.to_string(),
            format!("exit {exit}\n--- stdout\nbefore\n--- stderr\nbelljar: crashed: {reason}\n"),
            "{code}"
        );
    }
}

#[test]
fn a_crash_is_reported_within_two_seconds() {
    let result = TestContext::new().json(["-c", "import os; os.abort()"]);
    assert_eq!((&result["status"], &result["kernel_state"]), (&"crashed".into(), &"lost".into()));
    assert!(result["duration_ms"].as_f64().expect("a number") < 2000.0, "{result:#}");
}

#[test]
fn running_out_of_memory_is_called_that() {
    let context = TestContext::new();
    let finished =
        context.run(["--memory", "64M", "-c", "print('before', flush=True)\nb'x' * (200 << 20)"]);
    assert_snapshot!(finished, @r"
    exit 137
    --- stdout
    before
    --- stderr
    belljar: out of memory: the kernel was killed because the memory limit was reached
    ");
    let result = context.json(["--memory", "64M", "-c", "b'x' * (200 << 20)"]);
    assert_eq!(
        (&result["status"], &result["exit_code"], &result["kernel_state"]),
        (&"oom".into(), &137.into(), &"lost".into())
    );
}

#[test]
fn a_child_that_runs_out_of_memory_is_not_silent() {
    let code = "\
import subprocess, sys
hungry = [sys.executable, '-c', \"b'x' * (200 << 20)\"]
print(subprocess.run(hungry).returncode)
";
    assert_snapshot!(TestContext::new().run(["--memory", "64M", "-c", code]), @r"
    exit 0
    --- stdout
    -9
    --- stderr
    belljar: 1 process(es) started by the code were killed for memory
    ");
}

#[test]
fn a_bash_script_out_of_memory_is_called_that_too() {
    let script = "exec python3 -c \"b'x' * (200 << 20)\"";
    let finished = TestContext::new().run(["--memory", "64M", "--lang", "bash", "-c", script]);
    assert_eq!(finished.code, Some(137), "{finished}");
    assert!(finished.stderr().contains("out of memory"), "{finished}");
}

#[test]
fn json_holds_everything_there_is_to_know() {
    let code = "\
import sys
print('to stdout')
print('to stderr', file=sys.stderr)
display({'shown': 'on the way'})
with open('/work/artifacts/answer.txt', 'w') as file:
    file.write('42')
[6 * 7]
";
    let mut result = TestContext::new().json(["-c", code]);
    let id = result["exec_id"].as_str().expect("text").to_owned();
    assert!(id.starts_with("run_"));
    let host_path = result["artifacts"][0]["host_path"].as_str().expect("a path").to_owned();
    assert!(host_path.ends_with(&format!("/outputs/{id}/answer.txt")), "{host_path}");
    assert_json_snapshot!(tidy(&mut result, &[&id, &host_path]), @r#"
    {
      "artifact_map": {
        "/work/artifacts/answer.txt": "[2]"
      },
      "artifacts": [
        {
          "host_path": "[2]",
          "name": "answer.txt",
          "path": "/work/artifacts/answer.txt",
          "size": 2
        }
      ],
      "dropped": {
        "stderr_bytes": 0,
        "stdout_bytes": 0
      },
      "duration_ms": "[SOME]",
      "error": null,
      "exec_id": "[1]",
      "execution_count": 1,
      "exit_code": 0,
      "kernel_state": "kept",
      "results": [
        {
          "data": {
            "text/plain": "{'shown': 'on the way'}"
          },
          "kind": "display"
        },
        {
          "data": {
            "text/plain": "[42]"
          },
          "kind": "result"
        }
      ],
      "status": "ok",
      "stderr": "to stderr\n",
      "stdout": "to stdout\n"
    }
    "#);
}

#[test]
fn json_tells_of_failures_too() {
    let context = TestContext::new();
    let finished = context.call(["run", "--json", "-c", "1 / 0"]);
    assert_eq!(finished.code, Some(1), "the exit status is the code's own here as well");
    assert_eq!(finished.stderr(), "");
    assert_json_snapshot!(finished.json()["error"], @r#"
    {
      "name": "ZeroDivisionError",
      "traceback": "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n",
      "value": "division by zero"
    }
    "#);
    let result = context.json(["-c", "import os; os._exit(7)"]);
    assert_json_snapshot!(tidy(&mut result.clone(), &[]), @r#"
    {
      "artifact_map": {},
      "artifacts": [],
      "dropped": {
        "stderr_bytes": 0,
        "stdout_bytes": 0
      },
      "duration_ms": "[SOME]",
      "error": null,
      "exec_id": "[SOME]",
      "execution_count": 0,
      "exit_code": 7,
      "kernel_state": "lost",
      "reason": "the kernel exited with status 7",
      "results": [],
      "status": "crashed",
      "stderr": "",
      "stdout": ""
    }
    "#);
}

/// Replaces what differs between runs: the duration, and the given texts by their number.
fn tidy(result: &mut Value, known: &[&str]) -> Value {
    assert!(result["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{result:#}");
    result["duration_ms"] = "[SOME]".into();
    if known.is_empty() {
        result["exec_id"] = "[SOME]".into();
    }
    let mut text = result.to_string();
    for (number, known) in known.iter().enumerate().rev() {
        text = text.replace(known, &format!("[{}]", number + 1));
    }
    serde_json::from_str(&text).expect("still JSON")
}
