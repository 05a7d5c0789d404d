"""Every call of the server, described once for both clients: what to send, what comes back, and
whether asking twice does any harm."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from belljar import models
from belljar._target import ANSWER_TIMEOUT
from belljar.errors import InvalidRequest, ProtocolError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Language = Literal["python", "bash", "javascript", "typescript", "r"]
Storage = Literal["TMPFS", "BIND"]
Access = Literal["NONE", "LOCAL_RO", "API"]
#: Where code may go: `{"allow": [...], "inject": [...]}`, or one of the words.
Network = Literal["none", "open"] | Mapping[str, Any]
#: By name: `rw`, or `ro` to read only.
AskedVolumes = Mapping[str, Literal["rw", "ro"]]
#: Whether executions leave points to go back to, or how many: `{"max": 20, "max_bytes": "256M"}`.
Checkpoints = bool | Mapping[str, Any]
#: Bytes, or text such as "512M".
Size = int | str

# How long a result is waited for in silence, before it is followed as a stream, which is never
# silent while the server lives.
RESULT_TIMEOUT = 30.0
# What the server allows code unless told.
DEFAULT_EXEC_TIMEOUT = 60.0
# How much longer than its code a run may take: waiting for a sandbox, and keeping artifacts.
RUN_SLACK = 60.0

# How long the server may take to hear that we are leaving.
LEAVING_TIMEOUT = 5.0


class AskedLimits(TypedDict, total=False):
    """What a sandbox may use. Sizes are bytes, or text such as `"512M"`."""

    memory: Size
    cpus: float
    pids: int
    tmpfs: Size


def asked_limits(
    memory: Size | None, cpus: float | None, pids: int | None, tmpfs: Size | None = None
) -> AskedLimits | None:
    """Those that were chosen; None if none was."""
    limits: AskedLimits = {}
    if memory is not None:
        limits["memory"] = memory
    if cpus is not None:
        limits["cpus"] = cpus
    if pids is not None:
        limits["pids"] = pids
    if tmpfs is not None:
        limits["tmpfs"] = tmpfs
    return limits or None


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    path: str
    parse: Callable[[bytes], T]
    params: Mapping[str, str] | None = None
    body: Mapping[str, Any] | None = None
    #: Whether it can be sent again when nobody knows if it arrived.
    is_safe: bool = False
    #: Statuses besides 2xx that are answers, not refusals.
    expected: tuple[int, ...] = ()
    #: How long the server may be silent.
    timeout: float = ANSWER_TIMEOUT

    def content(self) -> bytes | None:
        if self.body is None:
            return None
        return json.dumps(self.body, separators=(",", ":")).encode()


def hurried(call: Call[T]) -> Call[T]:
    """The same, for those who are leaving and have no time to wait."""
    return replace(call, timeout=LEAVING_TIMEOUT)


def new_exec_id() -> str:
    """Chosen by the client: asked for twice with the same id, code is executed once."""
    return f"exec_{secrets.token_hex(8)}"


def _model(kind: type[M]) -> Callable[[bytes], M]:
    def parse(body: bytes) -> M:
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            raise _strange(kind.__name__, error) from error

    return parse


def _field(name: str, understand: Callable[[Any], T]) -> Callable[[bytes], T]:
    def parse(body: bytes) -> T:
        try:
            return understand(json.loads(body)[name])
        except (ValueError, KeyError, TypeError) as error:
            raise _strange(name, error) from error

    return parse


def _strange(what: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"the server told {what} in an unknown way: {error}", hint="is its version the same as ours?")


def _nothing(_: bytes) -> None:
    return None


def _given(**fields: Any) -> dict[str, Any]:
    """Only what was asked for: everything else is the server's to choose."""
    return {name: value for name, value in fields.items() if value is not None}


def _params(**fields: Any) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items() if value is not None}


def _at(session: str, *rest: str) -> str:
    return "/".join(["/v1/sessions", *map(_part, (session, *rest))])


def _part(text: str) -> str:
    """A name as a part of a path, and nothing else: `..` would lead to another call."""
    if not text:
        raise InvalidRequest("an id or a part of a name is empty")
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


_session = _model(models.SessionInfo)
_result = _model(models.Result)
_exec = _model(models.ExecInfo)
_artifact = _model(models.Artifact)
_dataset = _model(models.Dataset)
_exports = _model(models.Exports)
_link = _model(models.Link)
_health = _model(models.Health)
_variables = _model(models.KernelVariables)
_datasets = _model(models.DatasetList)
_volume = _model(models.Volume)


