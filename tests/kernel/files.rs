//! Files of a sandbox, accessed from the host: listing the artifact directory, and opening,
//! removing and writing files in it.

use std::io::{Read, Write};

use belljar_proto::exec::{Event, Language};
use belljar_proto::guest::{Answer, Call, RefusalCode, TreeFile, TreeLimits};
use belljar_runtime::{OpenedFile, RuntimeError, paths};

use crate::lab::{Cell, Lab, Session, refused};

const LIMITS: TreeLimits = TreeLimits { files: 100, depth: 5 };

impl Session {
    /// Runs a command and returns the artifact fingerprint reported at its end.
    async fn artifacts_after(&self, script: &str) -> Option<u64> {
        artifacts_at_the_end(self.begin_shell(script).await).await
    }

    async fn files_in(&self, root: &str) -> Vec<TreeFile> {
        self.sandbox.list_tree(root, LIMITS).await.expect("a listing").files
    }

    async fn open_all(&self, root: &str) -> Vec<Result<OpenedFile, RuntimeError>> {
        let files = self.files_in(root).await;
        self.sandbox.open_files(root, &files, u64::MAX).await.expect("an answer")
    }

    /// Writes a file completely, through all steps.
    async fn write(&self, path: &str, text: &str) -> Result<TreeFile, RuntimeError> {
        let (mut file, temporary) =
            self.sandbox.create_file(paths::SESSION, path.as_bytes()).await?;
        file.write_all(text.as_bytes()).expect("there is room");
        drop(file);
        self.sandbox.commit_file(&temporary).await
    }
}

async fn artifacts_at_the_end(mut cell: Cell) -> Option<u64> {
    loop {
        let event = cell.following.next().await.expect("the sandbox lives");
        if let Event::Done(outcome) = event.event {
            assert_eq!(outcome.exit_code, 0);
            return outcome.artifacts;
        }
    }
}

fn named(path: &str) -> TreeFile {
    TreeFile { path: path.into(), size: 0, inode: 0, changed_ns: 0, modified_ns: 0 }
}

#[tokio::test]
async fn every_execution_tells_whether_artifacts_changed() {
    let session = Lab::cold().session().await;
    session.sandbox.start_kernel(Language::Bash).await.expect("a shell");
    assert!(session.sandbox.tells_artifacts());
    assert_eq!(session.artifacts_after("true").await, None);
    let empty = "mkdir -p /session/artifacts/a/b /session/artifacts/c";
    assert_eq!(session.artifacts_after(empty).await, None, "empty directories are nothing");

    let one = session.artifacts_after("echo 1 > /session/artifacts/a/b/one").await;
    assert!(one.is_some());
    assert_eq!(session.artifacts_after("cat /session/artifacts/a/b/one").await, one, "only read");
    let cell = session.begin("open('/work/artifacts/two', 'w').write('2')").await;
    let two = artifacts_at_the_end(cell).await;
    assert!(two.is_some() && two != one);
    let shell = session.begin_bash("true").await;
    assert_eq!(artifacts_at_the_end(shell).await, two, "whoever asks");
    assert_ne!(session.artifacts_after("echo 3 > /session/artifacts/two").await, two);
    assert_eq!(session.artifacts_after("rm -r /session/artifacts").await, None);
    let link = "mkdir /tmp/x; touch /tmp/x/y; ln -s /tmp/x /session/artifacts";
    assert_eq!(session.artifacts_after(link).await, None, "no link is followed");
}

