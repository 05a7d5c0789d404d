"""What the server tells, typed.

Every model keeps what it does not know (`extra="allow"`), so that a newer server can say more.
"""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from belljar.errors import ExecutionError

__all__ = [
    "Artifact",
    "Bundle",
    "Checkpoint",
    "Dataset",
    "DatasetList",
    "Dropped",
    "ErrorInfo",
    "ExecInfo",
    "Export",
    "Exports",
    "Health",
    "Import",
    "KernelVariables",
    "Limits",
    "Link",
    "LogEntry",
    "Refusal",
    "Replaced",
    "Result",
    "SessionInfo",
    "Usage",
    "Variable",
    "Volume",
    "VolumeUser",
]


class _Told(BaseModel):
    # Built when first used: nobody uses all of them, and building takes longer than an execution.
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=(), defer_build=True)


class Bundle(_Told):
    """One value in every form it can be shown in, by MIME type; binary forms are base64."""

    data: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    #: `display` for what was shown on the way, `result` for the value of the last expression.
    kind: str | None = None

    @property
    def text(self) -> str | None:
        return self._as_text("text/plain")

    @property
    def html(self) -> str | None:
        return self._as_text("text/html")

    @property
    def png(self) -> bytes | None:
        return self.binary("image/png")

    @property
    def is_image(self) -> bool:
        return any(mime.startswith("image/") for mime in self.data)

    def binary(self, mime: str) -> bytes | None:
        """The bytes of a form that is not text, such as `image/jpeg`."""
        encoded = self.data.get(mime)
        return base64.b64decode(encoded) if isinstance(encoded, str) else None

    def _as_text(self, mime: str) -> str | None:
        value = self.data.get(mime)
        return value if isinstance(value, str) else None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from belljar._notebook import show_bundles

        return show_bundles("", [self], None)


class Dropped(_Told):
    """Output that was produced but not kept, because there was too much."""

    stdout_bytes: int = 0
    stderr_bytes: int = 0
    results: int = 0

    def __bool__(self) -> bool:
        return bool(self.stdout_bytes or self.stderr_bytes or self.results)


class ErrorInfo(_Told):
    """The exception that ended the code."""

    name: str
    value: str
    traceback: str


class Refusal(_Told):
    """A file that was not taken, and why."""

    path: str
    reason: str


class Artifact(_Told):
    """A file that code left behind.

    `host_path` is where it lies on the server's machine, `url` a link that is good for a while
    (only a path, where the server has no address). `client.artifacts` downloads it.
    """

    name: str
    path: str
    size: int
    id: str | None = None
    host_path: str | None = None
    mime: str | None = None
    sha256: str | None = None
    url: str | None = None
    created: datetime | None = None
    session_id: str | None = None
    exec_id: str | None = None


