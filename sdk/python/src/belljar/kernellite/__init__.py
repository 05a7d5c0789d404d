"""A Python session for each project directory, with `load` and `save` for tables.

>>> from belljar.kernellite import start_container, exec_code, shutdown
>>> start_container("/home/me/projects/sales", "sales")
>>> exec_code("/home/me/projects/sales", "df = load('orders'); print(df.shape)")
{'status': '[OK] exec', 'stdout': '(120, 7)\\n', 'stderr': ''}
>>> shutdown("/home/me/projects/sales")

The project's path identifies its session, for every program on this machine. The directory is mounted at `/workspace`,
where code starts: files that code writes are in the project, and belong to the project's owner.

The project's files are copied instead if the server is on another machine, does not allow the directory
(`BELLJAR_WORKSPACES`), or if the project has files that look secret by their names (`.env`, keys, credentials). Use
`start_container(..., secrets=[".env"])` to let code have such files. Copies are at `/workspace` too. Files in `data`
are copied again when they change here, and files that code creates or changes in `/workspace/data` are written back
after every call. If both sides have changed a file, the project's version wins. A file that one side removes is kept
on the other side. Secret files are neither copied nor written back.

`socket_dir` is the directory for this package's records of copies; `.sandbox` in the project by default. The server is
the one at `BELLJAR_URL`, or the local one. `IDLE_HIBERNATE_SEC` is the default of `idle_hibernate_sec`. `DEBUG=1` logs
every call on standard error; code in the session gets `DEBUG` and `WORKSPACE_DIR` too. The defaults of `pandastool` are
`PANDAS_SANDBOX_PROJECT_DIR`, `PANDAS_SANDBOX_SOCKET_DIR` and `PANDAS_SANDBOX_SLUG`.
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

from belljar._files import StrPath
from belljar._options import LimitOptions, SessionOptions, Size, limit_options
from belljar._run import default_client
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.errors import BelljarError, InvalidRequest, NotFound, Refused
from belljar.kernellite._copies import Copies
from belljar.kernellite._project import Project, is_secret
from belljar.models import Result

__all__ = ["Executed", "Started", "exec_code", "pandastool", "ping", "shutdown", "start_container", "stop_container"]

# Seconds without use after which large values are moved to disk.
_IDLE = 900
# The path of the project inside; it cannot be changed.
_WORKSPACE = "/workspace"

_log = logging.getLogger("belljar.kernellite")

# These sessions live until they are stopped, or for a month after their last use.
_TTL = 30 * 24 * 3600

_STATUS = {
    "ok": "[OK] exec",
    "error": "[ERROR] exec",
    "timeout": "[TIMEOUT] exec",
    "interrupted": "[INTERRUPTED] exec",
    "crashed": "[CRASHED] exec",
    "oom": "[OOM] exec",
}
# The code was not run, or its result is unknown.
_NO_SANDBOX = "[ERROR] sandbox"


class Executed(TypedDict):
    """The result of code: `status` is `[OK] exec`, or `[ERROR] exec`, `[TIMEOUT] exec`, `[OOM] exec`, ..."""

    status: str
    stdout: str
    stderr: str


class Started(TypedDict):
    """A project's session, and whether the project's directory is mounted in it.

    If it is not, `why_copied` is the reason, `copied` the number of files that were copied, and `left_out` lists the
    files that were not, with reasons.
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

    `slug` is a name for `stop_container`. After `idle_hibernate_sec` seconds without use (`IDLE_HIBERNATE_SEC`, else
    900; 0 means never) large tables and arrays are moved to disk, and loaded again before code runs. `memory`
    (such as `"4g"`), `cpus` and `pids` are the session's limits; `env` are variables for its code.

    The project's directory is mounted, and code can change everything in it, unless it has files that look secret
    (`.env`, `*.pem`, `*.key`, `id_rsa`, `.netrc`, `credentials.json`, everything in `.ssh` or `.aws`, and the like).
    Then its files are copied without the secret ones, and a warning names these. `secrets` are paths that code may
    have. `mount=True` always mounts the directory, and raises an error if the server does not allow it; `mount=False`
    always copies.

    Files that are too large, or too many, are not copied: `left_out` of the returned value and a warning name them.
    Links, version control (`.git`), environments (`.venv`, `node_modules`) and caches are never copied.
    """
    limits = limit_options(memory, cpus, pids)
    project = Project(proj, socket_dir)
    started, notes = _start(default_client(), project, slug, idle_hibernate_sec, secrets, limits, env, image, mount)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return started


def ping(proj: StrPath, socket_dir: StrPath | None = None) -> bool:
    """Whether the project has a session that is alive."""
    try:
        return _find(default_client(), Project(proj, socket_dir)) is not None
    except BelljarError:
        return False


def exec_code(proj: StrPath, code: str, socket_dir: StrPath | None = None, timeout: float | None = None) -> Executed:
    """Runs code in the project's session, which keeps variables. It may take `timeout` seconds (60 by default).

    Code that fails raises no exception: its traceback is in `stderr`. The value of the last expression is in `stdout`,
    as in a notebook.
    """
    client, project = default_client(), Project(proj, socket_dir)
    session = _find(client, project)
    if session is None:
        raise NotFound(
            f"the project `{project.root}` has no session",
            code="session_not_found",
            hint="call start_container() first",
        )
    return _execute(client, session, project, code, timeout, [])


def shutdown(proj: StrPath, socket_dir: StrPath | None = None) -> bool:
    """Writes back the data of the project's session and ends it; false if there was none."""
    client, project = default_client(), Project(proj, socket_dir)
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
    """Ends all sessions that were started with this slug, without writing back data; false if there was none."""
    stopped = False
    for session in default_client().sessions(limit=None):
        noted = session.info.metadata.get("kernellite")
        if session.info.is_alive and isinstance(noted, dict) and noted.get("slug") == slug:
            session.stop()
            stopped = True
    return stopped


