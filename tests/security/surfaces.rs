//! Attacks through what a session shares with its host, its forks and other sessions: the freeze line
//! (the socket over which its kernel is stored in files), snapshots, volumes, ports. Each attack uses a
//! real server, and a bystander session must not notice it.

use std::time::Duration;

use libtest_mimic::Failed;
use serde_json::Value;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::Finished;

/// How long a bystander may wait for one line of code. It takes milliseconds; if the server is
/// blocked by the kernel of another session, it takes seconds.
const UNDISTURBED: Duration = Duration::from_secs(3);

/// Kernels that send false answers: each replaces the code that answers on the freeze line.
const LIARS: [(&str, &str); 6] = [
    ("says nothing", "line.close()"),
    ("says nonsense", "line.send(b'\\xff' * 1000); line.close()"),
    (
        "says too much",
        "line.send(json.dumps({'refused': ['x' * 1000] * 100}).encode()); line.close()",
    ),
    (
        "has written nothing",
        "line.send(json.dumps({'bytes': 1, 'layers': [1, 2, 3]}).encode()); line.close()",
    ),
    (
        "speaks of everything",
        "line.send(json.dumps({'bytes': -1, 'layers': list(range(9000))}).encode()[:60000]); line.close()",
    ),
    (
        "writes noise",
        "packet, fds, _, _ = socket.recv_fds(line, 1 << 17, 64)\n    \
         [os.write(fd, os.urandom(1 << 16)) for fd in (fds[0], fds[2])]\n    \
         [os.close(fd) for fd in fds]\n    \
         line.send(json.dumps({'bytes': 65536, 'layers': [json.loads(packet)['layer']]}).encode())",
    ),
];

/// A kernel that lies on the freeze line harms its own session and no other.
pub(crate) fn liars_on_the_freeze_line() -> Result<(), Failed> {
    let served = CliServer::on_tcp();
    let bystander = served.create(&[]);
    served.ok(["exec", &bystander, "-c", "secret = 41"]);
    for (liar, answer) in LIARS {
        let session = served.create(&[]);
        let code = format!(
            "import json, os, socket, sys\n\
             def talk(line, kernel):\n    {answer}\n\
             frozen = sys.modules.get('belljar_kernel.snapshot')\n\
             if frozen is None:\n    import belljar_kernel.snapshot as frozen\n\
             frozen.talk = talk\n\
             print('lying')"
        );
        let prepared = served.call(["exec", &session, "-c", &code]);
        if prepared.stdout() != "lying\n" {
            return Err(format!("{liar}: the kernel could not be made to lie: {prepared}").into());
        }
        let hibernated = served.call(["hibernate", &session]);
        if hibernated.code == Some(0) && liar.starts_with("says") {
            return Err(format!("{liar}: nobody listened to the liar: {hibernated}").into());
        }
        // Whether the lie was believed or not, the session wakes with its own state or with an error of
        // its own.
        let woken = served.call(["exec", &session, "-c", "print('secret' in globals())"]);
        if woken.code == Some(0) && woken.stdout() != "False\n" {
            return Err(format!("{liar}: it woke up as somebody else: {woken}").into());
        }
        for outcome in [&hibernated, &woken] {
            if outcome.to_string().contains("internal") || outcome.took > Duration::from_secs(30) {
                return Err(format!("{liar}: not the tenant's error: {outcome}").into());
            }
        }
        let undisturbed = served.ok(["exec", &bystander, "-c", "print(secret + 1)"]);
        if undisturbed.stdout() != "42\n" || undisturbed.took > UNDISTURBED {
            return Err(format!("{liar}: a bystander noticed: {undisturbed}").into());
        }
        served.call(["stop", &session]);
    }
    Ok(())
}

