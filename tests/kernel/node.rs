//! JavaScript kernels, which keep their state, and TypeScript in the same kernel.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use belljar_engine::exec::result::ExecResult;
use belljar_proto::exec::{ExecSpec, KernelState, Language, Status, What};
use belljar_proto::guest::{Call, RefusalCode};
use belljar_runtime::languages;
use serde_json::json;

use crate::lab::{Cell, Lab, PATIENCE, Session, cell, refused};

/// Without Node on this machine the test is recorded as skipped.
fn has_node() -> bool {
    let has = ["/usr/bin/node", "/usr/local/bin/node"].iter().any(|path| Path::new(path).exists());
    if !has {
        belljar_testkit::skip::record("there is no node on this machine");
    }
    has
}

fn javascript() -> Language {
    languages::find("javascript").expect("it is there")
}

impl Session {
    async fn begin_js(&self, language: Language, code: &str) -> Cell {
        let what = What::Cell { language, echo: true };
        let spec = ExecSpec { what, ..cell(&self.fresh_id()) };
        self.try_begin(spec, code).await.expect("the kernel is free")
    }

    async fn js(&self, code: &str) -> ExecResult {
        self.begin_js(javascript(), code).await.finish().await
    }

    async fn ts(&self, code: &str) -> ExecResult {
        let typescript = languages::find("typescript").expect("it is there");
        self.begin_js(typescript, code).await.finish().await
    }

    /// The text of a cell's value; empty without one.
    async fn js_value(&self, code: &str) -> String {
        let result = self.js(code).await;
        assert_eq!(result.status, Status::Ok, "{code}: {result:#?}");
        let text = result.results.last().and_then(|bundle| bundle.text());
        text.unwrap_or_default().to_owned()
    }
}

async fn session() -> Session {
    let session = Lab::cold().session_without_kernel().await;
    session.sandbox.start_kernel(javascript()).await.expect("a kernel");
    session
}

