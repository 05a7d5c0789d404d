"""The program Chromium: its path, its start, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from belljar_browser.errors import NoBrowser
from belljar_browser.pipe import Interrupts, Pipe

# The programs themselves, not the wrapper scripts of distributions, which are slow and read files of the machine.
PROGRAMS = [
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "chromium",
    "chromium-browser",
    "chromium-headless-shell",
    "google-chrome-stable",
    "google-chrome",
    "/opt/google/chrome/chrome",
]

MISSING = (
    "install it with `apt-get install chromium` on the server's machine (image `host`), or build an image with "
    "`browser = true` in its spec (`belljar image build`, docs/how-to/browser.md)"
)

# Features that need a person, and requests that Chromium makes on its own.
FLAGS = [
    "--headless=new",
    # Chromium's own sandbox needs namespaces, which our sandbox does not allow: see THREAT-MODEL.md.
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--no-startup-window",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-service-autorun",
    "--no-pings",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-client-side-phishing-detection",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-field-trial-config",
    "--disable-hang-monitor",
    "--disable-ipc-flooding-protection",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--disable-search-engine-choice-screen",
    "--disable-smooth-scrolling",
    "--disable-sync",
    "--disable-features=AcceptCHFrame,AutofillServerCommunication,CertificateTransparencyComponentUpdater,"
    "DialMediaRouteProvider,GlobalMediaControls,HttpsUpgrades,InterestFeedContentSuggestions,MediaRouter,"
    "OptimizationHints,PaintHolding,PreloadTopChromeWebUI,Translate,WebUITabStrip",
    "--disk-cache-size=1",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--log-level=3",
    "--metrics-recording-only",
    "--mute-audio",
    "--password-store=basic",
    "--use-mock-keychain",
    "--window-size=1280,800",
]

# Seconds to end normally, and to end after SIGKILL.
CLOSE_PATIENCE = 3.0

# Chromium expects its two pipes at these descriptors.
_THEIRS = (3, 4)


def find() -> str:
    for name in PROGRAMS:
        path = shutil.which(name)
        if path:
            return path
    raise NoBrowser("there is no Chromium in this sandbox's image", MISSING)


def reserve_descriptors() -> None:
    """Moves our descriptors away from the numbers that Chromium expects."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in _THEIRS:
        if number != nothing:
            os.dup2(nothing, number, inheritable=False)
    if nothing not in _THEIRS:
        os.close(nothing)


class Process:
    """A running Chromium and the pipe to it."""

    def __init__(
        self, profile: str, has_port: bool, interrupts: Interrupts, on_event: Callable[..., None]
    ) -> None:
        program = find()
        ports = ["--remote-debugging-port=0"] if has_port else []
        argv = [program, *FLAGS, *ports, *proxy_flags(os.environ), f"--user-data-dir={profile}"]
        env = {**os.environ, "HOME": profile, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        ours_in, theirs_out = os.pipe2(os.O_CLOEXEC)
        theirs_in, ours_out = os.pipe2(os.O_CLOEXEC)
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]
        os.close(theirs_in)
        os.close(theirs_out)

        def connect() -> None:
            for fd, number in zip(theirs, _THEIRS):
                os.dup2(fd, number)

        try:
            # In its own session, so that it gets no interrupts.
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=env,
                cwd=profile,
                start_new_session=True,
                pass_fds=_THEIRS,
                preexec_fn=connect,
            )
        except OSError as error:
            os.close(ours_in)
            os.close(ours_out)
            raise NoBrowser(f"`{program}` does not start: {error}", MISSING) from error
        finally:
            for fd in theirs:
                os.close(fd)
        assert self._child.stderr is not None
        errors = os.dup(self._child.stderr.fileno())
        self._child.stderr.close()
        self.pipe = Pipe(ours_in, ours_out, errors, interrupts, on_event)

    @property
    def has_ended(self) -> bool:
        return not self.pipe.is_open or self._child.poll() is not None

    def status(self) -> str:
        """How the process ended, if it has."""
        code = self._child.poll()
        if code is None:
            return "it still runs"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}"

    def wait(self, seconds: float) -> bool:
        try:
            self._child.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def end(self) -> None:
        """Ends the process: first normally, then by a signal."""
        pipe = self.pipe
        if pipe.is_open and self._child.poll() is None:
            try:
                pipe.post("Browser.close")
                end = time.monotonic() + CLOSE_PATIENCE
                while self._child.poll() is None and time.monotonic() < end:
                    try:
                        pipe.read_available()
                    except Exception:  # its reply does not matter now
                        break
                    time.sleep(0.01)
                self.wait(max(0.0, end - time.monotonic()))
            except Exception:
                pass
        self.kill()

    def kill(self) -> None:
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self._child.pid, signal.SIGKILL)
        self.wait(CLOSE_PATIENCE)
        if self.pipe.reader >= 0:
            self.pipe.close()


def proxy_flags(env: Mapping[str, str]) -> list[str]:
    """The flags for the session's proxy, if its policy allows any host."""
    proxy = env.get("HTTPS_PROXY") or env.get("HTTP_PROXY")
    if not proxy:
        return ["--no-proxy-server"]
    own = [name.strip() for name in env.get("NO_PROXY", "").split(",") if name.strip()]
    # By default Chromium uses no proxy for loopback addresses. Loopback addresses in a policy mean the server's
    # machine; NO_PROXY lists those of the sandbox.
    bypass = ["<-loopback>", *(f"[{name}]" if ":" in name else name for name in own)]
    return [f"--proxy-server={proxy}", f"--proxy-bypass-list={';'.join(bypass)}"]
