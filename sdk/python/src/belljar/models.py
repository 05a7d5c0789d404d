"""Typed models of the server's responses.

Every model keeps fields that it does not know (`extra="allow"`), so that a newer server can send more.
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


class ServerModel(BaseModel):
    """The base of all models."""

    # Validators are built when they are first used: building all takes longer than an execution.
    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=(), defer_build=True)


class Bundle(ServerModel):
    """One value in all its formats, by MIME type. Binary formats are base64."""

    data: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    #: `display` for a value that the code displayed, `result` for the value of the last expression.
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
        """The bytes of a binary format such as `image/jpeg`."""
        encoded = self.data.get(mime)
        return base64.b64decode(encoded) if isinstance(encoded, str) else None

    def _as_text(self, mime: str) -> str | None:
        value = self.data.get(mime)
        return value if isinstance(value, str) else None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from belljar._notebook import show_bundles

        return show_bundles("", [self], None)


class Dropped(ServerModel):
    """How much output was dropped because it exceeded the limits."""

    stdout_bytes: int = 0
    stderr_bytes: int = 0
    results: int = 0

    def __bool__(self) -> bool:
        return bool(self.stdout_bytes or self.stderr_bytes or self.results)


class ErrorInfo(ServerModel):
    """The exception that ended the code."""

    name: str
    value: str
    traceback: str


class Refusal(ServerModel):
    """A file that was not stored as an artifact, and the reason."""

    path: str
    reason: str


class Artifact(ServerModel):
    """A file that code saved for its user.

    `host_path` is its path on the server's machine. `url` is a link that expires (only a path, if the server has no
    address). `client.artifacts` downloads the file.
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


class Result(ServerModel):
    """The result of an execution.

    >>> result = belljar.run("print('hi'); 6 * 7")
    >>> result.text, result.stdout, result.ok
    ('42', 'hi\\n', True)

    `status` is `ok`, `error`, `timeout`, `interrupted`, `crashed` or `oom`; `reason` has details. `kernel_state` is
    `lost` if the variables are lost. `artifact_map` maps paths in the sandbox to paths on the server's machine. In a
    session with checkpoints, `checkpoint` says whether there is one after this execution, and `no_checkpoint` why not.
    For `run`, `warnings` names the limits that the server's machine does not enforce; for a session these are in
    `info.warnings`.
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
        """Whether the code ran to its end, with exit code 0."""
        return self.status == "ok" and self.exit_code == 0

    @property
    def text(self) -> str:
        """The value of the last expression as text; without such a value, stdout.

        The text of an image, such as `<Figure size 640x480>`, is returned only if there is nothing else.
        """
        for bundle in reversed(self.results):
            if bundle.text is not None and not bundle.is_image:
                return bundle.text
        if self.stdout or not self.results:
            return self.stdout
        return self.results[-1].text or ""

    @property
    def value(self) -> Bundle | None:
        """The value of the last expression in all its formats; None if there was none."""
        return next((bundle for bundle in reversed(self.results) if bundle.kind == "result"), None)

    @property
    def images(self) -> list[bytes]:
        """The PNG images that the code displayed, in order."""
        return [png for bundle in self.results if (png := bundle.png) is not None]

    def raise_for_error(self) -> Result:
        """Returns the result itself if it is `ok`; raises `ExecutionError` otherwise."""
        if not self.ok:
            raise ExecutionError(self._in_a_sentence(), self)
        return self

    def _in_a_sentence(self) -> str:
        if self.error is not None:
            return f"{self.error.name}: {self.error.value}"
        words = {
            "ok": f"the code ended with exit code {self.exit_code}",
            "error": f"the command ended with exit code {self.exit_code}",
            "timeout": "the code took too long",
            "interrupted": "the code was interrupted",
            "crashed": "the process died",
            "oom": "the code ran out of memory",
        }
        sentence = words.get(self.status, self.status)
        return f"{sentence}: {self.reason}" if self.reason else sentence

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from belljar._notebook import show_result

        return show_result(self)


class ExecInfo(ServerModel):
    """An execution: `queued`, `running` or `finished`. A finished one has a `result`."""

    exec_id: str
    number: int
    language: str
    background: bool
    state: str
    accepted: datetime
    ended: datetime | None = None
    position: int | None = None
    result: Result | None = None


class LogEntry(ServerModel):
    """An execution in the session's log, with its code and its result."""

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


