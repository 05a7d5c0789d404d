//! Kernels that are restored on a machine that is not quite the same: another vDSO, another processor, other file times.

use crate::lab::Lab;
use crate::snapshots::SnapshotDirectory;

const VDSO: &str = include_str!("vdso.py");

/// The process has a vDSO with other functions at other places when it is saved.
#[tokio::test]
async fn a_kernel_goes_on_with_another_vdso() {
    let lab = Lab::cold();
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed(VDSO).await;
    assert_eq!(session.value("check()").await, "[]");
    assert_eq!(session.value("become_other() >= 4").await, "True");
    assert_eq!(session.value("check(), copies()").await, "([], 0)");
    let mut taken = snapshots.take(&session, None).await;
    let first = snapshots.restore(&lab, &taken).await;
    let ratios = "a, b = costs(); print('a call takes', a, 'ns, a plain one', b); a < 2 * b + 5";
    for turn in 0..4 {
        let other = snapshots.restore(&lab, &taken).await;
        // There is never more than one copy, so that no call is slower than after the first time.
        assert_eq!(other.value("check(), copies()").await, "([], 1)", "{turn}");
        assert_eq!(
            other.value("getrandom(0), getrandom(2**64 - 1)").await,
            "((16, True), (-38, False))"
        );
        let run = other.run(ratios).await;
        eprintln!("{}", run.stdout);
        assert_eq!(run.results.last().and_then(|bundle| bundle.text()), Some("True"), "{run:?}");
        let before = (turn % 2 == 0).then_some(&taken);
        let next = snapshots.take(&other, before).await;
        assert_eq!(other.value("check(), copies()").await, "([], 1)", "{turn}");
        taken = next;
    }
    assert_eq!(first.value("check(), copies()").await, "([], 1)");
    let daemon = "import subprocess; subprocess.getoutput('date +%s').isdigit()";
    assert_eq!(first.value(daemon).await, "True");
}

/// Linux may be configured so that the vDSO of a process cannot be moved.
#[tokio::test]
async fn a_vdso_that_cannot_be_moved_stays_where_it_is() {
    let lab = Lab::cold();
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed(VDSO).await;
    let taken = snapshots.take(&session, None).await;
    let same = snapshots.restore(&lab, &taken).await;
    assert_eq!(same.value("check(), copies()").await, "([], 0)");
    let other = lab.session().await;
    other.printed(VDSO).await;
    other.printed("seal()").await;
    other.sandbox.thaw(&snapshots.open(&taken)).await.expect("a kernel");
    assert_eq!(other.value("check(), copies()").await, "([], 1)");
}

/// Two kernels of one snapshot must not have the same random numbers.
#[tokio::test]
async fn memory_of_random_numbers_is_not_saved() {
    const DROPPABLE: &str = "import ctypes, os\n\
        libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_long; libc.mmap.argtypes = [ctypes.c_long] * 6\n\
        place = libc.mmap(0, 8192, 3, 0x28, -1, 0)\n\
        ctypes.memset(place, 7, 8192)\n\
        def is_wiped_in_forks():\n\
        \x20   ctypes.memset(place, 7, 8192)\n\
        \x20   child = os.fork()\n\
        \x20   if child == 0: os._exit(any(ctypes.string_at(place, 8192)))\n\
        \x20   return os.waitpid(child, 0)[1] == 0";
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let mut session = lab.session().await;
    session.printed(DROPPABLE).await;
    assert_eq!(session.value("place > 0, is_wiped_in_forks()").await, "(True, True)");
    for _ in 0..2 {
        let taken = snapshots.take(&session, None).await;
        assert_eq!(session.value("ctypes.string_at(place, 8192) == b'\\7' * 8192").await, "True");
        session = snapshots.restore(&lab, &taken).await;
        assert_eq!(session.value("any(ctypes.string_at(place, 8192))").await, "False");
        assert_eq!(session.value("is_wiped_in_forks()").await, "True");
    }
}

#[tokio::test]
async fn a_processor_must_have_what_the_other_had() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed("x = 1").await;
    let taken = snapshots.take(&session, None).await;
    let original = std::fs::read(&taken.index).expect("an index");
    let tail = original.windows(8).rposition(|word| word == b"BELLJAR\x02").expect("a tail");
    let other = lab.session().await;
    for (word, wakes) in [(u64::MAX, false), (0, true)] {
        let mut changed = original.clone();
        changed[tail + 8..tail + 16].copy_from_slice(&word.to_ne_bytes());
        std::fs::write(&taken.index, changed).expect("a file");
        match other.sandbox.thaw(&snapshots.open(&taken)).await {
            Ok(_) => assert!(wakes),
            Err(error) => {
                let text = error.to_string();
                assert!(!wakes && text.starts_with("this machine lacks "), "{text}");
                assert!(text.ends_with(", which the kernel's libraries may use"), "{text}");
            }
        }
    }
    assert_eq!(other.value("x").await, "1");
}

/// The same image has other file times on another machine.
#[tokio::test]
async fn a_file_is_recognised_by_its_content() {
    // A library with a build id, one without, and a file that is no library.
    const FILES: &str = "import ctypes, mmap, os\n\
        plain = open('/lib/x86_64-linux-gnu/libm.so.6', 'rb').read()\n\
        assert plain.count(b'\\3\\0\\0\\0GNU\\0') == 1\n\
        bare = plain.replace(b'\\3\\0\\0\\0GNU\\0', b'\\3\\0\\0\\0XXX\\0')\n\
        def write(name, content):\n\
        \x20   with open('/tmp/' + name, 'wb') as file: file.write(content)\n\
        write('plain.so', plain); write('bare.so', bare); write('data', b'abc' * 5000)";
    const USE: &str = "libraries = [ctypes.CDLL('/tmp/plain.so'), ctypes.CDLL('/tmp/bare.so')]\n\
        for library in libraries: library.cos.restype = ctypes.c_double\n\
        with open('/tmp/data', 'rb') as file: data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)\n\
        data[5] = 0";
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed(FILES).await;
    session.printed(USE).await;
    let taken = snapshots.take(&session, None).await;
    let refusals = [
        ("write('data', b'abc' * 4999 + b'abd')", "/tmp/data has changed"),
        ("write('data', b'abc' * 5001)", "/tmp/data has changed"),
        ("write('bare.so', bare[:-1] + b'!')", "/tmp/bare.so has changed"),
        (
            "write('plain.so', plain[:80] + bytes([plain[80] ^ 1]) + plain[81:])",
            "/tmp/plain.so has changed",
        ),
    ];
    let other = lab.session().await;
    for (change, reason) in refusals {
        other.printed(FILES).await;
        other.printed(change).await;
        let refused = other.sandbox.thaw(&snapshots.open(&taken)).await.expect_err("another file");
        assert_eq!(refused.to_string(), reason, "{change}");
    }
    other.printed(FILES).await;
    other
        .printed("for name in ('plain.so', 'bare.so', 'data'): os.utime('/tmp/' + name, (5, 5))")
        .await;
    other.sandbox.thaw(&snapshots.open(&taken)).await.expect("the same files");
    let works = "[library.cos(ctypes.c_double(0.0)) for library in libraries], data[3:7]";
    assert_eq!(other.value(works).await, "([1.0, 1.0], b'ab\\x00a')");
    // It is saved with the times of the files here.
    let again = snapshots.take(&other, Some(&taken)).await;
    let third = lab.session().await;
    third.printed(FILES).await;
    third.sandbox.thaw(&snapshots.open(&again)).await.expect("the same files");
    assert_eq!(third.value(works).await, "([1.0, 1.0], b'ab\\x00a')");
}
