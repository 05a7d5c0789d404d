//! Where the code comes from, and what counts as code.

use std::fs::File;

use insta::assert_snapshot;

use belljar_testkit::command::TestContext;

#[test]
fn a_last_expression_is_echoed_for_c_and_stdin_but_not_for_a_file() {
    let context = TestContext::new().file("code.py", "print('hi')\n6 * 7\n");
    assert_snapshot!(context.run(["-c", "print('hi')\n6 * 7"]), @r"
    exit 0
    --- stdout
    hi
    42
    --- stderr
    ");
    assert_snapshot!(context.run_with_input(["-"], "print('hi')\n6 * 7"), @r"
    exit 0
    --- stdout
    hi
    42
    --- stderr
    ");
    assert_snapshot!(context.run(["code.py"]), @r"
    exit 0
    --- stdout
    hi
    --- stderr
    ");
}

#[test]
fn c_takes_code_that_looks_like_a_flag() {
    assert_snapshot!(TestContext::new().run(["-c", "-1"]), @r"
    exit 0
    --- stdout
    -1
    --- stderr
    ");
}

#[test]
fn empty_code_is_code() {
    let context = TestContext::new().file("empty.py", "").file("empty.sh", "");
    for args in [&["-c", ""][..], &["empty.py"], &["empty.sh"], &["-"]] {
        assert_eq!(
            context.run(args).to_string(),
            "exit 0\n--- stdout\n--- stderr\n",
            "belljar run {args:?}"
        );
    }
}

#[test]
fn bytes_that_are_no_python_are_an_error_of_the_code() {
    let context =
        TestContext::new().file("nul.py", b"print(1)\0\n").file("latin1.py", b"print('\xe9')\n");
    assert_snapshot!(context.run(["nul.py"]), @r"
    exit 1
    --- stdout
    --- stderr
    SyntaxError: source code string cannot contain null bytes
    ");
    assert_snapshot!(context.run(["latin1.py"]), @r"
    exit 1
    --- stdout
    --- stderr
    UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 7: invalid continuation byte
    ");
}

#[test]
fn bash_scripts_are_known_by_their_name_or_by_lang() {
    let script = "echo \"$0 $BASH_VERSINFO\" > /dev/null; echo out; echo err >&2; exit 4";
    let context = TestContext::new().file("code.sh", script).file("code.txt", script);
    let expected = "exit 4\n--- stdout\nout\n--- stderr\nerr\n";
    assert_eq!(context.run(["code.sh"]).to_string(), expected);
    assert_eq!(context.run(["--lang", "bash", "code.txt"]).to_string(), expected);
    assert_eq!(context.run(["--lang", "bash", "-c", script]).to_string(), expected);
    assert_eq!(context.run_with_input(["--lang", "bash", "-"], script).to_string(), expected);
}

#[test]
fn bash_has_the_working_directory_and_the_tools_of_a_session() {
    let finished =
        TestContext::new().run(["--lang", "bash", "-c", "pwd; python -c 'print(1 + 1)'"]);
    assert_snapshot!(finished, @r"
    exit 0
    --- stdout
    /session
    2
    --- stderr
    ");
}

#[test]
fn a_bash_script_that_is_no_text_is_refused() {
    let context = TestContext::new().file("nul.sh", b"echo 1\0").file("latin1.sh", b"echo \xe9");
    assert_snapshot!(context.run(["nul.sh"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: a bash script must be text in UTF-8 without NUL bytes
    ");
    assert_eq!(context.run(["latin1.sh"]).to_string(), context.run(["nul.sh"]).to_string());
}

#[test]
fn long_code_is_fine() {
    let code = format!("{}print(sum([x0, x9999]))", lines(10_000, |n| format!("x{n} = {n}")));
    assert!(code.len() > 100_000);
    let context = TestContext::new().file("long.py", &code);
    assert_eq!(context.run(["long.py"]).stdout(), "9999\n");
    assert_eq!(context.run_with_input(["-"], &code).stdout(), "9999\n");
    let script = format!("{}echo $((x0 + x9999))", lines(10_000, |n| format!("x{n}={n}")));
    let context = TestContext::new().file("long.sh", &script);
    assert_eq!(context.run(["long.sh"]).to_string(), "exit 0\n--- stdout\n9999\n--- stderr\n");
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|n| line(n) + "\n").collect()
}

#[test]
fn code_beyond_64_mib_is_refused() {
    let context = TestContext::new();
    let file = File::create(context.path("huge.py")).expect("a file");
    // A sparse file, which uses no disk space.
    file.set_len((64 << 20) + 1).expect("a hole");
    assert_snapshot!(context.run(["huge.py"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: the code has 67108865 bytes, more than the 67108864 allowed
    ");
}

#[test]
fn code_that_cannot_be_read_is_trouble() {
    let context = TestContext::new().file("folder/code.py", "");
    assert_snapshot!(context.run(["missing.py"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to read `missing.py`: No such file or directory (os error 2)
    ");
    assert_snapshot!(context.run(["folder"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `folder` is a directory
    ");
}