class Limits(ServerModel):
    """Resource limits of a sandbox: bytes of `memory` and `tmpfs`, `cpus`, and processes (`pids`)."""

    memory: int
    cpus: float
    pids: int
    tmpfs: int


class Replaced(ServerModel):
    """The ended session that had this key before. Its contents are lost."""

    id: str
    because: str


class SessionInfo(ServerModel):
    """The state of a session."""

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
    #: Volumes by name: `rw` or `ro`.
    volumes: dict[str, str] = Field(default_factory=dict)
    #: The directory of the server's machine that is mounted at `/workspace`.
    workspace: str | None = None
    idle_hibernate_sec: int | None = None
    enforced: dict[str, bool] | None = None
    warnings: list[str] = Field(default_factory=list)
    #: What `hibernate(force=True)` or `fork(force=True)` could not keep.
    lost: list[str] = Field(default_factory=list)
    how: str | None = None
    replaced: Replaced | None = None

    @property
    def is_alive(self) -> bool:
        return self.state not in ("stopping", "stopped", "failed")


class Checkpoint(ServerModel):
    """The state of a session after an execution, for `restore` and `fork`. `bytes` is what it adds to earlier ones."""

    exec_id: str
    created: datetime
    bytes: int = 0


class Variable(ServerModel):
    """A variable of a kernel."""

    name: str
    type: str | None = None
    size: int | None = None
    shape: list[int] | None = None
    dtype: str | None = None
    preview: str | None = None
    on_disk: bool = False


class Import(ServerModel):
    """A module that a kernel has imported under a name."""

    name: str
    module: str
    version: str | None = None


class KernelVariables(ServerModel):
    """The variables and imports of a kernel."""

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


class Dataset(ServerModel):
    """A dataset of a session: `PENDING`, `LOADED`, or `FAILED` with a `reason`."""

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


class DatasetList(ServerModel):
    """The datasets of a session; `more` is how many are not listed."""

    access: str
    datasets: list[Dataset] = Field(default_factory=list)
    more: int = 0
    message: str | None = None


class Export(Artifact):
    """A dataset that was exported from a session, as an artifact."""

    dataset: str


class Exports(ServerModel):
    """Which datasets were exported, and which were not."""

    exports: list[Export] = Field(default_factory=list)
    refused: list[Refusal] = Field(default_factory=list)


class Link(ServerModel):
    """A link to an artifact, which works without an API key until it expires."""

    url: str
    expires: datetime


class VolumeUser(ServerModel):
    """A session or run that uses a volume."""

    id: str
    mode: str


class Volume(ServerModel):
    """Files that outlive sessions, mounted at `/volumes/NAME`.

    `enforced` says whether the limit of `size` bytes is enforced. Only `client.volumes.get` returns `used` (bytes) and
    `files`; if `partial`, they are lower bounds.
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


class Usage(ServerModel):
    """What a tenant used on one day."""

    tenant: str
    day: str
    sessions: int = 0
    runs: int = 0
    execs: dict[str, int] = Field(default_factory=dict)
    cpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class Health(ServerModel):
    """Whether the server works, and which limits it enforces. Without a required API key there is only `status`."""

    status: str
    version: str = ""
    backend: str = ""
    zygote: str = ""
    #: Sessions of all tenants. This and the fields below are sent to operators only.
    sessions: int | None = None
    enforced: dict[str, bool] | None = None
    #: The server's process, its memory in bytes, and its directories.
    pid: int | None = None
    started: datetime | None = None
    memory_used: int | None = None
    directories: dict[str, str] | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"
