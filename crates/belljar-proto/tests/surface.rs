//! One example of every message, as it is on the wire.
//!
//! A guest outlives the server that started it, so what is written here is a promise: a change to
//! an existing line needs a new protocol generation, a new line does not.

use belljar_proto::exec::{
    Dropped, Event, ExecSpec, InputRequest, KernelState, Language, Outcome, Script, Status, What,
};
use belljar_proto::guest::{
    Answer, Call, ChangeKind, EntryKind, FileChange, FileEntry, FromGuest, Import, KernelVariables,
    KnownExec, Opening, Probe, ProbeReport, Refusal, RefusalCode, ReplyOutcome, Request, Skipped,
    SpillAsk, SpillReport, SpilledValue, StayedValue, Tree, TreeFile, TreeLimits, Variable,
};
use belljar_proto::job::{ArchiveFormat, JobReport};
use belljar_proto::kernel::{CellStatus, DisplayKind, FromKernel, ToKernel};
use belljar_proto::quiescence::QuiescenceReport;
use belljar_proto::relay::RelayMessage;
use belljar_proto::snapshot::{SnapshotCall, SnapshotReply};
use belljar_proto::terminal::{
    TerminalEnd, TerminalEvent, TerminalInfo, TerminalSize, TerminalSpec,
};
use belljar_proto::zygote::Warm;
use serde::{Serialize, de::DeserializeOwned};

/// Each message as one line of JSON, which must decode to the same message.
fn lines<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(messages: &[T]) -> String {
    messages
        .iter()
        .map(|message| {
            let line = serde_json::to_string(message).expect("messages are JSON");
            let back: T = serde_json::from_str(&line).expect("what we write we can read");
            assert_eq!(back, *message);
            line + "\n"
        })
        .collect()
}

fn file() -> TreeFile {
    TreeFile { path: b"plot.png".to_vec(), size: 5, inode: 2, changed_ns: 4, modified_ns: 3 }
}

fn terminal(ended: Option<TerminalEnd>) -> TerminalInfo {
    TerminalInfo {
        terminal: "t1".into(),
        argv: vec!["/bin/bash".into()],
        size: TerminalSize { rows: 24, cols: 80 },
        attached: 1,
        oldest: 2,
        newest: 3,
        ended,
    }
}

fn spec(what: What) -> ExecSpec {
    ExecSpec {
        exec_id: "e1".into(),
        what,
        env: vec![("K".into(), "V".into())],
        timeout_ms: 60_000,
        grace_ms: 2_000,
        output_limit: 1_048_576,
        stdin: false,
        script: None,
        merge_output: false,
    }
}

