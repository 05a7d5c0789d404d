"""A Python that remembers, for every project directory: `load` and `save` tables, compute, come back.

>>> from belljar.kernellite import start_container, exec_code, shutdown
>>> start_container("/home/me/projects/sales", "sales")
>>> exec_code("/home/me/projects/sales", "df = load('orders'); print(df.shape)")
{'status': '[OK] exec', 'stdout': '(120, 7)\\n', 'stderr': ''}
>>> shutdown("/home/me/projects/sales")

A project's session is found again by the project's path, from any program on this machine. The
directory itself is at `/workspace`, and code starts there: what it writes is in the project, and belongs
to whom the project belongs to.

Where that cannot be, the project's files are copied instead: a server on another machine, or one that does not
allow the directory (`BELLJAR_WORKSPACES`), or a project with files that look secret by their names (`.env`,
keys, credentials), unless `start_container(..., secrets=[".env"])` says that code may have them. Copies are at
`/workspace` too; files below `data` come again when they change here, and what code makes or changes below
`/workspace/data` is written back after every call. A file that both sides changed is the project's; one
that only one side removed stays on the other. Secret files are neither copied nor written back.

`socket_dir` is where this package keeps its notes on copies, `.sandbox` in the project unless
told. The server is the one that `BELLJAR_URL` names, or the local one. `IDLE_HIBERNATE_SEC` is the default of
`idle_hibernate_sec`; `DEBUG=1` logs every call on standard error, and is set for code as well, as
`WORKSPACE_DIR` is. `pandastool` takes what it is not given from `PANDAS_SANDBOX_PROJECT_DIR`,
`PANDAS_SANDBOX_SOCKET_DIR` and `PANDAS_SANDBOX_SLUG`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Collection, Mapping
from typing import Any, TypedDict

from belljar._calls import AskedLimits, Size, asked_limits
from belljar._files import StrPath
from belljar._run import _clients, _kept
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.errors import BelljarError, InvalidRequest, NotFound, Refused
from belljar.kernellite._copies import Copies
from belljar.kernellite._project import Project, is_secret
from belljar.models import Result

__all__ = ["Executed", "Started", "exec_code", "pandastool", "ping", "shutdown", "start_container", "stop_container"]

# Seconds without use after which large values go to disk.
_IDLE = 900
# Where the project is inside. Other places are a container's to choose, and there is none.
_WORKSPACE = "/workspace"

_log = logging.getLogger("belljar.kernellite")

# Such sandboxes are there until somebody stops them: a month after their last use is as good.
_TTL = 30 * 24 * 3600

_STATUS = {
    "ok": "[OK] exec",
    "error": "[ERROR] exec",
    "timeout": "[TIMEOUT] exec",
    "interrupted": "[INTERRUPTED] exec",
    "crashed": "[CRASHED] exec",
    "oom": "[OOM] exec",
}
# The code was not even tried, or nobody knows what became of it.
_NO_SANDBOX = "[ERROR] sandbox"


class Executed(TypedDict):
    """What came of code: `status` is `[OK] exec`, or `[ERROR] exec`, `[TIMEOUT] exec`, `[OOM] exec`, ..."""

    status: str
    stdout: str
    stderr: str


class Started(TypedDict):
    """A project's session, and whether the directory itself is in it.

    If it is not, `why_copied` says why, `copied` how many files were copied, and `left_out` which were not and why.
    """

    session_id: str
    how: str
    mounted: bool
    why_copied: str | None
    copied: int
    left_out: list[str]


def start_container(
    proj: StrPath,
    slug: str,
    idle_hibernate_sec: int | None = None,
    socket_dir: StrPath | None = None,
    *,
    secrets: Collection[str] = (),
    memory: Size | None = None,
    cpus: float | None = None,
    pids: int | None = None,
    env: Mapping[str, str] | None = None,
    image: str | None = None,
    mount: bool | None = None,
) -> Started:
    """Starts a project's session, or finds it, with the project's directory at `/workspace`.

    `slug` is a name to stop it by. After `idle_hibernate_sec` seconds without use (`IDLE_HIBERNATE_SEC`, else
    900; 0 is never) large tables and arrays go to disk, and are back before code runs again. `memory` (such as
    `"4g"`), `cpus` and `pids` are the session's limits, `env` is for its code.

    The project is shown itself, and code can change all of it, unless files in it look secret (`.env`, `*.pem`,
    `*.key`, `id_rsa`, `.netrc`, `credentials.json`, all below `.ssh` or `.aws`, and the like): then its files are
    copied and those are left out, which a warning says. `secrets` are the paths that code may have. `mount=True` shows
    the directory whatever is in it, or raises where the server does not allow it; `mount=False` always copies.

    Of copies, files that are too many or too large are left out, which the answer says, and a warning. Links, version
    control (`.git`), environments (`.venv`, `node_modules`) and caches are never copied.
    """
    limits = asked_limits(memory, cpus, pids)
    project = Project(proj, socket_dir)
    started, notes = _start(_client(), project, slug, idle_hibernate_sec, secrets, limits, env, image, mount)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return started


def ping(proj: StrPath, socket_dir: StrPath | None = None) -> bool:
    """Whether the project has a session that is alive."""
    try:
        return _find(_client(), Project(proj, socket_dir)) is not None
    except BelljarError:
        return False


def exec_code(proj: StrPath, code: str, socket_dir: StrPath | None = None, timeout: float | None = None) -> Executed:
    """Runs code in the project's session, which remembers; it may take `timeout` seconds (60 unless told).

    Code that fails is no exception: its traceback is in `stderr`. The value of a last expression is
    printed, as in a notebook.
    """
    client, project = _client(), Project(proj, socket_dir)
    session = _find(client, project)
    if session is None:
        raise NotFound(
            f"nothing runs for the project `{project.root}`", code="session_not_found", hint="start_container() first"
        )
    return _execute(client, session, project, code, timeout, [])


def shutdown(proj: StrPath, socket_dir: StrPath | None = None) -> bool:
    """Ends the project's session, having written back its data; false if there was none."""
    client, project = _client(), Project(proj, socket_dir)
    session = _find(client, project)
    if session is None:
        return False
    if session.info.workspace is None:
        with Copies(client, session.id, project) as copies:
            for note in copies.bring_back():
                warnings.warn(note, stacklevel=2)
    session.stop()
    _debug("stopped %s of %s", session.id, project.root)
    return True


