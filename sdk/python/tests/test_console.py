"""The commands that come with the package, as one types them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_model import FakeModel
from servers import PATIENCE, REPOSITORY
from users import User

from belljar import Client, _settings, local
from belljar.console import _project

SANDBOX = [sys.executable, "-m", "belljar.console.langgraph_sandbox"]
SETUP = [sys.executable, "-m", "belljar.console.sandbox_setup"]


def talk(user: User, *lines: str, **env: str) -> str:
    done = user.run(*SANDBOX, stdin="".join(f"{line}\n" for line in lines), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_conversation_without_a_model(user: User) -> None:
    said = talk(
        user, "x = 41", "x + 1", "/state", "demo", "/artifacts", "/datasets", "/help", "/nonsense", "hello you",
        "/reset", "x", DATASET_ACCESS="NONE",
    )  # fmt: skip
    assert "(TMPFS_NONE)" in said
    assert "scripted: none of OPENAI_API_KEY" in said
    assert "[result]\n    | 42" in said
    assert "x: int = 41" in said
    # Three calls, with variables kept, and a picture.
    assert "1229 primes" in said
    assert "[(6, 299), (2, 205), (4, 202)]" in said
    path = re.search(r"^  gaps\.png \(\d+ bytes, image/png\): (/\S+)", said, re.MULTILINE)
    assert path is not None
    assert Path(path[1]).read_bytes().startswith(b"\x89PNG")
    assert "DATASET_ACCESS is NONE" in said
    assert "There is no `/nonsense`" in said
    assert "I only follow a script" in said
    # What fails in the sandbox is an answer.
    assert "NameError: name 'x' is not defined" in said.partition("This is a new sandbox")[2]


def test_settings_come_from_a_file(user: User) -> None:
    (user.project / "houses").mkdir()
    (user.project / "houses" / "a.csv").write_text("x\n1\n")
    (user.project / ".env").write_text("SESSION_STORAGE=BIND\nDATASET_ACCESS=LOCAL_RO\nDATASETS_HOST_RO=./houses\n")
    said = talk(user, "open('/session/kept.txt', 'w').write('kept')", "/datasets")
    assert "(BIND_LOCAL)" in said
    assert "/data/a.csv (4 bytes)" in said
    directory = said.rpartition("Its files are in ")[2].strip()
    assert Path(directory).parent == user.project / "sessions"
    assert [path.read_text() for path in Path(directory).rglob("kept.txt")] == ["kept"]


def test_a_real_model_is_used_where_a_key_is_set(user: User) -> None:
    script = [["code_sandbox", {"code": "6 * 7"}], "It is 42."]
    with FakeModel(script) as model:
        # As a user keeps it: in the file, and not in the environment.
        (user.project / "my.env").write_text(f"OPENAI_API_KEY=sk-x\nOPENAI_BASE_URL={model.url}\nDATASET_ACCESS=NONE\n")
        done = user.run(*SANDBOX, "--env", "my.env", stdin="What is 6 times 7?\n")
    assert done.returncode == 0, done.stderr
    assert "model    openai:gpt-5-mini" in done.stdout
    assert "Agent: It is 42." in done.stdout
    assert "sk-x" not in done.stdout
    assert [message["role"] for message in model.asked[-1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert "42" in str(model.asked[-1]["messages"][-1]["content"])


def test_a_model_that_fails_ends_nothing(user: User) -> None:
    with FakeModel([], status=401) as model:
        said = talk(user, "hello", "/state", OPENAI_API_KEY="sk-wrong", OPENAI_BASE_URL=model.url)
    assert "AuthenticationError: Error code: 401" in said
    assert "No variables." in said


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"DATASET_ACCESS": "LOCAL_RO"}, "set DATASETS_HOST_RO"),
        ({"BELLJAR_URL": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ({"BELLJAR_BINARY": "/nonsense"}, "BELLJAR_BINARY"),
        ({"AGENT_MODEL": "nobody:knows"}, "nobody"),
    ],
)
def test_what_cannot_begin_is_said_in_a_sentence(user: User, setting: dict[str, str], expected: str) -> None:
    done = user.run(*SANDBOX, env=setting)
    assert done.returncode == 1
    assert done.stderr.startswith("langgraph-sandbox: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 3


def test_a_file_of_settings_that_is_none(user: User) -> None:
    (user.project / ".env").write_bytes(b"\xff\xfe")
    for arguments in ([], ["--env", "none.env"]):
        done = user.run(*SANDBOX, *arguments)
        assert done.returncode == 1
        assert done.stderr.startswith("langgraph-sandbox: "), done.stderr
        assert "Traceback" not in done.stderr


class Terminal:
    """A program at a terminal, and its output."""

    def __init__(self, user: User, *command: str) -> None:
        self._user = user
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, cwd=user.project, env={**user.env, "TERM": "dumb", "DATASET_ACCESS": "NONE"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            # If the tests run in the background, Ctrl-C is ignored, and the program would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(slave)
        self.said = ""

    def until(self, text: str) -> str:
        """What it says until it has said this."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"`{text}` was not said, but this:\n{self.said}"
            try:
                self.said += os.read(self._master, 65536).decode(errors="replace")
            except OSError as error:
                raise AssertionError(f"it ended without `{text}`:\n{self.said}") from error
        before, _, self.said = self.said.partition(text)
        return before

    def interrupt_until(self, text: str) -> None:
        """Sends Ctrl-C until the program prints this."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            assert time.monotonic() < deadline, f"`{text}` was not said, but this:\n{self.said}"
            os.killpg(self.process.pid, signal.SIGINT)
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if ready:
                self.said += os.read(self._master, 65536).decode(errors="replace")
        self.until(text)

    def wait_for_running_code(self) -> None:
        """Waits until a session of the user's local server executes code."""
        deadline = time.monotonic() + PATIENCE
        [socket] = self._user.servers()
        with Client(f"unix:{socket}") as client:
            while not any(session.info.running for session in client.sessions()):
                assert time.monotonic() < deadline, "no code runs"
                time.sleep(0.02)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(user: User) -> Iterator[Terminal]:
    made = Terminal(user, *SANDBOX)
    yield made
    made.close()


