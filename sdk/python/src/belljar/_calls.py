"""Every request to the server, described once for both clients: method, path, body, how to parse the response, and
whether it may be sent twice."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from belljar import models
from belljar._options import ExecOptions, Language, RunOptions, SessionOptions, Size, checked, given
from belljar._target import RESPONSE_TIMEOUT
from belljar.errors import InvalidRequest, ProtocolError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

# Seconds to wait for the response with a result. After that the execution is followed as a stream, on which the
# server sends something at least every 15 seconds.
RESULT_TIMEOUT = 30.0
# The server's default time limit of an execution.
DEFAULT_EXEC_TIMEOUT = 60.0
# How many seconds longer than its code a run may take: to wait for a sandbox, and to store artifacts.
RUN_SLACK = 60.0

# Seconds for a request that is sent while the caller is being cancelled.
CLEANUP_TIMEOUT = 5.0


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    path: str
    parse: Callable[[bytes], T]
    params: Mapping[str, str] | None = None
    body: Mapping[str, Any] | None = None
    #: Whether it may be sent again when it is unknown whether the server got it.
    is_safe: bool = False
    #: Statuses besides 2xx that are not errors.
    expected: tuple[int, ...] = ()
    #: Seconds that the server may take to respond.
    timeout: float = RESPONSE_TIMEOUT

    def content(self) -> bytes | None:
        if self.body is None:
            return None
        return json.dumps(self.body, separators=(",", ":")).encode()


def for_cleanup(call: Call[T]) -> Call[T]:
    """The same call with a short timeout, for callers that are being cancelled."""
    return replace(call, timeout=CLEANUP_TIMEOUT)


def new_exec_id() -> str:
    """The client chooses the id, so that a request that is sent twice is executed once."""
    return f"exec_{secrets.token_hex(8)}"


def _model(kind: type[M]) -> Callable[[bytes], M]:
    def parse(body: bytes) -> M:
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            raise _unexpected(kind.__name__, error) from error

    return parse


def _field(name: str, convert: Callable[[Any], T]) -> Callable[[bytes], T]:
    def parse(body: bytes) -> T:
        try:
            return convert(json.loads(body)[name])
        except (ValueError, KeyError, TypeError) as error:
            raise _unexpected(name, error) from error

    return parse


def _unexpected(what: str, error: Exception) -> ProtocolError:
    return ProtocolError(
        f"the server sent {what} in an unexpected format: {error}",
        hint="check that the server and this package have the same version",
    )


def _nothing(_: bytes) -> None:
    return None


def _params(**fields: Any) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items() if value is not None}


def _at(session: str, *rest: str) -> str:
    return "/".join(["/v1/sessions", *map(_part, (session, *rest))])


def _part(text: str) -> str:
    """A name as one segment of a path. `..` is escaped, as it would address another resource."""
    if not text:
        raise InvalidRequest("an id, or a segment of a name, is empty")
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


_forked = _field("sessions", lambda items: [models.SessionInfo.model_validate(item) for item in items])
_checkpoints = _field("checkpoints", lambda items: [models.Checkpoint.model_validate(item) for item in items])


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list. `next` is the cursor of the following page, None on the last one."""

    items: list[T]
    next: str | None = None


def _page(name: str, kind: type[M], follow: Callable[[dict[str, Any], M], str | None]) -> Callable[[bytes], Page[M]]:
    def parse(body: bytes) -> Page[M]:
        try:
            content = json.loads(body)
            items = [kind.model_validate(item) for item in content[name]]
        except (ValueError, KeyError, TypeError) as error:
            raise _unexpected(name, error) from error
        return Page(items, follow(content, items[-1]) if items else None)

    return parse


_sessions_page = _page("sessions", models.SessionInfo, lambda page, _: page.get("next"))
_execs_page = _page("execs", models.ExecInfo, lambda page, last: str(last.number) if page.get("more") else None)
_log_page = _page("entries", models.LogEntry, lambda page, last: str(last.number) if page.get("more") else None)
_artifacts_page = _page("artifacts", models.Artifact, lambda page, last: last.id if page.get("more") else None)
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
    return Call("POST", "/v1/volumes", _volume, body=given(name=name, size=size))


def volumes() -> Call[list[models.Volume]]:
    return Call("GET", "/v1/volumes", _volumes, is_safe=True)


def volume(name: str) -> Call[models.Volume]:
    return Call("GET", f"/v1/volumes/{_part(name)}", _volume, is_safe=True)


def remove_volume(name: str) -> Call[None]:
    return Call("DELETE", f"/v1/volumes/{_part(name)}", _nothing)


# Runs.


def run(code: str, options: RunOptions) -> Call[models.Result]:
    body = {"code": code, "language": "python", **checked(options, RunOptions)}
    # A run whose connection is lost ends on the server. Without a network and writable volumes it cannot have changed
    # anything outside its sandbox, so it is safe to send it again.
    is_safe = body.get("network") in (None, "none") and "rw" not in (options.get("volumes") or {}).values()
    timeout = (options.get("timeout") or DEFAULT_EXEC_TIMEOUT) + RUN_SLACK
    return Call("POST", "/v1/run", _result, body=body, is_safe=is_safe, timeout=timeout)


# Sessions.


def create(key: str | None, options: SessionOptions) -> Call[models.SessionInfo]:
    body = {**given(key=key), **checked(options, SessionOptions)}
    if "workspace" in body:
        body["workspace"] = os.path.abspath(body["workspace"])
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
    body = given(count=count, force=force, **{"from": exec_id})
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
    options: ExecOptions,
    *,
    code: str | None = None,
    command: str | Sequence[str] | None = None,
    language: Language | None = None,
    cwd: str | None = None,
    background: bool = False,
    stdin: bool = False,
) -> Call[models.Result]:
    body = {
        "exec_id": new_exec_id(),
        **checked(options, ExecOptions),
        **given(
            code=code,
            command=command if command is None or isinstance(command, str) else list(command),
            language=language,
            cwd=cwd,
            background=background or None,
            stdin=stdin or None,
        ),
    }
    return Call("POST", _at(session, "exec"), _result, body=body, is_safe=True, timeout=RESULT_TIMEOUT)


def in_background(call: Call[models.Result]) -> Call[models.ExecInfo | None]:
    """The same call, answered as soon as the server has accepted it."""
    return Call(call.method, call.path, _begun, body=call.body, is_safe=True)


def _begun(body: bytes) -> models.ExecInfo | None:
    """None if the same execution was requested before and has ended: the server then returns only its result."""
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
    # Interrupting everything is not safe to repeat: by then other executions may run.
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
    body = given(dataset=dataset, refresh=refresh or None, wait=None if wait else False)
    return Call("POST", _at(session, "datasets"), _dataset, body=body, is_safe=True, timeout=STAGE_TIMEOUT)


def export(session: str, names: Sequence[str] | None) -> Call[models.Exports]:
    body = given(datasets=None if names is None else list(names))
    return Call("POST", _at(session, "datasets", "export"), _exports, body=body, timeout=STAGE_TIMEOUT)


# A source may be slow: this is longer than the `timeout_s` of any sensible source.
STAGE_TIMEOUT = 3600.0