def stop_container(slug: str) -> bool:
    """Ends every session that was started with this slug, as it is; false if there was none."""
    stopped = False
    for session in _client().sessions(limit=None):
        noted = session.info.metadata.get("kernellite")
        if session.info.is_alive and isinstance(noted, dict) and noted.get("slug") == slug:
            session.stop()
            stopped = True
    return stopped


def pandastool(
    code: str, project_dir: str | None = None, socket_dir: str | None = None, *, db: Any = None, config: Any = None
) -> str:
    """Runs Python code for data analysis in the project's sandbox, and returns JSON: status, stdout, stderr.

    Variables stay from call to call. `load(name)` reads the table `data/{name}.parquet` of the
    project, `save(df, name)` writes it. pandas, numpy, scikit-learn and pyarrow are there; there is
    no network. Print what you want to see.

    `project_dir` and `socket_dir` are those of the environment, if left out: `PANDAS_SANDBOX_PROJECT_DIR` and
    `PANDAS_SANDBOX_SOCKET_DIR`. A session is started if none runs, with the slug `PANDAS_SANDBOX_SLUG`.
    `db` and `config` are there for agents that pass them, and not used. Whatever goes wrong is in the answer:
    nothing is raised.
    """
    try:
        project_dir = project_dir or os.environ.get("PANDAS_SANDBOX_PROJECT_DIR")
        if not project_dir:
            raise InvalidRequest("no project", hint="give project_dir, or set PANDAS_SANDBOX_PROJECT_DIR")
        socket_dir = socket_dir or os.environ.get("PANDAS_SANDBOX_SOCKET_DIR") or None
        client, project = _client(), Project(project_dir, socket_dir)
        session, notes = _find(client, project), list[str]()
        if session is None:
            slug = os.environ.get("PANDAS_SANDBOX_SLUG") or project.root.name
            started, notes = _start(client, project, slug)
            session = client.get_session(started["session_id"])
        done = _execute(client, session, project, code, None, notes)
    except (BelljarError, OSError) as error:
        done = Executed(status=_NO_SANDBOX, stdout="", stderr=str(error))
    return json.dumps(done, ensure_ascii=False)


def _client() -> Client:
    return _kept(_clients, Client)


def _find(client: Client, project: Project) -> Session | None:
    return next((found for found in client.sessions(key=project.key, limit=1) if found.info.is_alive), None)


def _start(
    client: Client,
    project: Project,
    slug: str,
    idle_hibernate_sec: int | None = None,
    secrets: Collection[str] = (),
    limits: AskedLimits | None = None,
    env: Mapping[str, str] | None = None,
    image: str | None = None,
    mount: bool | None = None,
) -> tuple[Started, list[str]]:
    if not slug:
        raise InvalidRequest("a project needs a slug to be stopped by")
    idle = _idle(idle_hibernate_sec)
    noted = {"slug": slug, "project": str(project.root), "idle_hibernate_sec": idle}
    asked: dict[str, Any] = {
        "ttl": _TTL,
        "metadata": {"kernellite": noted},
        "idle_hibernate_sec": idle,
        "limits": limits,
        "env": _environment(env),
        "image": image,
    }
    session, why_copied = _open(client, project, asked, set(map(os.path.normpath, secrets)), mount)
    how = session.info.how or "created"
    _debug("%s %s for %s, %s", how, session.id, project.root, why_copied or "with the directory itself")
    notes = []
    if session.info.workspace is not None:
        if session.info.replaced is not None:
            notes.append(f"the sandbox of before has ended ({session.info.replaced.because}): its variables are gone")
        shown = Started(session_id=session.id, how=how, mounted=True, why_copied=None, copied=0, left_out=[])
        return shown, notes
    with Copies(client, session.id, project) as copies:
        if how != "found" and (copies.had_another or session.info.replaced is not None):
            because = f" ({session.info.replaced.because})" if session.info.replaced is not None else ""
            notes.append(f"the sandbox of before has ended{because}: its variables are gone")
        copies.allow(secrets)
        copied, left_out = copies.bring_in()
    notes += [f"not copied into the sandbox: {what}" for what in left_out]
    started = Started(
        session_id=session.id, how=how, mounted=False, why_copied=why_copied, copied=copied, left_out=left_out
    )
    return started, notes


