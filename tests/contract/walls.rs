//! What code inside cannot see, become or do.

use std::sync::Arc;

use serde_json::json;

use crate::backend::Backend;
use belljar_testkit::installation::Installation;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

pub(crate) async fn nothing_of_the_host_is_seen(on: Backend) {
    let site = on.site(&[("MY_SECRET", "c4nary-of-the-host")]);
    let server = site.serve().await;
    std::fs::write(server.path("secret"), "c4nary-of-the-host").expect("a file");
    let session = server.session().await;
    let ask = format!(
        "import os, glob\n\
         print(os.path.exists('{}'), os.path.exists('{}'))\n\
         for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n\
         \x20   try: content = open(path, 'rb').read()\n\
         \x20   except OSError: continue\n\
         \x20   assert b'c4nary' not in content, path\n\
         assert not any('c4nary' in value for value in os.environ.values())\n\
         print(sorted(name for name in os.environ if name.startswith(('CARGO', 'NEXTEST', 'BELLJAR'))))\n\
         print(os.uname().nodename, max(int(pid) for pid in os.listdir('/proc') if pid.isdigit()) < 1000)",
        server.path("secret").display(),
        env!("CARGO_MANIFEST_DIR")
    );
    assert_eq!(session.printed(&ask).await, "False False\n[]\nbelljar True\n");
    // Code in the sandbox cannot read the guest, which talks to the host. gVisor does not protect a
    // process from the same user; there the boundary is around the whole sandbox.
    for closed in ["mem", "environ", "maps", "fd/0"] {
        if on == Backend::Runsc {
            continue;
        }
        let result = session.shell(&format!("cat /proc/1/{closed} | head -c 1 | wc -c")).await;
        assert_eq!(text(&result["stdout"]).trim(), "0", "/proc/1/{closed}: {result:#}");
    }
    // No network but loopback, which works.
    let network = "import socket\n\
         names = sorted(name for _, name in socket.if_nameindex())\n\
         server = socket.create_server(('127.0.0.1', 0))\n\
         socket.create_connection(server.getsockname(), timeout=5).close()\n\
         for address in [('192.0.2.1', 80), ('8.8.8.8', 53)]:\n\
         \x20   try: socket.create_connection(address, timeout=2); print('reached', address)\n\
         \x20   except OSError as error: pass\n\
         try: socket.getaddrinfo('example.org', 80); print('resolved')\n\
         except OSError: pass\n\
         print(names)";
    assert_eq!(session.printed(network).await, "['lo']\n");
}

pub(crate) async fn no_process_gains_rights(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let who = "import os\n\
         status = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)\n\
         print(os.getuid(), os.geteuid(), os.getgid(), os.getgroups() in ([], [1000]))\n\
         print({int(status.get(name, '0'), 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb')})\n\
         print(status.get('NoNewPrivs', '1').strip(), status.get('Seccomp', '2').strip())";
    assert_eq!(session.printed(who).await, "1000 1000 1000 True\n{0}\n1 2\n");
    let expected = "1000 1000 1000 True\n{0}\n1 2\n";
    let command = json!({"command": ["python3", "-c", who]});
    assert_eq!(session.exec(command).await.json(200)["stdout"], expected, "a command as well");
    let writes = "import os\n\
         def refused(path):\n\
         \x20   try: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)); os.unlink(path); return False\n\
         \x20   except OSError: return True\n\
         places = ['/', '/etc', '/usr', '/usr/bin', '/opt/belljar', '/opt/belljar/kernels', '/run', '/root', '/home', '/proc', '/sys']\n\
         print([place for place in places if not refused(place + '/belljar-was-here')])\n\
         for become in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.chroot('/tmp'), lambda: os.setgroups([0])):\n\
         \x20   try: become(); print('became')\n\
         \x20   except OSError: pass\n\
         print([place for place in ('/session', '/tmp', '/dev/shm') if refused(place + '/x')])";
    assert_eq!(session.printed(writes).await, "[]\n[]\n");
}