class Result(_Told):
    """What came of an execution.

    >>> result = belljar.run("print('hi'); 6 * 7")
    >>> result.text, result.stdout, result.ok
    ('42', 'hi\\n', True)

    `status` is `ok`, `error`, `timeout`, `interrupted`, `crashed` or `oom`. `kernel_state` is
    `lost` where variables are gone; `reason` says why, where the status does not. `artifact_map`
    leads from paths in the sandbox to paths on the server's machine. `checkpoint` tells whether the
    session can go back to the end of it, where that was asked for, and `no_checkpoint` why it cannot. `warnings`, of
    `run`, names the limits that the server's machine does not enforce; a session has them in `info.warnings`.
    """

    exec_id: str
    status: str
    exit_code: int
    reason: str | None = None
    stdout: str = ""
    stderr: str = ""
    dropped: Dropped = Field(default_factory=Dropped)
    results: list[Bundle] = Field(default_factory=list)
    error: ErrorInfo | None = None
    execution_count: int = 0
    duration_ms: float = 0.0
    memory_bytes: int | None = None
    kernel_state: str = "kept"
    checkpoint: bool | None = None
    no_checkpoint: str | None = None
    warnings: list[str] = Field(default_factory=list)
    artifacts: list[Artifact] = Field(default_factory=list)
    artifact_map: dict[str, str] = Field(default_factory=dict)
    artifacts_refused: list[Refusal] = Field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and left with exit code 0."""
        return self.status == "ok" and self.exit_code == 0

    @property
    def text(self) -> str:
        """The value of the last expression as text; what was printed, if there was none.

        Pictures count only if there is nothing else: nobody wants to read `<Figure size 640x480>`.
        """
        for bundle in reversed(self.results):
            if bundle.text is not None and not bundle.is_image:
                return bundle.text
        if self.stdout or not self.results:
            return self.stdout
        return self.results[-1].text or ""

    @property
    def value(self) -> Bundle | None:
        """The value of the last expression, in every form it has; None if there was none."""
        return next((bundle for bundle in reversed(self.results) if bundle.kind == "result"), None)

    @property
    def images(self) -> list[bytes]:
        """The PNG pictures that were shown, in order."""
        return [png for bundle in self.results if (png := bundle.png) is not None]

    def raise_for_error(self) -> Result:
        """Returns itself if `ok`, and raises `ExecutionError` otherwise."""
        if not self.ok:
            raise ExecutionError(self._in_a_sentence(), self)
        return self

    def _in_a_sentence(self) -> str:
        if self.error is not None:
            return f"{self.error.name}: {self.error.value}"
        words = {
            "ok": f"the code left with exit code {self.exit_code}",
            "error": f"the command ended with exit code {self.exit_code}",
            "timeout": "the code took too long",
            "interrupted": "the code was interrupted",
            "crashed": "the process died",
            "oom": "the code ran out of memory",
        }
        said = words.get(self.status, self.status)
        return f"{said}: {self.reason}" if self.reason else said

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from belljar._notebook import show_result

        return show_result(self)


class ExecInfo(_Told):
    """An execution: `queued`, `running` or `finished`, then with a `result`."""

    exec_id: str
    number: int
    language: str
    background: bool
    state: str
    accepted: datetime
    ended: datetime | None = None
    position: int | None = None
    result: Result | None = None


class LogEntry(_Told):
    """Something that was executed, with its code and what came of it."""

    exec_id: str
    number: int
    time: datetime
    language: str
    code: str
    status: str
    exit_code: int
    command: list[str] | None = None
    reason: str | None = None
    stdout: str = ""
    stderr: str = ""
    results: list[Bundle] = Field(default_factory=list)
    error: ErrorInfo | None = None
    duration_ms: float = 0.0
    memory_bytes: int | None = None
    kernel_state: str = "kept"
    artifacts: list[Artifact] = Field(default_factory=list)


class Limits(_Told):
    """What a sandbox may use: bytes of `memory` and `tmpfs`, `cpus`, and processes."""

    memory: int
    cpus: float
    pids: int
    tmpfs: int


class Replaced(_Told):
    """The session that had this key before and is gone, with everything in it."""

    id: str
    because: str


class SessionInfo(_Told):
    """A session as the server knows it."""

    id: str
    state: str
    image: str
    storage: str
    datasets: str
    limits: Limits
    network: str | dict[str, Any]
    ttl: int
    created: datetime
    last_used: datetime
    expires: datetime
    key: str | None = None
    idle_timeout: int | None = None
    checkpoints: dict[str, int] | None = None
    at: str | None = None
    ended: datetime | None = None
    ended_because: str | None = None
    running: int = 0
    queued: int = 0
    execs: int = 0
    memory_used: int | None = None
    directory: str | None = None
    kept_until: datetime | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    #: By name: `rw` or `ro`.
    volumes: dict[str, str] = Field(default_factory=dict)
    #: The directory of the server's machine that is at `/workspace`.
    workspace: str | None = None
    idle_hibernate_sec: int | None = None
    enforced: dict[str, bool] | None = None
    warnings: list[str] = Field(default_factory=list)
    #: What could not be kept, as `hibernate(force=True)` and `fork(force=True)` tell.
    lost: list[str] = Field(default_factory=list)
    how: str | None = None
    replaced: Replaced | None = None

    @property
    def is_alive(self) -> bool:
        return self.state not in ("stopping", "stopped", "failed")


class Checkpoint(_Told):
    """What a session can go back to: what it was after an execution. `bytes` is what it added to those before."""

    exec_id: str
    created: datetime
    bytes: int = 0


class Variable(_Told):
    """A variable of a kernel."""

    name: str
    type: str | None = None
    size: int | None = None
    shape: list[int] | None = None
    dtype: str | None = None
    preview: str | None = None
    on_disk: bool = False


class Import(_Told):
    """A module that a kernel has under a name."""

    name: str
    module: str
    version: str | None = None


class KernelVariables(_Told):
    """What a kernel remembers."""

    variables: list[Variable] = Field(default_factory=list)
    imports: list[Import] = Field(default_factory=list)
    cwd: str | None = None
    truncated: int = 0

    def __getitem__(self, name: str) -> Variable:
        for variable in self.variables:
            if variable.name == name:
                return variable
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(variable.name == name for variable in self.variables)


class Dataset(_Told):
    """A dataset of a session: `PENDING`, `LOADED` or `FAILED` (then with a `reason`)."""

    name: str
    path: str
    status: str
    reason: str | None = None
    source: str | None = None
    size: int | None = None
    modified: datetime | None = None
    sha256: str | None = None
    format: str | None = None
    rows: int | None = None
    columns: list[Any] | None = None
    cached: bool | None = None


class DatasetList(_Told):
    """The datasets of a session; `more` counts those that are not listed."""

    access: str
    datasets: list[Dataset] = Field(default_factory=list)
    more: int = 0
    message: str | None = None


class Export(Artifact):
    """A dataset that was brought out of a session: the artifact that it became."""

    dataset: str


class Exports(_Told):
    """What was exported, and what was not."""

    exports: list[Export] = Field(default_factory=list)
    refused: list[Refusal] = Field(default_factory=list)


class Link(_Told):
    """A link to an artifact, for whoever has it, until it expires."""

    url: str
    expires: datetime


class VolumeUser(_Told):
    """A session, or a run, that has a volume."""

    id: str
    mode: str


class Volume(_Told):
    """Files that outlive sessions, at `/volumes/NAME` of those that have it.

    `enforced` says whether more than `size` bytes are refused. `used` (bytes) and `files` are told by
    `client.volumes.get`; they are more than that where `partial`.
    """

    name: str
    size: int
    storage: str
    enforced: bool
    created: datetime
    used_by: list[VolumeUser] = Field(default_factory=list)
    used: int | None = None
    files: int | None = None
    partial: bool = False


class Usage(_Told):
    """What a tenant has used on one day."""

    tenant: str
    day: str
    sessions: int = 0
    runs: int = 0
    execs: dict[str, int] = Field(default_factory=dict)
    cpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class Health(_Told):
    """Whether the server is well, and what it enforces. Where keys are needed, only `status` is told without one."""

    status: str
    version: str = ""
    backend: str = ""
    zygote: str = ""
    #: Of all tenants, told to operators.
    sessions: int | None = None
    enforced: dict[str, bool] | None = None
    #: This and what follows is told as `sessions` is: its process, its memory in bytes, and where it keeps things.
    pid: int | None = None
    started: datetime | None = None
    memory_used: int | None = None
    directories: dict[str, str] | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"