def _open(
    client: Client, project: Project, asked: dict[str, Any], secrets: set[str], mount: bool | None
) -> tuple[Session, str | None]:
    """The project's session, and why its files are copied into it, if they are."""
    found = _find(client, project)
    if found is not None:
        # It stays what it was made as, also where the environment of this program is another.
        asked = {**asked, "env": None}
        is_mounted = found.info.workspace is not None
        if mount is not None and mount != is_mounted:
            raise InvalidRequest(
                f"the session of `{project.root}` was started {'with' if is_mounted else 'without'} its directory",
                hint="shutdown() it first",
            )
        workspace = found.info.workspace if is_mounted else None
        return client.session(project.key, workspace=workspace, **asked), None if is_mounted else "it was before"
    if mount is False:
        return client.session(project.key, **asked), "it was asked for"
    hidden = [] if mount else [file.path for file in project.files() if is_secret(file.path)]
    if not set(hidden) <= secrets:
        secret = next(path for path in hidden if path not in secrets)
        return client.session(project.key, **asked), f"`{secret}` looks secret"
    try:
        return client.session(project.key, workspace=project.root, **asked), None
    except Refused as error:
        if mount or error.code != "workspace_not_allowed":
            raise
        return client.session(project.key, **asked), error.message


def _idle(given: int | None) -> int:
    if given is not None:
        return given
    value = os.environ.get("IDLE_HIBERNATE_SEC") or str(_IDLE)
    if not value.isdecimal():
        raise InvalidRequest(f"IDLE_HIBERNATE_SEC is `{value}`", hint="it is a number of seconds")
    return int(value)


def _environment(given: Mapping[str, str] | None) -> dict[str, str]:
    """What code finds in its environment, as in the container that this was."""
    asked = (given or {}).get("WORKSPACE_DIR") or os.environ.get("WORKSPACE_DIR") or _WORKSPACE
    if os.path.normpath(asked) != _WORKSPACE:
        raise InvalidRequest(f"WORKSPACE_DIR is `{asked}`", hint=f"the project is always at {_WORKSPACE}")
    return {"DEBUG": "1" if _is_debug() else "0", **(given or {}), "WORKSPACE_DIR": _WORKSPACE}


def _is_debug() -> bool:
    return os.environ.get("DEBUG", "0").strip().lower() not in ("", "0", "false", "no", "off")


def _debug(message: str, *values: object) -> None:
    _log.debug(message, *values)
    if _is_debug() and not _log.isEnabledFor(logging.DEBUG):
        print("belljar.kernellite:", message % values, file=sys.stderr, flush=True)


def _execute(
    client: Client, session: Session, project: Project, code: str, timeout: float | None, notes: list[str]
) -> Executed:
    is_copied, begun = session.info.workspace is None, time.monotonic()
    if is_copied:
        with Copies(client, session.id, project) as copies:
            _, left_out = copies.bring_in("data")
        notes = [*notes, *(f"not copied into the sandbox: {what}" for what in left_out)]
    result = session.run_code(code, timeout=timeout)
    if is_copied:
        with Copies(client, session.id, project) as copies:
            notes += copies.bring_back()
    seconds = time.monotonic() - begun
    _debug("%d characters of code in %s: %s after %.3f s", len(code), session.id, result.status, seconds)
    status = _STATUS.get(result.status, f"[{result.status.upper()}] exec")
    if result.status == "ok" and not result.ok:
        status = _STATUS["error"]
    return Executed(status=status, stdout=_stdout(result), stderr=_stderr(result, notes))


def _stdout(result: Result) -> str:
    shown = [bundle.text for bundle in result.results if bundle.text is not None and not bundle.is_image]
    return "".join([_lines(result.stdout), *map(_lines, shown)])


def _stderr(result: Result, notes: list[str]) -> str:
    said = [_lines(result.stderr)]
    if result.error is not None:
        said.append(_lines(result.error.traceback))
    elif not result.ok and result.status != "timeout":
        said.append(_lines(result._in_a_sentence()))
    if result.status == "timeout":
        said.append("[sandbox] the code took too long and was stopped\n")
    if result.kernel_state == "lost":
        said.append("[sandbox] the variables of before are gone\n")
    if result.dropped:
        said.append(f"[sandbox] {result.dropped.stdout_bytes + result.dropped.stderr_bytes} bytes were not kept\n")
    return "".join([*said, *(f"[sandbox] {note}\n" for note in notes)])


def _lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