/// Each call fails with an error, or kills the calling process.
pub(crate) async fn system_calls_are_refused(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let tries = "import ctypes, os, signal, socket\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def family(number, kind=socket.SOCK_DGRAM, protocol=0):\n\
         \x20   try: socket.socket(number, kind, protocol).close(); return True\n\
         \x20   except OSError: return False\n\
         def call(number, *arguments): return libc.syscall(number, *arguments) >= 0\n\
         arch = os.uname().machine == 'x86_64'\n\
         number = {'unshare': 272, 'setns': 308, 'mount': 165, 'keyctl': 250, 'add_key': 248, 'bpf': 321,\n\
         \x20         'io_uring_setup': 425, 'perf_event_open': 298, 'userfaultfd': 323, 'ptrace': 101,\n\
         \x20         'process_vm_readv': 310, 'memfd_secret': 447, 'open_tree': 428, 'fsopen': 430, 'init_module': 175,\n\
         \x20         'kexec_load': 246, 'open_by_handle_at': 304}\n\
         tries = {'AF_ALG': lambda: family(38, socket.SOCK_SEQPACKET), 'AF_VSOCK': lambda: family(40, socket.SOCK_STREAM),\n\
         \x20        'AF_PACKET': lambda: family(17, socket.SOCK_RAW), 'AF_RXRPC': lambda: family(33),\n\
         \x20        'raw': lambda: family(2, socket.SOCK_RAW, 1), 'netfilter': lambda: family(16, socket.SOCK_RAW, 12),\n\
         \x20        'xfrm': lambda: family(16, socket.SOCK_RAW, 6)}\n\
         if arch:\n\
         \x20   keyring = ctypes.c_long(-3)\n\
         \x20   tries |= {\n\
         \x20       'unshare': lambda: call(number['unshare'], 0x10000000), 'setns': lambda: call(number['setns'], 0, 0),\n\
         \x20       'mount': lambda: call(number['mount'], b'none', b'/tmp', b'tmpfs', 0, 0),\n\
         \x20       'keyctl': lambda: call(number['keyctl'], 0, keyring, 1), 'add_key': lambda: call(number['add_key'], b'user', b'x', b'x', 1, keyring),\n\
         \x20       'bpf': lambda: call(number['bpf'], 0, ctypes.create_string_buffer(128), 48),\n\
         \x20       'io_uring': lambda: call(number['io_uring_setup'], 4, ctypes.create_string_buffer(256)),\n\
         \x20       'perf': lambda: call(number['perf_event_open'], ctypes.create_string_buffer(b'\\1\\0\\0\\0\\x70', 128), 0, -1, -1, 0),\n\
         \x20       'userfaultfd': lambda: call(number['userfaultfd'], 1), 'ptrace': lambda: call(number['ptrace'], 16, 1, 0, 0),\n\
         \x20       'memfd_secret': lambda: call(number['memfd_secret'], 0), 'open_tree': lambda: call(number['open_tree'], -100, b'/', 1),\n\
         \x20       'fsopen': lambda: call(number['fsopen'], b'tmpfs', 0), 'kexec': lambda: call(number['kexec_load'], 0, 0, 0, 0),\n\
         \x20       'x32': lambda: call(0x40000000 + 39)}\n\
         succeeded = []\n\
         for name, attempt in tries.items():\n\
         \x20   child = os.fork()\n\
         \x20   if child == 0: os._exit(7 if attempt() else 0)\n\
         \x20   if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7: succeeded.append(name)\n\
         print(succeeded)";
    assert_eq!(session.printed(tries).await, "[]\n");
    if cfg!(target_arch = "x86_64") {
        // getpid by the system call interface of 32-bit programs: mov eax, 20; int 0x80; ret.
        let int80 = "import ctypes, mmap, os\n\
             code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n\
             code.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n\
             call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))\n\
             child = os.fork()\n\
             if child == 0: os._exit(7 if call() == os.getpid() else 0)\n\
             print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7)";
        assert_eq!(session.printed(int80).await, "False\n", "32-bit calls");
    }
    let namespace = session.shell("unshare --user true").await;
    assert_ne!(namespace["exit_code"], 0, "{namespace:#}");
}

/// The limits are tested, and a server with BELLJAR_STRICT starts.
pub(crate) async fn limits_hold(on: Backend) {
    let installation: Installation = on.installation().env("BELLJAR_STRICT", "1");
    std::fs::remove_file(installation.scratch().run_dir().join("selftest.json"))
        .expect("it was there");
    let site = crate::backend::BackendSite::of(on, installation);
    let server = Arc::clone(&site.installation).serve().await;
    let health = server.get("/healthz").await.json(200);
    for limit in ["memory limit", "process limit", "cpu limit", "no network"] {
        assert_eq!(health["enforced"][limit], true, "{health:#}");
    }
    site.has_no_traces().await;
}

pub(crate) async fn tenants_are_apart(on: Backend) {
    let installation = Arc::new(on.installation());
    let keys =
        ["one", "two"].map(|tenant| installation.key(&["--name", tenant, "--tenant", tenant]));
    let site = crate::backend::BackendSite { backend: on, installation };
    let server = site.serve().await;
    let [one, two] = keys.map(|key| server.with_key(text(&key["secret"])));
    let first = one.session_with(json!({"key": "same"})).await;
    let second = two.session_with(json!({"key": "same"})).await;
    assert_ne!(first.id, second.id);
    first.python("open('/session/mine', 'w').write('x'); open('/tmp/mine', 'w').write('x'); open('/dev/shm/mine', 'w').write('x')").await;
    let look = "import os; print([os.path.exists(p) for p in ('/session/mine', '/tmp/mine', '/dev/shm/mine')])";
    assert_eq!(second.printed(look).await, "[False, False, False]\n");
    let foreign = Session::of(&two, &first.id);
    foreign.exec(json!({"code": "1"})).await.error(404, "session_not_found");
    two.get(&foreign.path("/files/mine")).await.error(404, "session_not_found");
    two.delete(&foreign.path("")).await.error(404, "session_not_found");
    // A session cannot signal processes of another one.
    let held = first.hold("held").await;
    second.shell("kill -9 -1; true").await;
    first.release().await;
    assert_eq!(held.result().await["status"], "ok");
}