def test_at_a_terminal(terminal: Terminal) -> None:
    terminal.until("Ctrl-D ends.")
    terminal.until("You: ")
    terminal.type("6 * 7\n")
    assert "42" in terminal.until("Agent: Done")
    terminal.until("You: ")
    # Ctrl-C while nothing runs does not end the program; Ctrl-D does. Python's readline misses a signal that arrives
    # between its prompt and its read, so the signal is sent until there is an answer.
    terminal.interrupt_until("(Ctrl-D ends)")
    terminal.until("You: ")
    terminal.type("\x04")
    assert terminal.process.wait(PATIENCE) == 0


def test_ctrl_c_interrupts_the_sandbox_and_not_the_conversation(terminal: Terminal) -> None:
    terminal.until("You: ")
    terminal.type("x = 1; print('begun', flush=True); import time; time.sleep(300)\n")
    terminal.until("Agent calls code_sandbox")
    terminal.wait_for_running_code()
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.until("(interrupting the sandbox")
    assert "KeyboardInterrupt" in terminal.until("Agent: Done")
    terminal.until("You: ")
    terminal.type("/exit\n")
    assert terminal.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("word", ["exit", "quit()"])
def test_people_leave_as_they_leave_python(terminal: Terminal, word: str) -> None:
    terminal.until("You: ")
    terminal.type(f"{word}\n")
    assert terminal.process.wait(PATIENCE) == 0