_forked = _field("sessions", lambda told: [models.SessionInfo.model_validate(one) for one in told])
_checkpoints = _field("checkpoints", lambda told: [models.Checkpoint.model_validate(one) for one in told])


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list. `next` is what to ask for the part after it with."""

    items: list[T]
    next: str | None = None


def _page(name: str, kind: type[M], follow: Callable[[dict[str, Any], M], str | None]) -> Callable[[bytes], Page[M]]:
    def parse(body: bytes) -> Page[M]:
        try:
            told = json.loads(body)
            items = [kind.model_validate(item) for item in told[name]]
        except (ValueError, KeyError, TypeError) as error:
            raise _strange(name, error) from error
        return Page(items, follow(told, items[-1]) if items else None)

    return parse


_sessions_page = _page("sessions", models.SessionInfo, lambda told, _: told.get("next"))
_execs_page = _page("execs", models.ExecInfo, lambda told, last: str(last.number) if told.get("more") else None)
_log_page = _page("entries", models.LogEntry, lambda told, last: str(last.number) if told.get("more") else None)
_artifacts_page = _page("artifacts", models.Artifact, lambda told, last: last.id if told.get("more") else None)
_usage = _field("usage", lambda days: [models.Usage.model_validate(day) for day in days])
_volumes = _field("volumes", lambda volumes: [models.Volume.model_validate(volume) for volume in volumes])
_interrupted = _field("interrupted", int)

# The server.


def health() -> Call[models.Health]:
    return Call("GET", "/healthz", _health, is_safe=True, expected=(503,))


def usage(since: str | None) -> Call[list[models.Usage]]:
    return Call("GET", "/v1/usage", _usage, params=_params(since=since), is_safe=True)


# Volumes.


def create_volume(name: str, size: Size | None) -> Call[models.Volume]:
    return Call("POST", "/v1/volumes", _volume, body=_given(name=name, size=size))


def volumes() -> Call[list[models.Volume]]:
    return Call("GET", "/v1/volumes", _volumes, is_safe=True)


def volume(name: str) -> Call[models.Volume]:
    return Call("GET", f"/v1/volumes/{_part(name)}", _volume, is_safe=True)


def remove_volume(name: str) -> Call[None]:
    return Call("DELETE", f"/v1/volumes/{_part(name)}", _nothing)


# Runs.


def run(
    code: str,
    *,
    language: Language,
    timeout: float | None,
    env: Mapping[str, str] | None,
    limits: AskedLimits | None,
    datasets: Access | None,
    image: str | None,
    network: Network | None,
    volumes: AskedVolumes | None,
    max_output: Size | None,
) -> Call[models.Result]:
    body = _given(
        code=code,
        language=language,
        timeout=timeout,
        env=env,
        limits=limits,
        datasets=datasets,
        image=image,
        network=network,
        volumes=volumes,
        max_output=max_output,
    )
    # A sandbox whose caller went away is ended, and without a network and volumes to write to none can
    # do anything outside itself: a run that was lost can be run again.
    patience = (timeout or DEFAULT_EXEC_TIMEOUT) + RUN_SLACK
    is_safe = network in (None, "none") and "rw" not in (volumes or {}).values()
    return Call("POST", "/v1/run", _result, body=body, is_safe=is_safe, timeout=patience)


# Sessions.


def create(
    *,
    key: str | None,
    storage: Storage | None,
    datasets: Access | None,
    limits: AskedLimits | None,
    ttl: int | None,
    idle_timeout: int | None,
    env: Mapping[str, str] | None,
    metadata: Mapping[str, Any] | None,
    image: str | None,
    network: Network | None,
    volumes: AskedVolumes | None,
    checkpoints: Checkpoints | None,
    workspace: str | None = None,
    idle_hibernate_sec: int | None = None,
) -> Call[models.SessionInfo]:
    body = _given(
        key=key,
        storage=storage,
        datasets=datasets,
        limits=limits,
        ttl=ttl,
        idle_timeout=idle_timeout,
        env=env,
        metadata=metadata,
        image=image,
        network=network,
        volumes=volumes,
        workspace=workspace,
        idle_hibernate_sec=idle_hibernate_sec,
        checkpoints=checkpoints,
    )
    return Call("POST", "/v1/sessions", _session, body=body, is_safe=key is not None)


def sessions(*, state: str | None, key: str | None, limit: int, before: str | None) -> Call[Page[models.SessionInfo]]:
    params = _params(state=state, key=key, limit=limit, before=before)
    return Call("GET", "/v1/sessions", _sessions_page, params=params, is_safe=True)


def show(session: str) -> Call[models.SessionInfo]:
    return Call("GET", _at(session), _session, is_safe=True)


def extend(session: str, ttl: int) -> Call[models.SessionInfo]:
    return Call("PATCH", _at(session), _session, body={"ttl": ttl}, is_safe=True)


def stop(session: str) -> Call[models.SessionInfo]:
    return Call("DELETE", _at(session), _session, is_safe=True)


def remove(session: str) -> Call[models.SessionInfo]:
    return Call("DELETE", _at(session), _session, params={"purge": "true"})


def start(session: str) -> Call[models.SessionInfo]:
    return Call("POST", _at(session, "start"), _session)


def hibernate(session: str, force: bool) -> Call[models.SessionInfo]:
    return Call("POST", _at(session, "hibernate"), _session, body={"force": force}, is_safe=True)


def fork(session: str, *, count: int, force: bool, exec_id: str | None) -> Call[list[models.SessionInfo]]:
    body = _given(count=count, force=force, **{"from": exec_id})
    return Call("POST", _at(session, "fork"), _forked, body=body)


def checkpoints(session: str) -> Call[list[models.Checkpoint]]:
    return Call("GET", _at(session, "checkpoints"), _checkpoints, is_safe=True)


def restore(session: str, exec_id: str) -> Call[models.SessionInfo]:
    return Call("POST", _at(session, "restore"), _session, body={"exec_id": exec_id}, is_safe=True)


def state(session: str, language: Language) -> Call[models.KernelVariables]:
    return Call("GET", _at(session, "state"), _variables, params={"language": language}, is_safe=True)


def log(session: str, *, limit: int, after: int | None) -> Call[Page[models.LogEntry]]:
    return Call("GET", _at(session, "log"), _log_page, params=_params(limit=limit, after=after), is_safe=True)


# Executions.


def execute(
    session: str,
    *,
    exec_id: str,
    code: str | None = None,
    command: str | Sequence[str] | None = None,
    language: Language | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    background: bool = False,
    stdin: bool = False,
    max_output: Size | None = None,
) -> Call[models.Result]:
    body = _given(
        exec_id=exec_id,
        code=code,
        command=command if command is None or isinstance(command, str) else list(command),
        language=language,
        timeout=timeout,
        env=env,
        cwd=cwd,
        background=background or None,
        stdin=stdin or None,
        max_output=max_output,
    )
    return Call("POST", _at(session, "exec"), _result, body=body, is_safe=True, timeout=RESULT_TIMEOUT)


def in_background(call: Call[models.Result]) -> Call[models.ExecInfo | None]:
    """The same, answered as soon as it was accepted."""
    return Call(call.method, call.path, _begun, body=call.body, is_safe=True)


def _begun(body: bytes) -> models.ExecInfo | None:
    """None where it was asked for twice and is over by now: the server then tells the result alone."""
    try:
        return _exec(body)
    except ProtocolError:
        _result(body)
        return None


def execs(session: str, *, limit: int, before: str | None) -> Call[Page[models.ExecInfo]]:
    return Call("GET", _at(session, "execs"), _execs_page, params=_params(limit=limit, before=before), is_safe=True)


def get_exec(session: str, exec_id: str) -> Call[models.ExecInfo]:
    return Call("GET", _at(session, "execs", exec_id), _exec, is_safe=True)


def events(session: str, exec_id: str, offset: int) -> Call[None]:
    path = _at(session, "execs", exec_id, "events")
    return Call("GET", path, _nothing, params={"offset": str(offset)}, is_safe=True)


def interrupt(session: str, exec_id: str | None) -> Call[int]:
    # Everything there is may be something else the second time; one execution is not.
    path = _at(session, "interrupt") if exec_id is None else _at(session, "execs", exec_id, "interrupt")
    return Call("POST", path, _interrupted, is_safe=exec_id is not None)


def stdin(session: str, exec_id: str, data: str, close: bool) -> Call[None]:
    return Call("POST", _at(session, "execs", exec_id, "stdin"), _nothing, body={"data": data, "close": close})


# Artifacts.


def artifacts(
    session: str | None, *, exec_id: str | None, limit: int, before: str | None
) -> Call[Page[models.Artifact]]:
    params = _params(session=session, exec=exec_id, limit=limit, before=before)
    return Call("GET", "/v1/artifacts", _artifacts_page, params=params, is_safe=True)


def artifact(artifact_id: str) -> Call[models.Artifact]:
    return Call("GET", f"/v1/artifacts/{_part(artifact_id)}", _artifact, is_safe=True)


def artifact_link(artifact_id: str) -> Call[models.Link]:
    return Call("POST", f"/v1/artifacts/{_part(artifact_id)}/url", _link, body={}, is_safe=True)


def delete_artifact(artifact_id: str) -> Call[None]:
    return Call("DELETE", f"/v1/artifacts/{_part(artifact_id)}", _nothing)


# Datasets.


def datasets(session: str) -> Call[models.DatasetList]:
    return Call("GET", _at(session, "datasets"), _datasets, is_safe=True)


def upload(session: str, name: str, sha256: str | None) -> Call[models.Dataset]:
    path = _at(session, "datasets", *name.split("/"))
    return Call("PUT", path, _dataset, params=_params(sha256=sha256), is_safe=True)


def stage(session: str, dataset: str, *, refresh: bool, wait: bool) -> Call[models.Dataset]:
    body = _given(dataset=dataset, refresh=refresh or None, wait=None if wait else False)
    return Call("POST", _at(session, "datasets"), _dataset, body=body, is_safe=True, timeout=STAGE_TIMEOUT)


def export(session: str, names: Sequence[str] | None) -> Call[models.Exports]:
    body = _given(datasets=None if names is None else list(names))
    return Call("POST", _at(session, "datasets", "export"), _exports, body=body, timeout=STAGE_TIMEOUT)


# Sources may take their time: as long as the longest `timeout_s` that is likely.
STAGE_TIMEOUT = 3600.0