#[test]
fn from_host_to_guest() {
    let language = Language::Python;
    let calls = [
        Call::Hello { protocol: 1, nonce: "n".into() },
        Call::SpawnKernel {
            language,
            argv: vec!["/usr/bin/python3".into()],
            env: vec![("K".into(), "V".into())],
            cwd: "/session".into(),
        },
        Call::LoadKernel { language, argv: vec!["/opt/loader".into()] },
        Call::AwaitKernel { language },
        Call::Exec(spec(What::Cell { language, echo: true })),
        Call::Exec(spec(What::Command { argv: vec!["true".into()], cwd: "/session".into() })),
        Call::Exec(ExecSpec {
            stdin: true,
            merge_output: true,
            ..spec(What::Cell { language: Language::Bash, echo: false })
        }),
        Call::Stdin { exec_id: "e1".into(), close: true },
        Call::Join { exec_id: "e1".into(), from: 3, offset: 17 },
        Call::Interrupt { exec_id: "e1".into() },
        Call::Forget { exec_ids: vec!["e1".into()] },
        Call::ListTree { root: "/session".into(), limits: TreeLimits { files: 10, depth: 3 } },
        Call::OpenFile { root: "/session".into(), path: b"a b/\xff\n%".to_vec() },
        Call::OpenFiles { root: "/session".into() },
        Call::RemoveFiles { root: "/session".into() },
        Call::CreateFile { root: "/session".into(), path: b"a/b".to_vec(), mode: None },
        Call::CommitFile {
            root: "/session".into(),
            path: b"a/b".to_vec(),
            temporary: ".0.part".into(),
        },
        Call::DiscardFile {
            root: "/session".into(),
            path: b"a/b".to_vec(),
            temporary: ".0.part".into(),
        },
        Call::Look { path: b"/tmp".to_vec() },
        Call::ListDirectory {
            path: b"/tmp".to_vec(),
            recursive: true,
            limits: TreeLimits { files: 10, depth: 3 },
            glob: None,
            without_hidden: false,
        },
        Call::Quiescence,
        Call::KeepFiles { job: "j".into(), directories: vec!["session".into(), "tmp".into()] },
        Call::BringFiles { job: "j".into() },
        Call::LoseKernel { language, reason: "was left behind".into() },
        Call::OpenPath { path: b"/tmp/x".to_vec() },
        Call::MakeDirectory { path: b"/tmp/d".to_vec() },
        Call::RemovePath { path: b"/tmp/d".to_vec(), recursive: true },
        Call::MovePath { path: b"/tmp/x".to_vec(), to: b"/tmp/y".to_vec() },
        Call::KernelState { language },
        Call::SnapshotSocket { language },
        Call::Spill { language, ask: SpillAsk { frame_bytes: 1, array_bytes: 2 } },
        Call::OutliveHost { alone_for_s: 3600 },
        Call::Relay,
        Call::Relayed { stream: 1, part: RelayMessage::Data },
        Call::Relayed { stream: 1, part: RelayMessage::Credit { bytes: 65_536 } },
        Call::Relayed { stream: 1, part: RelayMessage::End },
        Call::Relayed { stream: 1, part: RelayMessage::Reset },
        Call::Probe { probe: Probe::Memory { bytes: 1 } },
        Call::Probe { probe: Probe::Processes { count: 1 } },
        Call::Probe { probe: Probe::Cpu { wall_ms: 1 } },
        Call::Probe { probe: Probe::Network },
        Call::Shutdown,
        Call::OpenTerminal(TerminalSpec {
            terminal: "t1".into(),
            argv: vec!["/bin/bash".into()],
            env: vec![("K".into(), "V".into())],
            cwd: "/session".into(),
            size: TerminalSize { rows: 24, cols: 80 },
        }),
        Call::ListTerminals,
        Call::AttachTerminal { terminal: "t1".into(), from: None },
        Call::AttachTerminal { terminal: "t1".into(), from: Some(7) },
        Call::TerminalInput { terminal: "t1".into() },
        Call::ResizeTerminal { terminal: "t1".into(), size: TerminalSize { rows: 1, cols: 2 } },
        Call::CloseTerminal { terminal: "t1".into() },
        Call::ListDirectory {
            path: b"/session".to_vec(),
            recursive: false,
            limits: TreeLimits { files: 10, depth: 2 },
            glob: Some("**/*.py".into()),
            without_hidden: true,
        },
        Call::CreateFile { root: "/session".into(), path: b"x".to_vec(), mode: Some(0o755) },
        Call::AppendFile { path: b"/session/log".to_vec(), mode: 0o644 },
        Call::CopyPath { job: "j1".into(), path: b"/a".to_vec(), to: b"/b".to_vec() },
        Call::Pack { job: "j1".into(), path: b"/a".to_vec(), format: ArchiveFormat::TarGz },
        Call::Unpack {
            job: "j1".into(),
            path: b"/a".to_vec(),
            format: ArchiveFormat::Tar,
            archive: None,
        },
        Call::Unpack {
            job: "j1".into(),
            path: b"/a".to_vec(),
            format: ArchiveFormat::Zip,
            archive: Some(".0.part".into()),
        },
        Call::FinishJob { job: "j1".into() },
        Call::Connect,
        Call::WatchFiles { path: b"/session".to_vec(), recursive: true },
    ];
    let requests: Vec<Request> = (1..).zip(calls).map(|(id, call)| Request { id, call }).collect();
    insta::assert_snapshot!(lines(&requests));
}