/// Forks share the files of snapshots, and none of them can change these files.
pub(crate) fn forks_cannot_change_what_they_share() -> Result<(), Failed> {
    let served = CliServer::on_tcp();
    let session = served.create(&[]);
    let big = "data = bytearray(b'original') * (4 << 20); print(len(data))";
    served.ok(["exec", &session, "-c", big]);
    let fork = served.ok(["fork", &session]).stdout().trim().to_owned();
    // Files that a process has mapped or open can often be opened anew, with more rights.
    let attack = "\
import os
holes, tried = [], 0
names = [f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd')]
names += [f'/proc/self/map_files/{line.split()[0]}' for line in open('/proc/self/maps') if ' /' in line]
for name in names:
    try:
        target = os.readlink(name)
    except OSError:
        continue
    if target.startswith(('pipe:', 'socket:', 'anon_inode:', '/dev/')):
        continue
    tried += 1
    for flags in (os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        try:
            fd = os.open(name, flags)
        except OSError:
            continue
        try:
            # A sealed file can be opened, and not changed.
            os.pwrite(fd, b'changed', 0)
            holes.append(target)
        except OSError:
            pass
        os.close(fd)
data[:8] = b'changed!'
import ctypes
print('ESCAPED' if holes else 'CONTAINED', tried > 0, holes[:3])";
    for who in [&session, &fork] {
        let tried = served.ok(["exec", who, "-c", attack]);
        if !tried.stdout().starts_with("CONTAINED True") {
            return Err(format!("files of snapshots were changed: {tried}").into());
        }
    }
    served.ok(["exec", &session, "-c", "open('/session/of-the-first', 'w').write('x')"]);
    let second = served.ok(["fork", &session]).stdout().trim().to_owned();
    let look = "import os; print(bytes(data[8:16]), bytes(data[-8:]), os.path.exists('/session/of-the-first'))";
    let seen = [&fork, &second].map(|id| served.ok(["exec", id, "-c", look]).stdout());
    let expected = [false, true]
        .map(|there| format!("b'original' b'original' {}\n", if there { "True" } else { "False" }));
    if seen == expected {
        Ok(())
    } else {
        Err(format!("forks are not what they were: {seen:?}").into())
    }
}

/// Code with a volume tries to get out of it, to write to a read-only volume, and to leave traps for
/// the host.
pub(crate) fn volumes_hold_what_is_put_in_them() -> Result<(), Failed> {
    let served = CliServer::on_tcp();
    let volume = |args: &[&str]| -> Finished {
        served.context().finish(served.context().belljar(["volume"]).args(args))
    };
    for name in ["shared", "other"] {
        let made = volume(&["create", name, "--size", "8M"]);
        if made.code != Some(0) {
            return Err(format!("no volume: {made}").into());
        }
    }
    let writer = served.create(&["--volume", "shared"]);
    let traps = "\
import os, shutil, stat, subprocess
at = '/volumes/shared'
for name, target in (('passwd', '/etc/passwd'), ('up', '../../..'), ('proc', '/proc/1/root'), ('loop', 'loop')):
    os.symlink(target, f'{at}/{name}')
os.mkfifo(f'{at}/pipe')
shutil.copy('/usr/bin/id', f'{at}/id'); os.chmod(f'{at}/id', 0o6755)
holes = []
for kind, number in ((stat.S_IFBLK, (8, 0)), (stat.S_IFCHR, (1, 1))):
    try:
        os.mknod(f'{at}/node-{kind}', kind | 0o666, os.makedev(*number)); holes.append('a device')
    except OSError: pass
for attempt in ('/volumes/new', '/volumes/other', '/volumes/shared/../new'):
    try:
        os.mkdir(attempt); holes.append(attempt)
    except OSError: pass
if os.listdir('/volumes') != ['shared']: holes.append(f'sees {os.listdir(\"/volumes\")}')
if 'euid' in subprocess.run([f'{at}/id'], capture_output=True, text=True).stdout: holes.append('set-user-id counts')
try:
    with open(f'{at}/much', 'wb') as file:
        for _ in range(64): file.write(bytes(1 << 20))
    holes.append('64 MiB in a volume of 8 MiB')
except OSError: pass
os.unlink(f'{at}/much')
deep = at
for _ in range(60):
    deep += '/' + 'd' * 60
    os.mkdir(deep)
print('ESCAPED' if holes else 'CONTAINED', holes)";
    let reader = "\
import os
at, holes = '/volumes/shared', []
def put(name): open(f'{at}/{name}', 'w').write('x')
for what, attempt in {
    'writes': lambda: put('new'), 'changes': lambda: put('id'), 'removes': lambda: os.unlink(f'{at}/id'),
    'renames': lambda: os.rename(f'{at}/id', f'{at}/di'), 'links': lambda: os.link(f'{at}/id', f'{at}/id2'),
    'chmods': lambda: os.chmod(f'{at}/id', 0o777), 'makes': lambda: os.mkdir(f'{at}/folder'),
    'truncates': lambda: os.truncate(f'{at}/id', 0), 'touches': lambda: os.utime(f'{at}/id'),
    'moves out': lambda: os.link(f'{at}/id', '/session/id'),
}.items():
    try:
        attempt(); holes.append(what)
    except OSError: pass
own = open('/etc/passwd').read()
if os.path.exists(f'{at}/passwd') and open(f'{at}/passwd').read() != own: holes.append('a link led out')
print('ESCAPED' if holes else 'CONTAINED', holes)";
    let tried = served.ok(["exec", &writer, "-c", traps]);
    if !tried.stdout().starts_with("CONTAINED") {
        return Err(tried.to_string().into());
    }
    let reads = served.create(&["--volume", "shared:ro"]);
    let tried = served.ok(["exec", &reads, "-c", reader]);
    if !tried.stdout().starts_with("CONTAINED") {
        return Err(tried.to_string().into());
    }
    // The host reads the volume and removes it, with all traps. The host's own files are unchanged.
    let before = std::fs::read("/etc/passwd")?;
    served.ok(["stop", &writer, &reads]);
    for args in [&["show", "shared", "--json"][..], &["remove", "shared"], &["remove", "other"]] {
        let done = volume(args);
        if done.code != Some(0) {
            return Err(format!("the host stumbled over a volume: {done}").into());
        }
    }
    if std::fs::read("/etc/passwd")? == before { Ok(()) } else { Err("a trap worked".into()) }
}

/// A port that a program in one session listens on, as a browser does, cannot be reached from other
/// sessions nor from the host. The same is true for a named socket and for a terminal.
pub(crate) fn ports_and_terminals_are_the_sessions_own() -> Result<(), Failed> {
    let served = CliServer::on_tcp();
    let (one, other) = (served.create(&[]), served.create(&[]));
    let listen = "\
import os, pty, socket, threading
servers = [socket.create_server(('', 9222)), socket.create_server(('::', 9223), family=socket.AF_INET6)]
named = socket.socket(socket.AF_UNIX); named.bind('\\0belljar-port-test'); named.listen()
master, slave = pty.openpty()
print(os.ttyname(slave))";
    let terminal = served.ok(["exec", &one, "-c", listen]).stdout().trim().to_owned();
    if !terminal.starts_with("/dev/pts/") {
        return Err(format!("no terminal: {terminal}").into());
    }
    let reach = format!(
        "\
import os, socket
holes = []
for family, address in ((socket.AF_INET, ('127.0.0.1', 9222)), (socket.AF_INET6, ('::1', 9223)),
                        (socket.AF_INET, ('0.0.0.0', 9222)), (socket.AF_UNIX, '\\0belljar-port-test')):
    try:
        with socket.socket(family) as probe:
            probe.settimeout(2); probe.connect(address)
        holes.append(str(address))
    except OSError: pass
if os.path.exists({terminal:?}): holes.append('the terminal')
print('ESCAPED' if holes else 'CONTAINED', holes)"
    );
    let own = served.ok(["exec", &one, "-c", &reach]);
    if !own.stdout().contains("ESCAPED") {
        return Err(format!(
            "whoever listens cannot be reached at all, so nothing was tried: {own}"
        )
        .into());
    }
    let tried = served.ok(["exec", &other, "-c", &reach]);
    if !tried.stdout().starts_with("CONTAINED") {
        return Err(format!("another session got through: {tried}").into());
    }
    let from_host = ["127.0.0.1:9222", "[::1]:9223"].map(std::net::TcpStream::connect);
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    if from_host.iter().all(|tried| tried.as_ref().is_err_and(refused)) {
        Ok(())
    } else {
        Err("the host got through, or listens there itself".into())
    }
}

/// A kernel that ignores all signals, leaves a detached process and closes its descriptors does not
/// prevent the session from being shown and stopped.
pub(crate) fn a_session_that_plays_dead_can_be_stopped() -> Result<(), Failed> {
    let served = CliServer::on_tcp();
    let session = served.create(&[]);
    let code = "\
import os, signal, threading, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0:
    os.setsid()
    while True: time.sleep(1)
os.closerange(3, 4096)
print('dead')";
    let _ = served.call(["exec", &session, "-c", code]);
    let shown: Value = served.ok(["show", &session, "--json"]).json();
    let stopped = served.call(["stop", &session]);
    let calm = stopped.code == Some(0) && stopped.took < Duration::from_secs(15);
    if calm { Ok(()) } else { Err(format!("{shown}: {stopped}").into()) }
}