#[tokio::test]
async fn a_kernel_remembers() {
    if !has_node() {
        return;
    }
    let session = session().await;
    for (code, value) in [
        ("const a = 20, { b, c: [d] } = { b: 1, c: [2] }; let e; var f = 3", ""),
        ("[a, b, d, e, f]", "[ 20, 1, 2, undefined, 3 ]"),
        // Declared again as another kind; then a name that Node itself defines.
        ("let a = 1; const f = 4; class b { x = 1 }; a + f", "5"),
        (
            "const crypto = require('crypto'); crypto.createHash('md5').update('').digest('hex').length",
            "32",
        ),
        ("new b().x", "1"),
        ("function g(n) { return n < 2 ? n : g(n - 1) + g(n - 2) }", ""),
        ("g(10)", "55"),
        (
            "async function* h() { yield 1; yield 2 }\nlet s = 0; for await (const n of h()) s += n\ns",
            "3",
        ),
        ("const t = await new Promise(r => setTimeout(() => r('later'), 5)); t", "'later'"),
        ("Promise.resolve(7)", "7"),
        (
            "for (var i = 0, n = 3; i < n; i++) { var last = i }\nif (last) var w = 1; else var w = 2",
            "",
        ),
        ("[i, last, w]", "[ 3, 2, 1 ]"),
        ("for (var [k, v] of [[1, 2], [3, 4]]) ;\n[k, v]", "[ 3, 4 ]"),
        ("let q\n[q] = [5]\nq", "5"),
        ("const r = 1\nconst z = [r]\n;[1].map(x => x + z[0])", "[ 2 ]"),
        ("{ let a = 99 }\na", "1"),
        ("x1 = 5; x1", "5"),
        ("(1, 2);", "2"),
        ("({ a: 1 })", "{ a: 1 }"),
        ("'use strict'; 7 // comment", "7"),
        ("if (true) 5", ""),
        ("undefined", ""),
        ("null", "null"),
        ("#!/usr/bin/env node\n`a${1}b`", "'a1b'"),
        (
            "import fs, { readFileSync as read } from 'fs'\nimport * as os from 'node:os'\nimport 'path'\n[typeof fs.statSync, typeof read, typeof os.cpus]",
            "[ 'function', 'function', 'function' ]",
        ),
        ("(await import('node:path')).basename('/a/b')", "'b'"),
        ("typeof read", "'function'"),
        ("this === globalThis", "true"),
        ("[__dirname, process.cwd(), process.argv.length]", "[ '/session', '/session', 1 ]"),
        ("let error; try { JSON.parse('{') } catch (e) { error = e.name }\nerror", "'SyntaxError'"),
        ("", ""),
        ("// nothing", ""),
        ("label: for (;;) { break label }", ""),
        ("var { length: len, ...others } = 'ab'; len", "2"),
        ("let { deep: { x: y1 = 4 } = {} } = {}; y1", "4"),
        ("'\u{fc}\u{1f600}'", "'\u{fc}\u{1f600}'"),
    ] {
        assert_eq!(session.js_value(code).await, value, "{code}");
    }
    let both =
        session.js("console.log('out'); console.error('err'); ({ n: [1, 'x', null, true] })").await;
    assert_eq!((both.stdout.as_str(), both.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(both.results[0].data["application/json"], json!({"n": [1, "x", null, true]}));
    for code in [
        "new Map([[1, 2]])",
        "[NaN]",
        "new Date(0)",
        "(() => {})",
        "({ get x() { return 1 } })",
        "1n",
    ] {
        let result = session.js(code).await;
        assert!(!result.results[0].data.contains_key("application/json"), "{result:#?}");
    }
    let much = session.js("console.log('x'.repeat(900_000)); 1").await;
    assert_eq!((much.stdout.len(), much.results.len()), (900_001, 1));
    let long = session.js("'y'.repeat(5_000_000)").await;
    assert!(long.results[0].text().is_some_and(|text| text.len() < 3_000_000));
    let env = ExecSpec {
        what: What::Cell { language: javascript(), echo: true },
        env: vec![("COLOUR".into(), "red".into())],
        ..cell("env")
    };
    let env = session.try_begin(env, "process.env.COLOUR").await.expect("free").finish().await;
    assert_eq!(env.results[0].text(), Some("'red'"));
    let script =
        ExecSpec { what: What::Cell { language: javascript(), echo: false }, ..cell("script") };
    let script = session.try_begin(script, "1 + 1").await.expect("free").finish().await;
    assert!(script.results.is_empty() && script.status == Status::Ok);
}

#[tokio::test]
async fn errors_are_those_of_the_user() {
    if !has_node() {
        return;
    }
    let session = session().await;
    let thrown = session.js("function f() {\n  throw new TypeError('no')\n}\n\nf()").await;
    let error = thrown.error.expect("an error");
    assert_eq!((thrown.status, thrown.exit_code), (Status::Error, 1));
    assert_eq!((error.name.as_str(), error.value.as_str()), ("TypeError", "no"));
    let traceback = error.traceback.lines().map(str::trim).collect::<Vec<_>>();
    assert_eq!(traceback, ["TypeError: no", "at f (cell 1:2:9)", "at cell 1:5:1"], "{error:#?}");
    for (code, name, said) in [
        ("let a =\n  b +", "SyntaxError", "cell 2:2\n  b +\n     ^"),
        ("await missing()", "ReferenceError", "missing is not defined\n    at cell 3:1:1"),
        ("await Promise.reject(new Error('later'))", "Error", "later"),
        ("throw { code: 5 }", "Error", "code: 5"),
        (
            "throw new Error('outer', { cause: new RangeError('inner') })",
            "Error",
            "RangeError: inner",
        ),
        ("require('no-such-package')", "Error", "no-such-package"),
        ("await import('no-such-package')", "Error", "no-such-package"),
        ("import { nothing } from 'fs'", "SyntaxError", "named 'nothing'"),
        ("export const a = 1", "SyntaxError", "exports nothing"),
        ("const x = 1; const x = 2", "SyntaxError", "already been declared"),
        ("return 5", "SyntaxError", "return"),
        ("JSON.parse('{')", "SyntaxError", "JSON"),
        (
            "const e = new Error('x'); Object.defineProperty(e, 'message', { get() { throw 1 } }); throw e",
            "Error",
            "",
        ),
        ("(function loop() { loop() })()", "RangeError", "stack"),
    ] {
        let result = session.js(code).await;
        let error = result.error.unwrap_or_else(|| panic!("{code} went well"));
        assert_eq!(
            (result.status, error.name.as_str()),
            (Status::Error, name),
            "{code}: {error:#?}"
        );
        assert!(error.traceback.contains(said), "{code}: {error:#?}");
        assert!(!error.traceback.contains("/opt/belljar"), "{code}: {error:#?}");
    }
    assert_eq!(session.js_value("1").await, "1");
}

#[tokio::test]
async fn a_kernel_survives_what_cells_do() {
    if !has_node() {
        return;
    }
    let session = session().await;
    session.js("let kept = 1; Promise.reject(new Error('nobody cares'))\nundefined").await;
    let aside = "setTimeout(() => { throw new Error('in a timer') }, 1); Promise.reject(new Error('alone'));\n\
                 await new Promise(r => setTimeout(r, 30)); kept";
    let result = session.js(aside).await;
    assert_eq!((result.status, result.results[0].text()), (Status::Ok, Some("1")), "{result:#?}");
    assert!(result.stderr.contains("Uncaught: Error: in a timer"), "{result:#?}");
    assert!(result.stderr.contains("Unhandled rejection: Error: alone"), "{result:#?}");
    for (code, exit_code) in [
        ("process.exit(3)", 3),
        ("await null; process.exit()", 0),
        ("setTimeout(() => process.exit(4), 1); await new Promise(() => {})", 4),
    ] {
        let result = session.js(code).await;
        assert_eq!(
            (result.status, result.exit_code),
            (Status::Ok, exit_code),
            "{code}: {result:#?}"
        );
    }
    assert_eq!(session.js_value("kept").await, "1");
    // Code that an earlier cell left running is not part of the next cell and does not end it. Here
    // it calls `process.exit()` while the next cell runs. That cell still ends with its own result.
    for left_behind in [
        "setTimeout(() => { process.exit(0) }, 20)",
        "try { process.exit(0) } catch (it) { setTimeout(() => { throw it }, 20) }",
        "setTimeout(() => { Promise.reject().catch(() => process.exit(0)) }, 20)",
        "setTimeout(() => { process.emit('SIGINT') }, 20)",
        "setTimeout(() => { process.kill(process.pid, 'SIGINT') }, 20)",
        "const { race } = Promise; Promise.race = () => race([0]); JSON.stringify = () => '{}'",
    ] {
        let left = session.js(&format!("{left_behind}\nundefined")).await;
        assert_eq!(left.status, Status::Ok, "{left_behind}: {left:#?}");
        let code = "await new Promise(r => setTimeout(r, 60)); throw new TypeError('its own end')";
        let next = session.js(code).await;
        assert_eq!((next.status, next.exit_code), (Status::Error, 1), "{left_behind}: {next:#?}");
        let error = next.error.as_ref().map(|error| error.value.as_str());
        assert_eq!(error, Some("its own end"), "{left_behind}: {next:#?}");
    }
    assert_eq!(session.js_value("kept").await, "1");
    session.js("globalThis.ticks = 0; setInterval(() => { ticks++ }, 1)\nundefined").await;
    session.js("await new Promise(r => setTimeout(r, 50))").await;
    assert_eq!(session.js_value("ticks > 5").await, "true");
    let dead =
        session.js("process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})").await;
    assert_eq!((dead.status, dead.kernel_state), (Status::Crashed, KernelState::Lost), "{dead:#?}");
    session.sandbox.start_kernel(javascript()).await.expect("another kernel");
    assert_eq!(session.js_value("typeof kept").await, "'undefined'");
}

#[tokio::test]
async fn a_busy_cell_is_interrupted_and_the_rest_stays() {
    if !has_node() {
        return;
    }
    let session = session().await;
    session.js("let kept = 42").await;
    for code in [
        "console.log('on'); while (true) {}",
        "console.log('on'); try { while (true) {} } catch { } finally { while (kept) {} }",
        "console.log('on'); for (;;) console.log('on')",
        "console.log('on'); await new Promise(() => {})",
        "console.log('on'); require('child_process').execSync('sleep 1000')",
        "console.log('on'); await new Promise(r => setTimeout(r, 1e6))",
    ] {
        let mut running = session.begin_js(javascript(), code).await;
        running.has_printed_somewhere("on\n").await;
        session.sandbox.interrupt(&running.id).await.expect("it runs");
        let result = tokio::time::timeout(PATIENCE, running.finish()).await.expect("an end");
        assert_eq!(result.status, Status::Interrupted, "{code}: {result:#?}");
        assert_eq!(result.kernel_state, KernelState::Kept, "{code}: {result:#?}");
        let after = session.js("console.log('still here'); kept");
        let after = tokio::time::timeout(PATIENCE, after).await;
        let after = after.unwrap_or_else(|_| panic!("nothing more is done after {code}"));
        assert_eq!(
            after.results.first().and_then(|it| it.text()),
            Some("42"),
            "{code}: {after:#?}"
        );
        assert_eq!(after.stdout, "still here\n", "{code}");
    }
    let what = What::Cell { language: javascript(), echo: true };
    let spec = ExecSpec { what, timeout_ms: 300, ..cell("late") };
    let late = session.try_begin(spec, "for (;;) ;").await.expect("free").finish().await;
    assert_eq!((late.status, late.kernel_state), (Status::Timeout, KernelState::Kept), "{late:#?}");
    // After an `await`, only killing the kernel can stop the loop.
    let what = What::Cell { language: javascript(), echo: true };
    let spec = ExecSpec { what, timeout_ms: 300, grace_ms: 300, ..cell("deaf") };
    let deaf = session.try_begin(spec, "await null; for (;;) ;").await.expect("free");
    let deaf = tokio::time::timeout(PATIENCE, deaf.finish()).await.expect("an end");
    assert_eq!((deaf.status, deaf.kernel_state), (Status::Timeout, KernelState::Lost), "{deaf:#?}");
}

#[tokio::test]
async fn variables_are_listed_without_running_user_code() {
    if !has_node() {
        return;
    }
    let session = session().await;
    let code = "let ran = 0; const big = { get x() { ran++; return 1 } };\n\
        const odd = new Proxy({}, { get() { ran++ }, ownKeys() { ran++; return [] } });\n\
        class Own { [Symbol.for('nodejs.util.inspect.custom')]() { ran++; return '' } }; const own = new Own();\n\
        const list = [1, 2, 3], word = 'ünï', fn = () => 1, bytes = new Uint8Array(4);";
    session.js(code).await;
    let state = session.sandbox.kernel_state(javascript()).await.expect("variables");
    let reply = |name: &str| {
        let found = state.variables.iter().find(|variable| variable.name == name);
        found.unwrap_or_else(|| panic!("{name}: {state:#?}")).clone()
    };
    assert_eq!((reply("list").type_name.as_str(), reply("list").shape), ("Array", Some(vec![3])));
    assert_eq!((reply("word").type_name.as_str(), reply("word").size), ("string", Some(5)));
    assert_eq!(reply("own").type_name, "Own");
    assert_eq!(reply("odd").type_name, "Proxy");
    assert_eq!(
        (reply("fn").type_name.as_str(), reply("Own").type_name.as_str()),
        ("function", "class")
    );
    assert!(reply("big").preview.contains("[Getter]"), "{:?}", reply("big"));
    assert_eq!(state.cwd, "/session");
    assert!(state.variables.iter().all(|variable| variable.name != "require"), "{state:#?}");
    assert_eq!(session.js_value("ran").await, "0");
}

#[tokio::test]
async fn input_is_asked_for() {
    if !has_node() {
        return;
    }
    let session = session().await;
    let what = What::Cell { language: javascript(), echo: true };
    let spec = ExecSpec { what, stdin: true, ..cell("asks") };
    let code = "const name = await input('Name? '); const end = await input(); [name, end]";
    let mut asks = session.try_begin(spec, code).await.expect("free");
    assert_eq!(asks.has_asked().await.prompt, "Name? ");
    session.sandbox.stdin("asks", b"Ada\n", true).await.expect("it takes input");
    let result = asks.finish().await;
    assert_eq!(result.results[0].text(), Some("[ 'Ada', null ]"), "{result:#?}");
    assert_eq!(session.js_value("await input('nobody?')").await, "null");

    // A timer of an earlier cell gets no input, not even a line that was sent to a later cell.
    session.js("setTimeout(async () => { globalThis.stolen = await input('Password? ') }, 20)\nundefined").await;
    let what = What::Cell { language: javascript(), echo: true };
    let spec = ExecSpec { what, stdin: true, ..cell("later") };
    let code = "await new Promise(r => setTimeout(r, 60)); await input('Mine? ')";
    let mut later = session.try_begin(spec, code).await.expect("free");
    assert_eq!(later.has_asked().await.prompt, "Mine? ");
    session.sandbox.stdin("later", b"line\n", true).await.expect("it takes input");
    assert_eq!(later.finish().await.results[0].text(), Some("'line'"));
    assert_eq!(session.js_value("stolen").await, "null");
}

#[tokio::test]
async fn packages_of_the_session_are_found() {
    if !has_node() {
        return;
    }
    let session = session().await;
    session
        .shell(
            "mkdir -p /session/node_modules/old /session/node_modules/new && cd /session/node_modules &&\n\
             echo 'exports.answer = 42' > old/index.js && \n\
             echo '{\"name\": \"new\", \"type\": \"module\", \"exports\": \"./m.js\"}' > new/package.json &&\n\
             echo 'export const answer = 43; export default 44' > new/m.js &&\n\
             echo 'module.exports = 45' > /session/mine.js && echo 'export default 46' > /session/mine.mjs",
        )
        .await;
    let code = "import fresh, { answer } from 'new'\nimport own from './mine.mjs'\n\
                [require('old').answer, answer, fresh, require('./mine'), own]";
    assert_eq!(session.js_value(code).await, "[ 42, 43, 44, 45, 46 ]");
}

/// Installs a package that removes TypeScript types, once for all tests; `None` if that is not
/// possible.
fn type_stripper() -> Option<String> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node-tools");
    let package = tools.join("node_modules/amaro");
    if !package.is_dir() {
        std::fs::create_dir_all(&tools).ok()?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"]).arg(&tools);
        let installed = npm.arg("amaro@1").status().is_ok_and(|status| status.success());
        if !installed || !package.is_dir() {
            belljar_testkit::skip::record("npm could not install amaro");
            return None;
        }
    }
    Some(package.canonicalize().ok()?.display().to_string())
}

#[tokio::test]
async fn typescript_shares_the_kernel_of_javascript() {
    if !has_node() {
        return;
    }
    let session = session().await;
    let typed = "interface P { x: number }\nconst p: P = { x: 1 }\np.x as number";
    let node_can =
        session.js_value("typeof require('module').stripTypeScriptTypes").await == "'function'";
    if !node_can {
        let missing = session.ts(typed).await;
        let error = missing.error.expect("an error");
        assert!(
            error.value.contains("npm install") && error.traceback.lines().count() == 1,
            "{error:#?}"
        );
        let Some(package) = type_stripper() else { return };
        // In the place where `npm install` in the session would put it.
        let packed =
            Command::new("tar").args(["-C", &package, "-c", "."]).output().expect("tar is here");
        unpack(&session, "/session/node_modules/amaro", &packed.stdout).await;
    }
    let result = session.ts(typed).await;
    assert_eq!(result.results.first().and_then(|it| it.text()), Some("1"), "{result:#?}");
    assert_eq!(session.js_value("p.x + 1").await, "2");
    let failing = session
        .ts("type A = string\nfunction f(a: A): never {\n  throw new Error(a)\n}\nf('typed')")
        .await;
    let error = failing.error.expect("an error");
    assert!(
        error.traceback.contains("at f (cell") && error.traceback.contains(":3:9)"),
        "{error:#?}"
    );
}

async fn unpack(session: &Session, path: &str, contents: &[u8]) {
    let argv = ["/bin/sh", "-c", "mkdir -p \"$1\" && tar -C \"$1\" -x", "sh", path];
    let argv = argv.map(str::to_owned).to_vec();
    let what = What::Command { argv, cwd: "/tmp".into() };
    let spec = ExecSpec { what, ..cell(&session.fresh_id()) };
    let done = session.try_begin_bytes(spec, contents).await.expect("a command").finish().await;
    assert_eq!(done.exit_code, 0, "{done:#?}");
}

#[tokio::test]
async fn what_is_not_there_is_said_to_be_missing() {
    let session = Lab::cold().session_without_kernel().await;
    // A language that is not installed.
    let call = Call::SpawnKernel {
        language: Language::new("cobol").expect("a name"),
        argv: vec!["no-such-cobol".into()],
        env: session.sandbox.environment(),
        cwd: "/session".into(),
    };
    let missing = session.sandbox.link().call(call, &[]).await;
    let message = missing.as_ref().err().map(ToString::to_string).unwrap_or_default();
    assert!(message.contains("there is no `no-such-cobol` in this image"), "{message}");
    assert_eq!(refused(missing), RefusalCode::NoInterpreter);
    let unknown = session.sandbox.start_kernel(Language::new("cobol").expect("a name")).await;
    assert_eq!(refused(unknown), RefusalCode::Invalid);
}

/// The worked example of `docs/languages.md`.
#[tokio::test]
async fn r_is_a_language_where_there_is_r() {
    let lab = Lab::cold();
    let session = lab.session_without_kernel().await;
    let r = languages::find("r").expect("it is described");
    if !Path::new("/usr/bin/Rscript").exists() && !Path::new("/usr/local/bin/Rscript").exists() {
        let missing = session.sandbox.start_kernel(r).await;
        let message = missing.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(
            message.contains("there is no `Rscript`") && message.contains("r-base"),
            "{message}"
        );
        belljar_testkit::skip!("there is no R on this machine");
    }
    session.sandbox.start_kernel(r).await.expect("a kernel");
    let run = async |code: &str| session.begin_js(r, code).await.finish().await;
    run("x <- 6 * 7; f <- function(n) n + 1").await;
    let result = run("cat('said\\n'); f(x)").await;
    assert_eq!((result.status, result.stdout.as_str()), (Status::Ok, "said\n"), "{result:#?}");
    assert_eq!(result.results[0].text(), Some("[1] 43"));
    let failed = run("stop('no')").await;
    assert_eq!(failed.error.expect("an error").value, "no");
    let mut busy = session.begin_js(r, "cat('on\\n'); repeat {}").await;
    busy.has_printed("on\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    session.sandbox.interrupt(&busy.id).await.expect("it runs");
    assert_eq!(busy.finish().await.status, Status::Interrupted);
    assert_eq!(run("x").await.results[0].text(), Some("[1] 42"));
}