#[test]
fn from_guest_to_host() {
    let answers = [
        Answer::Welcome {
            protocol: 1,
            version: "0.1.0".into(),
            execs: vec![KnownExec { exec_id: "e1".into(), running: true }],
        },
        Answer::KernelReady { language_version: "3.11.7".into() },
        Answer::Started,
        Answer::Done,
        Answer::Tree,
        Answer::State,
        Answer::Spilled,
        Answer::SnapshotSocket,
        Answer::Quiescence,
        Answer::File { size: 5 },
        Answer::Files { descriptors: 2 },
        Answer::Removed { removed: 1, artifacts: Some(7) },
        Answer::Removed { removed: 1, artifacts: None },
        Answer::Created { temporary: ".0.part".into() },
        Answer::Committed(file()),
        Answer::Entry(FileEntry {
            path: b"x".to_vec(),
            kind: EntryKind::File,
            size: 5,
            mode: 0o644,
            modified_ns: 3,
        }),
        Answer::Listing,
        Answer::Terminal(terminal(None)),
        Answer::Terminal(terminal(Some(TerminalEnd { exit_code: 129, signal: Some(1) }))),
        Answer::Terminals,
        Answer::Appending,
        Answer::Stream,
        Answer::Connection,
        Answer::Working,
        Answer::Finished(JobReport { entries: 1, bytes: 2, skipped: 3 }),
        Answer::Probed(ProbeReport::Memory { killed: true }),
        Answer::Probed(ProbeReport::Processes { started: 14 }),
        Answer::Probed(ProbeReport::Cpu { used_ms: 60, wall_ms: 300 }),
        Answer::Probed(ProbeReport::Network { interfaces: vec![], reached_out: false }),
    ];
    let codes = [
        RefusalCode::NotWelcome,
        RefusalCode::NoKernel,
        RefusalCode::Busy,
        RefusalCode::UnknownExec,
        RefusalCode::UnknownTerminal,
        RefusalCode::UnknownJob,
        RefusalCode::NoDescriptors,
        RefusalCode::TooMany,
        RefusalCode::DuplicateExec,
        RefusalCode::NotFound,
        RefusalCode::NotAFile,
        RefusalCode::NotADirectory,
        RefusalCode::IsADirectory,
        RefusalCode::NoSpace,
        RefusalCode::NotPermitted,
        RefusalCode::Invalid,
        RefusalCode::Failed,
    ];
    let outcome = |status| Outcome {
        status,
        exit_code: 137,
        reason: Some("the kernel was killed by signal 9".into()),
        kernel_state: KernelState::Lost,
        execution_count: 2,
        duration_us: 1234,
        dropped: Dropped { stdout_bytes: 1, stderr_bytes: 2, results: 3 },
        memory_bytes: None,
        checkpoint: None,
        no_checkpoint: None,
        artifacts: None,
    };
    let events = [
        Event::Stdout,
        Event::Stderr,
        Event::Display,
        Event::Result,
        Event::Error,
        Event::Input,
        Event::Done(outcome(Status::Ok)),
        Event::Done(outcome(Status::Error)),
        Event::Done(outcome(Status::Timeout)),
        Event::Done(outcome(Status::Interrupted)),
        Event::Done(outcome(Status::Crashed)),
        Event::Done(Outcome { artifacts: Some(u64::MAX), ..outcome(Status::Ok) }),
        Event::Done(Outcome { reason: None, dropped: Dropped::default(), ..outcome(Status::Oom) }),
    ];
    let replies = answers
        .map(ReplyOutcome::Ok)
        .into_iter()
        .chain(codes.map(|code| ReplyOutcome::Err(Refusal { code, message: "why".into() })));
    let mut messages: Vec<FromGuest> = (1..)
        .zip(replies)
        .map(|(id, outcome)| FromGuest::Reply { id, outcome, files: vec![], relayed: None })
        .collect();
    let outcome = ReplyOutcome::Ok(Answer::Stream);
    messages.push(FromGuest::Reply { id: 99, outcome, files: vec![], relayed: Some(7) });
    messages.extend((0..).zip(events).map(|(seq, event)| FromGuest::Event {
        exec_id: "e1".into(),
        seq,
        offset: 0,
        event,
    }));
    let parts = [
        RelayMessage::Open,
        RelayMessage::Data,
        RelayMessage::Credit { bytes: 65_536 },
        RelayMessage::End,
        RelayMessage::Reset,
    ];
    messages.extend(parts.map(|part| FromGuest::Relayed { stream: 1, part }));
    let at_a_terminal = [
        TerminalEvent::Output { at: 5 },
        TerminalEvent::Skipped { bytes: 9 },
        TerminalEvent::Ended(TerminalEnd { exit_code: 0, signal: None }),
    ];
    messages
        .extend(at_a_terminal.map(|event| FromGuest::Terminal { terminal: "t1".into(), event }));
    let changes = [
        ChangeKind::Created,
        ChangeKind::Modified,
        ChangeKind::Removed,
        ChangeKind::Lost,
        ChangeKind::Gone,
    ];
    messages.extend(changes.map(|change| {
        FromGuest::Changed(FileChange { change, path: b"a/b".to_vec(), directory: false })
    }));
    insta::assert_snapshot!(lines(&messages));
}