def pandastool(
    code: str, project_dir: str | None = None, socket_dir: str | None = None, *, db: Any = None, config: Any = None
) -> str:
    """Runs Python code for data analysis in the project's sandbox, and returns JSON: status, stdout, stderr.

    Variables are kept from call to call. `load(name)` reads the table `data/{name}.parquet` of the project, `save(df,
    name)` writes it. pandas, numpy, scikit-learn and pyarrow are installed. There is no network. Print what you want to
    see.

    `project_dir` and `socket_dir` default to `PANDAS_SANDBOX_PROJECT_DIR` and `PANDAS_SANDBOX_SOCKET_DIR` of the
    environment. If there is no session, one is started with the slug `PANDAS_SANDBOX_SLUG`. `db` and `config` are
    accepted for agents that pass them, and ignored. Errors are in the returned text; none is raised.
    """
    try:
        project_dir = project_dir or os.environ.get("PANDAS_SANDBOX_PROJECT_DIR")
        if not project_dir:
            raise InvalidRequest("no project", hint="give project_dir, or set PANDAS_SANDBOX_PROJECT_DIR")
        socket_dir = socket_dir or os.environ.get("PANDAS_SANDBOX_SOCKET_DIR") or None
        client, project = default_client(), Project(project_dir, socket_dir)
        session, notes = _find(client, project), list[str]()
        if session is None:
            slug = os.environ.get("PANDAS_SANDBOX_SLUG") or project.root.name
            started, notes = _start(client, project, slug)
            session = client.get_session(started["session_id"])
        done = _execute(client, session, project, code, None, notes)
    except (BelljarError, OSError) as error:
        done = Executed(status=_NO_SANDBOX, stdout="", stderr=str(error))
    return json.dumps(done, ensure_ascii=False)


def _find(client: Client, project: Project) -> Session | None:
    return next((found for found in client.sessions(key=project.key, limit=1) if found.info.is_alive), None)


