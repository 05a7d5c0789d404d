//! `belljar run NOTEBOOK.ipynb`: all cells run in one kernel, and a copy has their outputs.

use std::fs;

use insta::assert_snapshot;
use serde_json::{Value, json};

use belljar_testkit::command::{TestContext, tree};

fn code(source: &str) -> Value {
    let stale = json!([{"output_type": "stream", "name": "stdout", "text": ["stale"]}]);
    json!({"cell_type": "code", "id": "c", "metadata": {}, "source": source, "outputs": stale,
        "execution_count": 99})
}

fn notebook(cells: &[Value]) -> String {
    let kernel = json!({"name": "python3", "language": "python", "display_name": "Python 3"});
    json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells})
        .to_string()
}

fn read(context: &TestContext, name: &str) -> Value {
    serde_json::from_slice(&fs::read(context.path(name)).expect("a file")).expect("JSON")
}

#[test]
fn a_notebook_is_executed_and_a_copy_has_the_outputs() {
    let text = json!({"cell_type": "markdown", "id": "m", "metadata": {}, "source": ["# Title"]});
    let lines = json!({"cell_type": "code", "id": "l", "metadata": {"tags": ["x"]}, "outputs": [],
        "source": ["import helper\n", "x = helper.X\n", "print('hello')"], "execution_count": null});
    let cells = [
        text.clone(),
        lines,
        code("import sys\nprint('err', file=sys.stderr)\ndisplay({'a': 1})\nx + 1"),
        code("import matplotlib.pyplot as plt\nplt.plot([1, 2]);"),
        code("import asyncio\ntask = asyncio.create_task(asyncio.sleep(0.01, 'slept'))"),
        code("await task"),
        code("open('/work/artifacts/table.csv', 'w').close()\nopen('left', 'w').close()"),
        code("   "),
    ];
    let context =
        TestContext::new().file("nb/report.ipynb", notebook(&cells)).file("nb/helper.py", "X = 41");
    assert_snapshot!(context.run(["nb/report.ipynb"]), @r"
    exit 0
    --- stdout
    hello
    {'a': 1}
    42
    <Figure size 640x480 with 1 Axes>
    'slept'
    --- stderr
    err
    belljar: /work/artifacts/table.csv -> [CWD]/outputs/run_[ID]/table.csv
    belljar: executed notebook -> [CWD]/outputs/run_[ID]/report.ipynb
    belljar: not kept: left (0 B in the working directory); files in /work/artifacts are kept
    ");
    assert_eq!(
        tree(&context.path("outputs")),
        ["run_[ID]", "run_[ID]/report.ipynb", "run_[ID]/table.csv"]
    );
    let run = fs::read_dir(context.path("outputs")).expect("a directory").next().expect("a run");
    let run = run.expect("an entry").file_name().into_string().expect("text");
    let mut copy = read(&context, &format!("outputs/{run}/report.ipynb"));
    assert_eq!((&copy["nbformat"], &copy["cells"][0]), (&4.into(), &text));
    let image = copy["cells"][3]["outputs"][0]["data"]["image/png"].take();
    assert!(image.as_str().is_some_and(|data| data.starts_with("iVBORw0KGgo")), "{image}");
    let shown: Vec<Value> = copy["cells"]
        .as_array()
        .expect("cells")
        .iter()
        .skip(1)
        .map(|cell| json!([cell["execution_count"], cell["outputs"]]))
        .collect();
    let stream =
        |name: &str, text: &str| json!({"output_type": "stream", "name": name, "text": [text]});
    let bundle = |kind: &str, text: &str| json!({"output_type": kind, "metadata": {}, "data": {"text/plain": [text]}});
    let result = |text: &str, count: u64| {
        let mut result = bundle("execute_result", text);
        result["execution_count"] = count.into();
        result
    };
    let mut figure = bundle("display_data", "<Figure size 640x480 with 1 Axes>");
    figure["data"]["image/png"] = Value::Null;
    let display = bundle("display_data", "{'a': 1}");
    let second = [stream("stderr", "err\n"), display, result("42", 2)];
    assert_eq!(
        shown,
        [
            json!([1, [stream("stdout", "hello\n")]]),
            json!([2, second]),
            json!([3, [figure]]),
            json!([4, []]),
            json!([5, [result("'slept'", 5)]]),
            json!([6, []]),
            json!([null, []]),
        ]
    );
}

#[test]
fn the_first_error_ends_it_unless_keep_going() {
    let mut expected = code("1 / 0");
    expected["metadata"] = json!({"tags": ["raises-exception"]});
    let mut skipped = code("print('never')");
    skipped["metadata"] = json!({"tags": ["skip-execution"]});
    let cells =
        [expected, skipped, code("import sys; sys.exit(7)"), code("print('after')"), code("2 / 0")];
    let context = TestContext::new().file("a.ipynb", notebook(&cells));
    let finished = context.run(["a.ipynb", "--save-as", "b.ipynb"]);
    assert_eq!((finished.code, finished.stdout().as_str()), (Some(7), ""), "{finished}");
    assert!(
        finished.stderr().ends_with(
            "belljar: cell 2 of 4 with code failed; 2 after it did not run (--keep-going runs them)\n\
             belljar: executed notebook -> b.ipynb\n"
        ),
        "{finished}"
    );
    let copy = read(&context, "b.ipynb");
    assert_eq!(copy["cells"][0]["outputs"][0]["ename"], "ZeroDivisionError");
    for cell in [1, 3, 4] {
        let cell = &copy["cells"][cell];
        assert_eq!((&cell["outputs"], &cell["execution_count"]), (&json!([]), &Value::Null));
    }
    let finished = context.run(["a.ipynb", "--keep-going", "--save-as", "a.ipynb"]);
    assert_eq!((finished.code, finished.stdout().as_str()), (Some(7), "after\n"), "{finished}");
    assert_eq!(read(&context, "a.ipynb")["cells"][4]["outputs"][0]["output_type"], "error");
    assert_eq!(tree(&context.path(".")), ["a.ipynb", "b.ipynb"]);
}

#[test]
fn what_a_cell_dies_of_is_in_the_copy() {
    let cells = [code("print('before', flush=True)\nimport os; os._exit(5)"), code("1")];
    let hangs = [code("while True: pass"), code("1")];
    let context = TestContext::new()
        .file("dies.ipynb", notebook(&cells))
        .file("hangs.ipynb", notebook(&hangs));
    let result = context.json(["dies.ipynb", "--keep-going", "--save-as", "out.ipynb"]);
    assert_eq!(
        (&result["exit_code"], result["cells"].as_array().map(Vec::len)),
        (&5.into(), Some(1))
    );
    assert_eq!(result["notebook"], "out.ipynb");
    let outputs = read(&context, "out.ipynb")["cells"][0]["outputs"].take();
    assert_eq!(
        (&outputs[0]["text"], &outputs[1]["ename"]),
        (&json!(["before\n"]), &"Crashed".into())
    );
    let finished = context.run(["hangs.ipynb", "--timeout", "1", "--save-as", "out.ipynb"]);
    assert_eq!(finished.code, Some(124), "{finished}");
    let outputs = read(&context, "out.ipynb")["cells"][0]["outputs"].take();
    assert_eq!(outputs[0]["ename"], "KeyboardInterrupt", "{outputs:#}");
}

#[test]
fn what_cannot_be_run_or_written_is_said() {
    let context = TestContext::new()
        .file("no.ipynb", "not JSON")
        .file("old.ipynb", "{\"nbformat\": 3, \"worksheets\": []}")
        .file("ok.ipynb", notebook(&[code("1")]))
        .file("x.py", "");
    for (args, said) in [
        (
            &["no.ipynb"][..],
            "`no.ipynb` cannot be run: it is not JSON: expected ident at line 1 column 2",
        ),
        (
            &["old.ipynb"],
            "`old.ipynb` cannot be run: it has notebook format 3, and only format 4 can be run; `jupyter nbconvert --to notebook` converts it",
        ),
        (
            &["ok.ipynb", "--", "x"],
            "a notebook takes no arguments; --env KEY=VALUE sets variables that its cells can read",
        ),
        (
            &["x.py", "--keep-going"],
            "--keep-going and --save-as are for notebooks: files whose name ends in .ipynb",
        ),
    ] {
        let finished = context.run(args);
        assert_eq!((finished.code, finished.stderr()), (Some(125), format!("belljar: {said}\n")));
    }
    let finished = context.run(["ok.ipynb", "--save-as", "nowhere/out.ipynb"]);
    assert_eq!(finished.code, Some(123), "{finished}");
    assert!(finished.stderr().contains("the executed notebook could not be written"), "{finished}");
}
