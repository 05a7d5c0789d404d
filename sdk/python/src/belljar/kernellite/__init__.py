"""A Python that remembers, for every project directory: `load` and `save` tables, compute, come back.

>>> from belljar.kernellite import start_container, exec_code, shutdown
>>> start_container("/home/me/projects/sales", "sales")
>>> exec_code("/home/me/projects/sales", "df = load('orders'); print(df.shape)")
{'status': '[OK] exec', 'stdout': '(120, 7)\\n', 'stderr': ''}
>>> shutdown("/home/me/projects/sales")

A project's session is found again by the project's path, from any program on this machine. The
directory itself is not in the sandbox: its files are copied to `/workspace` at the start, and those
below `data` again when they change here. Files that look secret by their names are neither copied nor
written back: `.env`, keys, credentials; `start_container(..., secrets=[".env"])` names exceptions.
What code makes or changes below `/workspace/data` is written back to the project's `data` after every
call. A file that both sides changed is the project's; one that only one side removed stays on the
other.

`socket_dir` is where this package keeps its notes on a project, `.sandbox` in the project unless
told. The server is the one that `BELLJAR_URL` names, or the local one.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection
from typing import Any, TypedDict

from belljar._files import StrPath
from belljar._run import _clients, _kept
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.errors import BelljarError, InvalidRequest, NotFound
from belljar.kernellite._copies import Copies
from belljar.kernellite._project import Project
from belljar.models import Result

__all__ = ["Executed", "Started", "exec_code", "pandastool", "ping", "shutdown", "start_container", "stop_container"]

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
    """A project's session, how many files were copied into it, and which were not and why."""

    session_id: str
    how: str
    copied: int
    left_out: list[str]


def start_container(
    proj: StrPath,
    slug: str,
    idle_hibernate_sec: int = 900,
    socket_dir: StrPath | None = None,
    *,
    secrets: Collection[str] = (),
) -> Started:
    """Starts a project's session, or finds it, and copies the project's files into it.

    `slug` is a name to stop it by. Files that are too many or too large are left out, which the
    answer says, and a warning, and so are those that look secret (`.env`, `*.pem`, `*.key`, `id_rsa`,
    `.netrc`, `credentials.json`, all below `.ssh` or `.aws`, and the like), but for the paths in
    `secrets`: code in the sandbox can read whatever is copied. Links, version control (`.git`), environments (`.venv`,
    `node_modules`) and caches are never copied. `idle_hibernate_sec` is noted on the session, for servers that
    free the memory of those that are idle.
    """
    started, notes = _start(_client(), Project(proj, socket_dir), slug, idle_hibernate_sec, secrets)
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
    with Copies(client, session.id, project) as copies:
        for note in copies.bring_back():
            warnings.warn(note, stacklevel=2)
    session.stop()
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
    code: str, project_dir: str, socket_dir: str | None = None, *, db: Any = None, config: Any = None
) -> str:
    """Runs Python code for data analysis in the project's sandbox, and returns JSON: status, stdout, stderr.

    Variables stay from call to call. `load(name)` reads the table `data/{name}.parquet` of the
    project, `save(df, name)` writes it. pandas, numpy, scikit-learn and pyarrow are there; there is
    no network. Print what you want to see.

    A session is started if none runs. `db` and `config` are there for agents that pass them, and
    not used. Whatever goes wrong is in the answer: nothing is raised.
    """
    try:
        client, project = _client(), Project(project_dir, socket_dir)
        session, notes = _find(client, project), list[str]()
        if session is None:
            started, notes = _start(client, project, project.root.name, 900, ())
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
    client: Client, project: Project, slug: str, idle_hibernate_sec: int, secrets: Collection[str]
) -> tuple[Started, list[str]]:
    if not slug:
        raise InvalidRequest("a project needs a slug to be stopped by")
    noted = {"slug": slug, "project": str(project.root), "idle_hibernate_sec": idle_hibernate_sec}
    session = client.session(project.key, ttl=_TTL, metadata={"kernellite": noted})
    how = session.info.how or "created"
    notes = []
    with Copies(client, session.id, project) as copies:
        if how != "found" and (copies.had_another or session.info.replaced is not None):
            because = f" ({session.info.replaced.because})" if session.info.replaced is not None else ""
            notes.append(f"the sandbox of before has ended{because}: its variables are gone")
        copies.allow(secrets)
        copied, left_out = copies.bring_in()
    notes += [f"not copied into the sandbox: {what}" for what in left_out]
    return Started(session_id=session.id, how=how, copied=copied, left_out=left_out), notes


def _execute(
    client: Client, session: Session, project: Project, code: str, timeout: float | None, notes: list[str]
) -> Executed:
    with Copies(client, session.id, project) as copies:
        _, left_out = copies.bring_in("data")
    notes = [*notes, *(f"not copied into the sandbox: {what}" for what in left_out)]
    result = session.run_code(code, timeout=timeout)
    with Copies(client, session.id, project) as copies:
        notes += copies.bring_back()
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
