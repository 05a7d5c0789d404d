//! What one cell leaves for the next, and what cells can display.

use belljar_engine::exec::result::ExecResult;
use belljar_proto::exec::{Event, ExecSpec, KernelState, MimeBundle, Status};
use belljar_runtime::Limits;

use crate::lab::{Session, cell, of_both_kinds};

#[tokio::test]
async fn kernels_remember_and_show() {
    // Executed kernels import what forked kernels have already. That takes memory.
    let limits = Limits { memory: 1 << 30, ..Limits::default() };
    of_both_kinds(limits, |session| async move {
        remembers(&session).await;
        awaits(&session).await;
        ends_cells_not_the_kernel(&session).await;
        shows_output_from_between_cells(&session).await;
        repairs_its_streams(&session).await;
        keeps_what_it_is_given(&session).await;
        shows_rich_results(&session).await;
        bounds_what_is_shown(&session).await;
        keeps_displays_and_prints_in_order(&session).await;
        knows_magics(&session).await;
    })
    .await;
}

async fn remembers(session: &Session) {
    let first = session.run("import math\nx = 20\ndef double(n): return 2 * n").await;
    assert_eq!((first.status, first.execution_count), (Status::Ok, 1));
    assert_eq!(first.kernel_state, KernelState::Kept);
    let second = session.run("x += 1\ndouble(x)").await;
    assert_eq!((text(&second), second.execution_count), ("42", 2));
    assert_eq!(session.value("math.floor(_ / 10)").await, "4", "the last value is kept as _");
    assert_eq!(
        session.value("open('/session/f', 'w').write('on disk'); open('f').read()").await,
        "'on disk'"
    );
    let nothing = session.run("x;").await;
    assert!(nothing.results.is_empty(), "a semicolon hides the value: {nothing:#?}");
}

async fn awaits(session: &Session) {
    let code = "\
import asyncio
async def answer():
    await asyncio.sleep(0.01)
    return 42
task = asyncio.ensure_future(answer())
await answer() + 1";
    assert_eq!(session.value(code).await, "43");
    assert_eq!(session.value("await task").await, "42", "the loop lives on between cells");
}

async fn ends_cells_not_the_kernel(session: &Session) {
    let exit = session.run("kept = 'kept'\nimport sys\nsys.exit(3)").await;
    assert_eq!((exit.status, exit.exit_code, exit.error.is_none()), (Status::Ok, 3, true));
    let error = session.run("def f(): raise ValueError('no')\nf()").await;
    assert_eq!((error.status, error.exit_code), (Status::Error, 1));
    let report = error.error.expect("a report");
    assert_eq!((report.name.as_str(), report.value.as_str()), ("ValueError", "no"));
    assert!(!report.traceback.contains("belljar"), "{}", report.traceback);
    assert_eq!(session.run("def").await.status, Status::Error);
    assert_eq!(session.value("kept").await, "'kept'");
}

async fn shows_output_from_between_cells(session: &Session) {
    let code = "\
import os, threading, time
def later():
    while not os.path.exists('/tmp/idle'): time.sleep(0.005)
    print('from the background', flush=True)
    open('/tmp/said', 'w').close()
threading.Thread(target=later).start()";
    session.run(code).await;
    session.shell("touch /tmp/idle; until [ -e /tmp/said ]; do sleep 0.01; done").await;
    assert_eq!(session.printed("print('now')").await, "from the background\nnow\n");
}

async fn repairs_its_streams(session: &Session) {
    let close = session.run("import os, sys\nsys.stdout.close(); os.close(1); os.close(2)").await;
    assert_eq!(close.status, Status::Ok);
    session.run("sys.stdout = sys.stderr = None").await;
    assert_eq!(session.printed("print('still here')").await, "still here\n");
}

async fn keeps_what_it_is_given(session: &Session) {
    let given = ExecSpec { env: vec![("GIVEN".into(), "once".into())], ..cell("given") };
    session.try_begin(given, "").await.expect("free").finish().await;
    assert_eq!(session.value("__import__('os').environ['GIVEN']").await, "'once'");
}

