//! A script as Python runs it: arguments, standard input, its own file, the modules beside it, its end.

use std::fs;
use std::os::unix::fs::symlink;

use insta::assert_snapshot;

use crate::shell::Person;
use belljar_testkit::command::TestContext;

#[test]
fn a_script_has_arguments_a_file_and_the_modules_beside_it() {
    let script = "\
import sys
import helper, package.deep, plain.code
from package import table
print(sys.argv, __file__, __name__)
print(helper.__file__, package.deep.X, plain.code.X, table)
assert open(__file__).read().startswith('import sys')
assert sys.path[0] == '/session'
";
    let context = TestContext::new()
        .file("tools/run me.py", script)
        .file("tools/helper.py", "")
        .file("tools/secret.txt", "")
        .file("tools/.env", "")
        .file(
            "tools/package/__init__.py",
            "import os\ntable = open(os.path.join(__path__[0], 't')).read()",
        )
        .file("tools/package/t", "a table")
        .file("tools/package/deep.py", "X = 'deep'")
        .file("tools/plain/code.py", "X = 'plain'");
    assert_snapshot!(context.run(["tools/run me.py", "--", "-x", "a b", "--", ""]), @r"
    exit 0
    --- stdout
    ['run me.py', '-x', 'a b', '--', ''] /session/run me.py __main__
    /session/helper.py deep plain a table
    --- stderr
    ");
    let list = "import os\nprint(sorted(n for n in os.listdir() if n != '__pycache__'))";
    fs::write(context.path("tools/run me.py"), list).expect("a file");
    let listed = context.run(["tools/run me.py"]).stdout();
    assert_eq!(listed, "['artifacts', 'data', 'helper.py', 'package', 'run me.py']\n");
    let listed = context.run(["tools/run me.py", "--no-modules"]).stdout();
    assert_eq!(listed, "['artifacts', 'data', 'run me.py']\n");
    // Python searches beside the script itself, not beside a link to it.
    symlink("tools/run me.py", context.path("link.py")).expect("a link");
    let listed = context.run(["link.py"]).stdout();
    assert_eq!(listed, "['artifacts', 'data', 'helper.py', 'link.py', 'package']\n");
}

#[test]
fn tracebacks_name_the_script_and_its_modules() {
    let context = TestContext::new()
        .file("outer.py", "import inner\ninner.fail()\n")
        .file("inner.py", "def fail():\n    1 / 0\n");
    assert_snapshot!(context.run(["outer.py"]), @r#"
    exit 1
    --- stdout
    --- stderr
    Traceback (most recent call last):
      File "/session/outer.py", line 2, in <module>
        inner.fail()
      File "/session/inner.py", line 2, in fail
        1 / 0
        ~~^~~
    ZeroDivisionError: division by zero
    "#);
}

#[test]
fn other_code_has_arguments_too() {
    let context = TestContext::new().file("x.sh", "echo \"$0|$1|$2\"").file("x.js", "1");
    assert_eq!(context.run(["-c", "import sys; sys.argv", "--", "a"]).stdout(), "['-c', 'a']\n");
    let finished = context.run_with_input(["-", "--", "a"], "import sys; sys.argv");
    assert_eq!(finished.stdout(), "['-', 'a']\n");
    assert_eq!(context.run(["x.sh", "--", "a", "b c"]).stdout(), "x.sh|a|b c\n");
    let bash = ["--lang", "bash", "-c", "echo \"$0|$1\"", "--", "a"];
    assert_eq!(context.run(bash).stdout(), "bash|a\n");
    assert_snapshot!(context.run(["x.js", "--", "a"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: arguments after -- are for Python and bash, and this is javascript
    ");
}

#[test]
fn standard_input_is_the_scripts_own() {
    let code = "\
import sys
print(repr(input('first? ')))
print(repr(sys.stdin.readline()), repr(sys.stdin.buffer.read(3)))
print([line for line in sys.stdin], repr(sys.stdin.read()))
";
    let context = TestContext::new().file("reads.py", code);
    let finished = context.run_with_input(["reads.py"], "one\ntwo\nthree\n\nlast");
    // The text layer reads ahead, as in plain Python: `buffer` has only the rest.
    assert_eq!(finished.code, Some(0), "{finished}");
    assert!(finished.stdout().starts_with("first? 'one'\n'two\\n' "), "{finished}");
    let finished = context.run_with_input(["-c", "import sys; print(sys.stdin.read())"], "x\ny");
    assert_eq!(finished.stdout(), "x\ny\n");
    let finished =
        context.run_with_input(["--lang", "bash", "-c", "read a; echo got $a; cat"], "1\n2\n3");
    assert_eq!(finished.stdout(), "got 1\n2\n3");
    assert!(
        context
            .run(["-c", "input('x? ')"])
            .stderr()
            .ends_with("EOFError: EOF when reading a line\n")
    );
}

#[test]
fn much_input_arrives_whole_whatever_is_in_it() {
    let bytes: Vec<u8> =
        (0..5_000_000u32).flat_map(|n| [n.to_le_bytes()[0], n.to_le_bytes()[1]]).collect();
    let code = "import hashlib, sys; print(hashlib.md5(sys.stdin.buffer.read()).hexdigest())";
    let context = TestContext::new();
    let finished = context.run_with_input(["-c", code], &bytes);
    let mut md5 = context.program("md5sum");
    fs::write(context.path("bytes"), &bytes).expect("a file");
    let expected = context.finish(md5.arg("bytes")).stdout();
    assert_eq!(finished.stdout().trim(), expected.split_whitespace().next().unwrap_or_default());
    // Code does not have to read all of its input.
    let finished = context.run_with_input(["-c", "input()[:0] or 'enough'"], &bytes);
    assert_eq!(finished.stdout(), "'enough'\n", "{finished}");
}

#[test]
fn input_that_the_code_does_not_ask_for_is_left_to_others() {
    let context = TestContext::new().file("lines", "1\n2\n3\n");
    let belljar = belljar_testkit::belljar();
    let script = format!("while read n; do '{belljar}' run -c \"print($n * 10)\"; done < lines");
    let finished = context.finish(context.program("sh").args(["-c", &script]));
    assert_eq!(finished.stdout(), "10\n20\n30\n", "{finished}");
}

#[test]
fn a_person_at_a_terminal_is_asked() {
    let code = "\
import getpass
name = input('Name? ')
secret = getpass.getpass('Secret? ')
print(f'hello {name}, {len(secret)} letters')
input('more? ')
";
    let context = TestContext::new().file("ask.py", code);
    let mut person = Person::starts(&context, &["run", "ask.py"]);
    person.sees("Name? ");
    person.types("Ada\n");
    person.sees("Secret? ");
    person.types("hush!\n");
    let seen = person.sees("hello Ada, 5 letters");
    assert!(!seen.contains("hush"), "{seen}");
    person.sees("more? ");
    person.types("no\n");
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn the_end_of_a_script_is_what_it_is_for_python() {
    let code = "\
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
atexit.register(lambda: open('/work/artifacts/at exit', 'w').close())
atexit.register(print, 'at exit')
pool = ThreadPoolExecutor(2)
pool.submit(lambda: (time.sleep(0.1), print('pool')))
threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()
threading.Thread(target=time.sleep, args=[1000], daemon=True).start()
print('end')
sys.exit(3)
";
    let context = TestContext::new().file("script.py", code);
    assert_snapshot!(context.run(["script.py"]), @r"
    exit 3
    --- stdout
    end
    pool
    thread
    at exit
    --- stderr
    belljar: /work/artifacts/at exit -> [CWD]/outputs/run_[ID]/at exit
    ");
    let stuck = "import threading, time\nthreading.Thread(target=time.sleep, args=[1000]).start()";
    assert_eq!(context.run(["--timeout", "1", "-c", stuck]).code, Some(124));
}

#[test]
fn files_may_say_how_they_are_encoded() {
    let context = TestContext::new()
        .file("mark.py", b"\xef\xbb\xbfprint('\xc3\xa4')\r\n")
        .file("latin.py", b"# -*- coding: latin-1 -*-\nprint('\xe4')\n");
    for name in ["mark.py", "latin.py"] {
        let finished = context.run([name]);
        assert_eq!(
            (finished.code, finished.stdout().as_str()),
            (Some(0), "\u{e4}\n"),
            "{finished}"
        );
    }
}

#[test]
fn a_file_that_the_sandbox_does_not_see_is_pointed_out() {
    let context = TestContext::new()
        .file("dir/table.csv", "")
        .file("dir/script.py", "open('table.csv')")
        .file("dir/other.py", "open('nowhere.csv')");
    let said = context.run(["dir/script.py"]).stderr();
    assert!(said.ends_with("belljar: `table.csv` is on this machine, and the sandbox does not see it; --data DIR shows a directory at /data\n"), "{said}");
    let said = context.run(["dir/other.py"]).stderr();
    assert!(said.ends_with("No such file or directory: 'nowhere.csv'\n"), "{said}");
}

#[test]
fn tasks_that_a_run_leaves_are_reported() {
    let code = "\
import asyncio
async def slow(): await asyncio.sleep(100)
async def broken(): raise ValueError('lost?')
async def main():
    asyncio.create_task(slow())
    asyncio.create_task(broken())
    await asyncio.sleep(0.01)
await main()
";
    let said = TestContext::new().run(["-c", code]).stderr();
    assert!(said.contains("asyncio task `Task-3` (broken) failed:\nTraceback"), "{said}");
    assert!(
        said.ends_with(
            "belljar: asyncio tasks that had not ended with the code: `Task-2` (slow)\n"
        ),
        "{said}"
    );
}