#[tokio::test]
async fn a_file_that_is_open_for_writing_is_reported() {
    let session = Lab::cold().session_without_kernel().await;
    let script = "cd /session/artifacts; echo done > a-done; mkfifo pipe; ln -s a-done link
                  exec 3> b-open; echo half >&3; echo on; read line < pipe; exec 3>&-";
    let mut writer = session.begin_shell(script).await;
    writer.has_printed("on\n").await;
    let written = |files: Vec<Result<OpenedFile, RuntimeError>>| {
        let of = |file: Result<OpenedFile, RuntimeError>| file.expect("a file").being_written;
        files.into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(written(session.open_all(paths::ARTIFACTS).await), [false, true]);
    session.shell("echo > /session/artifacts/pipe").await;
    writer.finish().await;
    assert_eq!(written(session.open_all(paths::RUN_ARTIFACTS).await), [false, false]);
}

#[tokio::test]
async fn files_are_opened_together_and_removed_if_unchanged() {
    let session = Lab::cold().session_without_kernel().await;
    session
        .shell("cd /session/artifacts; mkdir sub; for n in 1 2 3; do echo $n > sub/$n; done")
        .await;
    let listed = session.files_in(paths::ARTIFACTS).await;
    session.shell("cd /session/artifacts; rm sub/2; ln -s /etc/passwd sub/2; mkfifo pipe").await;

    let mut wanted = listed.clone();
    wanted.extend(["pipe", "../../etc/passwd", "sub", "nothing", "sub/1/x"].map(named));
    let opened =
        session.sandbox.open_files(paths::ARTIFACTS, &wanted, u64::MAX).await.expect("an answer");
    let mut seen = Vec::new();
    for (outcome, listed) in opened.into_iter().zip(&wanted) {
        seen.push(match outcome {
            Ok(file) => {
                let is = (file.size, file.inode, file.changed_ns, file.modified_ns);
                let was = (listed.size, listed.inode, listed.changed_ns, listed.modified_ns);
                assert_eq!(is, was);
                let mut text = String::new();
                (&*file.file).read_to_string(&mut text).expect("it is open");
                text
            }
            refusal => format!("{:?}", refused(refusal)),
        });
    }
    let expected =
        ["1\n", "NotAFile", "3\n", "NotAFile", "NotAFile", "NotAFile", "NotFound", "NotADirectory"];
    assert_eq!(seen, expected);
    let many = vec![named("sub/1"); belljar_runtime::Sandbox::MAX_OPENED];
    let opened =
        session.sandbox.open_files(paths::ARTIFACTS, &many, u64::MAX).await.expect("an answer");
    assert!(opened.iter().all(Result::is_ok) && opened.len() == many.len());
    let more = [&many[..], &many].concat();
    let outcome = session.sandbox.open_files(paths::ARTIFACTS, &more, u64::MAX).await;
    assert_eq!(refused(outcome), RefusalCode::Invalid);
    opens_one_as_an_old_host_asks(&session).await;

    session.shell("echo more >> /session/artifacts/sub/3").await;
    let before = session.artifacts_after("true").await;
    let removed = session.sandbox.remove_files(paths::ARTIFACTS, &listed).await.expect("an answer");
    assert_eq!(removed.removed, 1, "one is a link now and one has changed");
    assert!(removed.artifacts.is_some() && removed.artifacts != before);
    session.shell("rm /session/artifacts/pipe /session/artifacts/sub/2").await;
    let rest = session.files_in(paths::ARTIFACTS).await;
    let removed = session.sandbox.remove_files(paths::ARTIFACTS, &rest).await.expect("an answer");
    assert_eq!((removed.removed, removed.artifacts), (1, None));
    session.shell("test -d /session/artifacts/sub").await;
}

async fn opens_one_as_an_old_host_asks(session: &Session) {
    let call = Call::OpenFile { root: paths::ARTIFACTS.into(), path: b"sub/1".to_vec() };
    let reply = session.sandbox.link().call(call, &[]).await.expect("an answer");
    assert_eq!((reply.answer, reply.fds.len()), (Answer::File { size: 2 }, 1));
}

#[tokio::test]
async fn files_are_written_beside_their_place_and_then_into_it() {
    let session = Lab::cold().session_without_kernel().await;
    let sandbox = &session.sandbox;
    let (mut file, temporary) =
        sandbox.create_file(paths::SESSION, b"data/new/set.csv").await.expect("a file");
    file.write_all(b"a,b\n").expect("there is room");
    session.shell("test ! -e /session/data/new/set.csv").await;
    drop(file);
    let committed = sandbox.commit_file(&temporary).await.expect("it is in its place");
    let listed = session.files_in(paths::SESSION_DATA).await;
    assert_eq!(listed, [TreeFile { path: b"new/set.csv".to_vec(), ..committed }]);
    session.shell("test \"$(cat /session/data/new/set.csv)\" = a,b").await;
    session.shell("echo mine >> /session/data/new/set.csv").await;
    assert_eq!(session.write("data/new/set.csv", "over it").await.expect("a file").size, 7);
    assert_eq!(refused(sandbox.commit_file(&temporary).await), RefusalCode::NotFound);

    let (_, temporary) = sandbox.create_file(paths::SESSION, b"data/x").await.expect("a file");
    sandbox.discard_file(temporary).await.expect("it goes");
    assert_eq!(session.files_in(paths::SESSION_DATA).await.len(), 1);

    session
        .shell("ln -s /tmp /session/link; ln -s /etc/passwd /session/passwd; touch /session/f")
        .await;
    for (path, code) in [
        ("../x", RefusalCode::Invalid),
        ("data/", RefusalCode::Invalid),
        ("data", RefusalCode::IsADirectory),
        ("link/x", RefusalCode::NotADirectory),
        ("f/x", RefusalCode::NotADirectory),
    ] {
        assert_eq!(refused(session.write(path, "x").await), code, "{path}");
    }
    let endless = "\u{1}".repeat(300_000);
    assert_eq!(refused(session.write(&endless, "x").await), RefusalCode::Invalid);
    session.write("passwd", "mine").await.expect("a link is replaced");
    session.shell("test ! -L /session/passwd && test ! -e /tmp/x").await;
    for (root, code) in [("/usr", RefusalCode::NotPermitted), ("/nowhere", RefusalCode::NotFound)] {
        assert_eq!(refused(sandbox.create_file(root, b"x").await), code, "{root}");
    }
}