async fn bounds_what_is_shown(session: &Session) {
    let flood = session.run("for _ in range(50): display('x' * 1_000_000)").await;
    assert_eq!(flood.status, Status::Ok);
    assert!(flood.dropped.results > 0, "there is a bound");
    assert_eq!(flood.results.len() as u64 + flood.dropped.results, 50, "and all are accounted for");
}

async fn shows_rich_results(session: &Session) {
    let frame =
        session.run("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})").await;
    assert_eq!(text(&frame), "   a  b\n0  1  x\n1  2  y");
    let html = form(&frame.results[0], "text/html");
    assert!(html.contains("<table") && html.contains("<th>a</th>"), "{html}");

    let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares');";
    let figure = session.run(plot).await;
    assert_eq!(figure.results.len(), 1, "a figure is shown without any call: {figure:#?}");
    assert!(form(&figure.results[0], "image/png").starts_with("iVBORw0KGgo"), "a PNG in base64");
    let again = session.run("1 + 1").await;
    assert_eq!(again.results.len(), 1, "and shown once");

    let code = "\
class Rich:
    def _repr_html_(self): return '<b>rich</b>'
    def _repr_json_(self): return {'a': 1}
    def _repr_svg_(self): return '<svg/>'
    def __repr__(self): return 'Rich()'
print('before')
display(Rich(), 7)
'last'";
    let shown = session.run(code).await;
    let texts: Vec<_> = shown.results.iter().filter_map(MimeBundle::text).collect();
    assert_eq!(texts, ["Rich()", "7", "'last'"]);
    let rich = &shown.results[0];
    assert_eq!(form(rich, "text/html"), "<b>rich</b>");
    assert_eq!(form(rich, "image/svg+xml"), "<svg/>");
    assert_eq!(rich.data["application/json"]["a"], 1);

    let broken =
        session.run("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()").await;
    assert_eq!(broken.status, Status::Ok, "a bad repr is not the end: {broken:#?}");
}

/// Displays and prints take different paths and still arrive in the order in which they were made.
async fn keeps_displays_and_prints_in_order(session: &Session) {
    let code = "for n in range(40):\n    print('p', n)\n    display(n if n % 8 else 'x' * 300_000)";
    let mut cell = session.begin(code).await;
    let mut printed = 0;
    let mut displayed = 0;
    while let Some(event) = cell.following.next().await {
        match event.event {
            Event::Stdout => {
                printed += event.body.iter().filter(|byte| **byte == b'\n').count();
                assert_eq!(printed, displayed + 1, "a print overtook a display");
            }
            Event::Display => displayed += 1,
            Event::Done(_) => break,
            other => panic!("unexpected: {other:?}"),
        }
        assert!(printed - displayed <= 1, "a display overtook a print");
    }
    assert_eq!((printed, displayed), (40, 40));
}

async fn knows_magics(session: &Session) {
    assert_eq!(session.printed("!echo hi").await, "hi\n");
    assert_eq!(session.value("files = !echo one; echo two\nlist(files)").await, "['one', 'two']");
    let timed = session.printed("%time sum(range(10))").await;
    assert!(timed.contains("Wall time"), "{timed}");
    assert_eq!(session.printed("%%bash\necho $((6 * 7))").await, "42\n");
    assert_eq!(session.run("%no_such_magic").await.status, Status::Error);
    assert_eq!(session.value("2 % 2").await, "0", "plain Python stays plain Python");
}

fn text(result: &ExecResult) -> &str {
    let bundle = result.results.last().unwrap_or_else(|| panic!("no result: {result:#?}"));
    bundle.text().unwrap_or_else(|| panic!("no text: {bundle:#?}"))
}

fn form<'a>(bundle: &'a MimeBundle, mime: &str) -> &'a str {
    bundle.data.get(mime).and_then(|form| form.as_str()).unwrap_or_else(|| panic!("{bundle:#?}"))
}
