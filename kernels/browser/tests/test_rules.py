"""The parts of the browser's driver that need no browser: names, keys, trees, flags. Pages are used by tests/api."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from belljar_browser import actions, browser, downloads, keys, pipe, snapshot, task
from belljar_browser.errors import BrowserCrashed, Interrupted, Invalid, NavigationFailed, PageTimeout
from belljar_browser.process import proxy_flags


def test_keys() -> None:
    enter, up = keys.events("enter")
    assert (enter["type"], enter["text"], enter["windowsVirtualKeyCode"], up["type"]) == ("keyDown", "\r", 13, "keyUp")
    down = keys.events("Control+Shift+k")[0]
    assert (down["type"], down["modifiers"], down["key"], down["code"]) == ("rawKeyDown", 10, "K", "KeyK")
    assert keys.events("Control+a")[0]["commands"] == ["selectAll"]
    assert keys.events("+")[0]["text"] == "+"
    assert keys.events("Shift++")[0]["key"] == "+"
    assert keys.events("Space")[0]["text"] == " "
    assert keys.events("ü")[0]["text"] == "ü"
    for wrong in ("", "Hyper+x", "Nokey"):
        with pytest.raises(Invalid):
            keys.events(wrong)


def node(number: int, role: str, name: str = "", *children: int, **more: Any) -> dict[str, Any]:
    properties = [{"name": key, "value": {"value": value}} for key, value in more.pop("properties", {}).items()]
    reply = {"nodeId": number, "role": {"value": role}, "name": {"value": name}, "childIds": list(children), **more}
    return {**reply, "properties": properties, "backendDOMNodeId": number}


def test_a_snapshot_says_what_there_is_and_names_what_can_be_used() -> None:
    nodes = [
        node(1, "RootWebArea", "Page", 2, 3, 4),
        node(2, "heading", "Title", 5, parentId=1, properties={"level": 1}),
        node(5, "StaticText", "Title", parentId=2),
        node(3, "generic", "", 6, parentId=1, ignored=True),
        node(6, "button", "Go\n  now", parentId=3, properties={"disabled": True, "focusable": True}),
        node(4, "textbox", "Name", parentId=1, value={"value": "ada"}),
    ]
    said, left = snapshot.render(nodes, 10_000)
    assert said.splitlines() == [
        '- heading "Title" [level=1]',
        '- button "Go now" [disabled] [ref=e6]',
        '- textbox "Name" [ref=e4]: "ada"',
    ]
    assert left == 0
    assert snapshot.render(nodes, 40) == ('- heading "Title" [level=1]', 2)


def test_a_tree_that_leads_to_itself_ends() -> None:
    nodes = [node(1, "list", "a", 2), node(2, "list", "b", 2, parentId=1)]
    assert len(snapshot.render(nodes, 100_000)[0].splitlines()) <= snapshot.MAX_DEPTH + 2


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a.csv", "a.csv"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("a/b\\c\0d", "a_b_c_d"),
        (".bashrc", "bashrc"),
        ("", "download"),
        ("...", "download"),
        ("x" * 500, "x" * 200),
    ],
)
def test_downloads_get_a_name_below_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kept: str
) -> None:
    monkeypatch.setattr(downloads, "DIRECTORY", str(tmp_path))
    for number in range(2):
        (tmp_path / "arriving").write_text("x")
        path = Path(downloads._settle(str(tmp_path / "arriving"), name))
        stem, dot, ending = kept.partition(".")
        assert path == tmp_path / (kept if number == 0 else f"{stem} (1){dot}{ending}")


def test_names_of_downloads_come_from_the_server_or_the_address() -> None:
    named = {"content-disposition": 'attachment; filename="of the server.csv"'}
    assert downloads._name("http://x/y?z", named) == "of the server.csv"
    assert downloads._name("http://x/a%20b.txt?q=1", {}) == "a b.txt"
    assert downloads._name("http://x/", {}) == ""


def test_what_is_on_loopback_is_asked_for_as_the_policy_says() -> None:
    assert proxy_flags({}) == ["--no-proxy-server"]
    env = {"HTTPS_PROXY": "http://127.0.0.1:3128", "NO_PROXY": "localhost,127.0.0.1,::1"}
    flags = ["--proxy-server=http://127.0.0.1:3128", "--proxy-bypass-list=<-loopback>;localhost;127.0.0.1;[::1]"]
    assert proxy_flags(env) == flags


def test_addresses_as_people_write_them() -> None:
    assert actions._address("example.org/x") == "https://example.org/x"
    assert actions._address(" localhost:8000 ") == "http://localhost:8000"
    assert actions._address("http://a") == "http://a"
    assert actions._address("about:blank") == "about:blank"
    assert actions._address("/usr") == "file:///usr"
    for wrong in ("", "a\nb", "javascript:alert(1)"):
        with pytest.raises(Invalid):
            actions._address(wrong)
    with pytest.raises(NavigationFailed, match="ERR_FILE_NOT_FOUND"):
        actions._address("/no/such/file")


def test_screenshots_stay_among_the_artifacts_and_within_bounds() -> None:
    assert actions._screenshot_path("a/b") == "/session/artifacts/a/b.png"
    assert actions._screenshot_path(None).startswith("/session/artifacts/screenshot-")
    for wrong in ("../a", "/a", "a//b", ".", "a\0"):
        with pytest.raises(Invalid):
            actions._screenshot_path(wrong)
    for size in [(0, -1, 1), (20_000, 1, 1), (1, 1, 9), (16_000, 16_000, 1)]:
        with pytest.raises(Invalid):
            actions._screenshot_size(*size)


def test_a_state_that_makes_no_sense_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "STATE", str(tmp_path / "state.json"))
    assert browser._read_state() == {}
    for written in ("[1]", "{", "x" * (2 << 20)):
        (tmp_path / "state.json").write_text(written)
        assert browser._read_state() == {}


class Chromium:
    """The other end of a pipe."""

    def __init__(self) -> None:
        ours_in, self.said = os.pipe()
        self.heard, ours_out = os.pipe()
        errors, self.complained = os.pipe()
        self.events: list[str] = []
        self.interrupts = pipe.Interrupts()
        self.pipe = pipe.Pipe(ours_in, ours_out, errors, self.interrupts, lambda name, *_: self.events.append(name))

    def say(self, *messages: dict[str, Any]) -> None:
        os.write(self.said, b"".join(json.dumps(message).encode() + b"\0" for message in messages))


def test_the_pipe_tells_answers_from_events() -> None:
    chromium = Chromium()
    chromium.say({"method": "A.b", "params": {}}, {"id": 7, "result": {}}, {"id": 1, "result": {"x": 1}})
    os.write(chromium.complained, b"y" * 10_000)
    assert chromium.pipe.call("X.y", deadline=time.monotonic() + 5) == {"x": 1}
    assert chromium.events == ["A.b"]
    assert len(chromium.pipe.complaints()) == pipe.MAX_COMPLAINTS
    with pytest.raises(PageTimeout, match="the moon"):
        chromium.pipe.call("X.y", deadline=time.monotonic() + 0.05, what="the moon")
    os.close(chromium.said)
    with pytest.raises(BrowserCrashed):
        chromium.pipe.call("X.y", deadline=time.monotonic() + 5)


def test_an_interrupt_ends_the_waiting_and_cuts_nothing() -> None:
    chromium = Chromium()
    half = json.dumps({"id": 2, "result": {"whole": True}}).encode() + b"\0"
    os.write(chromium.said, half[:5])
    os.kill(os.getpid(), 2)
    with pytest.raises(Interrupted):
        chromium.pipe.call("X.y", deadline=time.monotonic() + 5)
    chromium.interrupts.forget()
    os.write(chromium.said, half[5:])
    assert chromium.pipe.call("X.y", deadline=time.monotonic() + 5) == {"whole": True}


def test_tasks_say_nothing_to_others() -> None:
    assert task.QUIET["ANONYMIZED_TELEMETRY"] == "false"
    assert task.QUIET["BROWSER_USE_CLOUD_SYNC"] == "false"