#[test]
fn the_body_of_opened_files() {
    let refusal = Refusal { code: RefusalCode::NotAFile, message: "why".into() };
    insta::assert_snapshot!(
        lines(&[Opening::Opened { size: 5, being_written: true }, Opening::Refused(refusal)]),
        @r#"
    {"opened":{"size":5,"being_written":true}}
    {"refused":{"code":"not_a_file","message":"why"}}
    "#);
}

#[test]
fn an_old_guest_says_less() {
    let old = r#"{"path":"plot.png","size":5}"#;
    let file = TreeFile { inode: 0, changed_ns: 0, modified_ns: 0, ..file() };
    assert_eq!(serde_json::from_str::<TreeFile>(old).expect("a file"), file);
}

#[test]
fn the_body_of_a_tree() {
    insta::assert_snapshot!(lines(&[Tree {
        files: vec![file()],
        skipped: vec![Skipped { path: b"link".to_vec(), reason: "a symbolic link".into() }],
        skipped_more: 0,
    }]), @r#"{"files":[{"path":"plot.png","size":5,"inode":2,"changed_ns":4,"modified_ns":3}],"skipped":[{"path":"link","reason":"a symbolic link"}],"skipped_more":0}"#);
}

#[test]
fn the_body_of_a_state() {
    let frame = Variable {
        name: "frame".into(),
        type_name: "pandas.DataFrame".into(),
        size: Some(64),
        shape: Some(vec![2, 3]),
        dtype: Some("int64, object".into()),
        preview: "   a  b".into(),
        on_disk: true,
    };
    let word =
        Variable { name: "word".into(), shape: None, dtype: None, on_disk: false, ..frame.clone() };
    let import = Import { name: "pd".into(), module: "pandas".into(), version: Some("2".into()) };
    insta::assert_snapshot!(lines(&[KernelVariables {
        variables: vec![frame, word],
        imports: vec![import],
        cwd: "/session".into(),
        truncated: 1,
    }]));
}

#[test]
fn the_body_of_a_spill() {
    let spilled =
        SpilledValue { name: "df".into(), type_name: "pandas.DataFrame".into(), bytes: 9 };
    let stayed = StayedValue { name: "x".into(), reason: "something else refers to it".into() };
    let report = SpillReport {
        spilled: vec![spilled],
        stayed: vec![stayed],
        bytes: 9,
        disturbed: false,
        full: true,
        reason: String::new(),
    };
    insta::assert_snapshot!(lines(&[report]), @r#"{"spilled":[{"name":"df","type":"pandas.DataFrame","bytes":9}],"stayed":[{"name":"x","reason":"something else refers to it"}],"bytes":9,"disturbed":false,"full":true,"reason":""}"#);
    let least = serde_json::from_str::<SpillReport>(r#"{"spilled":[]}"#);
    assert_eq!(least.expect("a report"), SpillReport::default());
}

#[test]
fn over_a_line_to_a_kernel() {
    insta::assert_snapshot!(lines(&[
        SnapshotCall::Freeze {
            layer: 7,
            share: true,
            before: true,
            layers: vec![5, 6],
            force: false
        },
        SnapshotCall::Kept,
        SnapshotCall::Thaw { layers: vec![5, 6, 7] },
        SnapshotCall::Preload { layer: 7, modules: vec!["json".into()] },
        SnapshotCall::Begin { env: serde_json::Map::new(), cwd: "/session".into() },
    ]));
    let report = SnapshotReply {
        refused: vec!["a socket is open".into()],
        entirely: true,
        lost: vec!["thread `x` is alive".into()],
        bytes: 4096,
        layers: vec![7],
        thawed: true,
        warm: Some(Warm {
            python: "3.11.7".into(),
            modules: vec!["json".into()],
            ..Warm::default()
        }),
    };
    insta::assert_snapshot!(lines(&[report]));
    let least = serde_json::from_str::<SnapshotReply>("{}");
    assert_eq!(least.expect("a report"), SnapshotReply::default());
}

#[test]
fn the_body_of_a_report_on_rest() {
    let report = QuiescenceReport {
        kernels: vec![Language::Python],
        busy: vec!["a terminal is open".into()],
        gone: vec![(Language::Bash, "exited".into())],
        files: Some(7),
    };
    insta::assert_snapshot!(
        lines(&[report]),
        @r#"{"kernels":["python"],"busy":["a terminal is open"],"gone":[["bash","exited"]],"files":7}"#
    );
}

fn script() -> Script {
    Script { path: Some("/session/a.py".into()), argv: vec!["a.py".into(), "x".into()] }
}

#[test]
fn a_script_for_the_guest() {
    let what = What::Cell { language: Language::Python, echo: false };
    let spec = ExecSpec { script: Some(script()), stdin: true, ..spec(what) };
    insta::assert_snapshot!(lines(&[Call::Exec(spec)]), @r#"{"call":"exec","exec_id":"e1","what":{"kind":"cell","language":"python","echo":false},"env":[["K","V"]],"timeout_ms":60000,"grace_ms":2000,"output_limit":1048576,"stdin":true,"script":{"path":"/session/a.py","argv":["a.py","x"]}}"#);
}

#[test]
fn the_body_of_a_request_for_input() {
    insta::assert_snapshot!(
        lines(&[InputRequest { prompt: "Name? ".into(), password: false }]),
        @r#"{"prompt":"Name? ","password":false}"#
    );
}

#[test]
fn between_guest_and_kernel() {
    let env = serde_json::Map::from_iter([("K".to_owned(), "V".into())]);
    insta::assert_snapshot!(lines(&[
        ToKernel::Exec {
            exec_id: "e1".into(),
            echo: true,
            acknowledges: true,
            stdin: true,
            variant: Some("typescript".into()),
            env,
            script: None,
        },
        ToKernel::Exec {
            exec_id: "e2".into(),
            echo: false,
            acknowledges: true,
            stdin: true,
            variant: None,
            env: serde_json::Map::new(),
            script: Some(script()),
        },
        ToKernel::Input { exec_id: "e1".into() },
        ToKernel::State,
        ToKernel::Spill(SpillAsk { frame_bytes: 1, array_bytes: 2 }),
        ToKernel::SnapshotSocket,
        ToKernel::Ping { token: 7 },
        ToKernel::Interrupt { exec_id: "e1".into() },
        ToKernel::Seen,
        ToKernel::Shutdown,
    ]), @r#"
    {"op":"exec","exec_id":"e1","echo":true,"acknowledges":true,"stdin":true,"variant":"typescript","env":{"K":"V"}}
    {"op":"exec","exec_id":"e2","echo":false,"acknowledges":true,"stdin":true,"script":{"path":"/session/a.py","argv":["a.py","x"]}}
    {"op":"input","exec_id":"e1"}
    {"op":"state"}
    {"op":"spill","frame_bytes":1,"array_bytes":2}
    {"op":"line"}
    {"op":"ping","token":7}
    {"op":"interrupt","exec_id":"e1"}
    {"op":"seen"}
    {"op":"shutdown"}
    "#);
    let done = |status| FromKernel::Done {
        exec_id: "e1".into(),
        status,
        exit_code: 0,
        execution_count: 1,
    };
    insta::assert_snapshot!(lines(&[
        FromKernel::Hello {
            protocol: 1,
            language: "python".into(),
            language_version: "3.11.7".into(),
            pid: 2,
        },
        FromKernel::Fatal,
        FromKernel::Display { kind: DisplayKind::Display, wait: true },
        FromKernel::Display { kind: DisplayKind::Result, wait: false },
        FromKernel::Error,
        FromKernel::Input { stream: false },
        FromKernel::Input { stream: true },
        FromKernel::State,
        FromKernel::Spilled,
        FromKernel::SnapshotSocket,
        FromKernel::Pong { token: 7 },
        FromKernel::Leave,
        FromKernel::Begun { exec_id: "e1".into() },
        done(CellStatus::Ok),
        done(CellStatus::Error),
        done(CellStatus::Interrupted),
        done(CellStatus::Exit),
    ]));
}