def _start(
    client: Client,
    project: Project,
    slug: str,
    idle_hibernate_sec: int | None = None,
    secrets: Collection[str] = (),
    limits: LimitOptions | None = None,
    env: Mapping[str, str] | None = None,
    image: str | None = None,
    mount: bool | None = None,
) -> tuple[Started, list[str]]:
    if not slug:
        raise InvalidRequest("`slug` is empty; it is the name for stop_container()")
    idle = _idle(idle_hibernate_sec)
    noted = {"slug": slug, "project": str(project.root), "idle_hibernate_sec": idle}
    asked: SessionOptions = {
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
            notes.append(f"the previous sandbox has ended ({session.info.replaced.because}): its variables are lost")
        shown = Started(session_id=session.id, how=how, mounted=True, why_copied=None, copied=0, left_out=[])
        return shown, notes
    with Copies(client, session.id, project) as copies:
        if how != "found" and (copies.had_another or session.info.replaced is not None):
            because = f" ({session.info.replaced.because})" if session.info.replaced is not None else ""
            notes.append(f"the previous sandbox has ended{because}: its variables are lost")
        copies.allow(secrets)
        copied, left_out = copies.bring_in()
    notes += [f"not copied into the sandbox: {what}" for what in left_out]
    started = Started(
        session_id=session.id, how=how, mounted=False, why_copied=why_copied, copied=copied, left_out=left_out
    )
    return started, notes


def _open(
    client: Client, project: Project, asked: SessionOptions, secrets: set[str], mount: bool | None
) -> tuple[Session, str | None]:
    """The project's session, and why its files are copied, if they are."""
    found = _find(client, project)
    if found is not None:
        # A live session keeps its variables, even if the environment of this program has changed.
        asked = {**asked, "env": None}
        is_mounted = found.info.workspace is not None
        if mount is not None and mount != is_mounted:
            raise InvalidRequest(
                f"the directory of the session of `{project.root}` is {'mounted' if is_mounted else 'copied'}",
                hint="call shutdown() first",
            )
        asked["workspace"] = found.info.workspace
        return client.session(project.key, **asked), None if is_mounted else "the session was started that way"
    if mount is False:
        return client.session(project.key, **asked), "the caller chose it"
    hidden = [] if mount else [file.path for file in project.files() if is_secret(file.path)]
    if not set(hidden) <= secrets:
        secret = next(path for path in hidden if path not in secrets)
        return client.session(project.key, **asked), f"`{secret}` looks secret"
    mounted: SessionOptions = {**asked, "workspace": project.root}
    try:
        return client.session(project.key, **mounted), None
    except Refused as error:
        if mount or error.code != "workspace_not_allowed":
            raise
        return client.session(project.key, **asked), error.message


def _idle(given: int | None) -> int:
    if given is not None:
        return given
    value = os.environ.get("IDLE_HIBERNATE_SEC") or str(_IDLE)
    if not value.isdecimal():
        raise InvalidRequest(f"IDLE_HIBERNATE_SEC is `{value}`", hint="expected a number of seconds")
    return int(value)


def _environment(given: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of code, as in the containers of KernelLite."""
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
    parts = [_lines(result.stderr)]
    if result.error is not None:
        parts.append(_lines(result.error.traceback))
    elif not result.ok and result.status != "timeout":
        parts.append(_lines(result._in_a_sentence()))
    if result.status == "timeout":
        parts.append("[sandbox] the code took too long and was stopped\n")
    if result.kernel_state == "lost":
        parts.append("[sandbox] all variables are lost\n")
    if result.dropped:
        dropped = result.dropped.stdout_bytes + result.dropped.stderr_bytes
        parts.append(f"[sandbox] {dropped} bytes of output were not kept\n")
    return "".join([*parts, *(f"[sandbox] {note}\n" for note in notes)])


def _lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