def test_setup_says_what_there_is(user: User) -> None:
    done = user.run(*SETUP, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "The Python environment is complete" in done.stdout
    assert "pandas" in done.stdout
    assert "langgraph-sandbox" in done.stdout
    assert (user.project / ".env").read_text().startswith("#")
    # Nothing has changed, so whatever server runs is left alone.
    assert "was stopped" not in done.stdout

    # The project is laid out as langgraph-sandbox has it, and the user's own changes stay.
    laid_out = {str(path.relative_to(user.project)) for path in user.project.rglob("*") if path.is_file()}
    assert laid_out == {".env", *_project.FILES}
    assert "docker build -t sandbox:latest -f Dockerfile ." in done.stdout
    assert "cp docker.env .env" in done.stdout
    (user.project / "example.env").write_text((user.project / "example.env").read_text() + "BELLJAR_PIDS=64\n")
    (user.project / "Dockerfile").unlink()
    (user.project / "compose.yaml").unlink()
    again = user.run(*SETUP, timeout=300)
    assert "Wrote Dockerfile, compose.yaml." in again.stdout
    assert "Left as they were: example.env," in again.stdout
    (user.project / "compose.yaml").unlink()
    assert user.run(*SETUP, "--no-files", timeout=300).returncode == 0
    assert not (user.project / "compose.yaml").exists()

    # The example runs, with the settings beside it.
    shutil.copy(user.project / "example.env", user.project / ".env")
    reply = user.python("example.py").splitlines()
    assert reply[:2] == ["hello from a sandbox", "42"]
    path = Path(reply[2].removeprefix("/session/artifacts/x.txt is at "))
    assert path.is_relative_to(user.project / "sessions")
    assert path.read_text() == "42"
    assert (user.project / "blobstore").is_dir()
    assert (user.project / "artifacts.db").exists()
    [socket] = user.servers()
    assert b"BELLJAR_PIDS=64" in Path(f"/proc/{local._pid_of(socket)}/environ").read_bytes().split(b"\0")


def test_what_a_project_gets_is_whole() -> None:
    templates = REPOSITORY / "sdk" / "python" / "src" / "belljar" / "project"
    assert {str(path.relative_to(templates)) for path in templates.rglob("*") if path.is_file()} == set(_project.FILES)
    for name in ("example.env", "docker.env"):
        values = _settings.parse((templates / name).read_text())
        _settings._refuse_unknown(values, name)
        assert {"SESSION_STORAGE", "DATASET_ACCESS", "SESSIONS_ROOT", "BLOBSTORE_DIR", "ARTIFACTS_DB"} <= set(values)
    # The image is that of images/Dockerfile, but for rdkit, which few need: the same system, packages and user.
    ours, theirs = ((REPOSITORY / "images" / "Dockerfile").read_text(), (templates / "Dockerfile").read_text())
    packages = set((templates / "sandbox" / "requirements.txt").read_text().splitlines()[1:])
    assert packages == set(re.findall(r"ipython matplotlib .*scipy", ours)[0].split()) - {"rdkit"}
    for line in ("bash ca-certificates .* zip", "belljar.preload=.*", "echo 'belljar:x.*", "ENV PATH=.*", "USER .*"):
        assert re.findall(line, ours), line
        assert set(re.findall(line, ours)) == set(re.findall(line, theirs)), line
    # All that it copies is there.
    for source in re.findall(r"^COPY (\S+)", theirs, re.MULTILINE):
        assert (templates / source).exists()


def test_setup_of_a_new_home(user: User) -> None:
    # Without any packages it is quick, and all else is the same.
    bare = {"BELLJAR_HOME": str(user.home / "new"), "BELLJAR_PACKAGES": "pip"}
    user.python("-c", "import belljar; print(belljar.run('1').text)", env={"BELLJAR_HOME": bare["BELLJAR_HOME"]})
    assert len(user.servers()) == 1
    done = user.run(*SETUP, timeout=300, env=bare)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Sandboxes have Python 3\.\d+\.\d+ with pip\.", done.stdout)
    assert "The local server was stopped" in done.stdout
    assert json.loads(
        (user.home / "new" / "python" / "belljar.json").read_text()
    )
    reply = user.run(*SETUP, "--nonsense")
    assert reply.returncode == 2
    assert "--nonsense" in reply.stderr
    assert "Traceback" not in reply.stderr
