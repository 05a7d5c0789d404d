"""Rules without any waiting: what is retried, and how events and results are decoded."""

from __future__ import annotations

import base64
import time

import httpx
import pytest

from belljar._retry import Attempts, NotSent, failure_of, refusal_of
from belljar._sse import Decoder, ServerEvent
from belljar._target import socket_of
from belljar.errors import (
    BelljarError,
    ExecutionError,
    NotFound,
    ProtocolError,
    ServerUnavailable,
    SessionEnded,
    Timeout,
    TooMany,
)
from belljar.models import Result

STREAM = (
    b':\n\nevent: exec\ndata: {"exec_id":"e"}\n\n:\n\n'
    b'event: stdout\nid: 4\ndata: {"text":"a\\n\\nb \xc3\xbc"}\n\nid: 9\n\n'
)


def test_events_are_found_however_they_are_cut() -> None:
    expected = [
        ServerEvent("exec", None, b'{"exec_id":"e"}'),
        ServerEvent("stdout", 4, b'{"text":"a\\n\\nb \xc3\xbc"}'),
    ]
    for size in range(1, len(STREAM) + 1):
        decoder = Decoder()
        found = []
        for begin in range(0, len(STREAM), size):
            found += decoder.feed(STREAM[begin : begin + size])
        assert found == expected, f"in pieces of {size}"


LOST, NOBODY = ServerUnavailable("lost"), NotSent("nobody")
FULL, STOPPING = TooMany("full", status=429, retry_after=0.1), ServerUnavailable("stopping", status=503)


@pytest.mark.parametrize(
    ("error", "is_safe", "again"),
    [
        (LOST, True, True),
        (LOST, False, False),
        (Timeout("slow"), True, True),
        (Timeout("slow"), False, False),
        (NOBODY, False, True),
        (FULL, False, True),
        (STOPPING, False, True),
        (NotFound("no", status=404), True, False),
        (ProtocolError("no"), True, False),
    ],
)
def test_what_is_tried_again(error: BelljarError, is_safe: bool, again: bool) -> None:
    attempts = Attempts(60, is_safe=is_safe, has_responded=True)
    if again:
        assert attempts.pause(error) > 0
    else:
        with pytest.raises(type(error)):
            attempts.pause(error)


def test_the_server_says_when_to_come_back_and_patience_ends() -> None:
    assert 5.0 <= Attempts(60, is_safe=True, has_responded=True).pause(TooMany("full", retry_after=5.0)) <= 5.5
    with pytest.raises(TooMany):
        Attempts(4, is_safe=True, has_responded=True).pause(TooMany("full", retry_after=5.0))
    with pytest.raises(ServerUnavailable):
        Attempts(0, is_safe=True, has_responded=True).pause(LOST)


def test_a_server_that_was_never_there_gets_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger, friend = (Attempts(60, is_safe=True, has_responded=responded) for responded in (False, True))
    assert stranger.pause(NOBODY) > 0
    assert friend.pause(NOBODY) > 0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    assert friend.pause(NOBODY) > 0
    with pytest.raises(NotSent):
        stranger.pause(NOBODY)


def test_patience_begins_with_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(10, is_safe=True, has_responded=True)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 300)
    assert attempts.pause(LOST) > 0
    monkeypatch.setattr(time, "monotonic", lambda: now + 311)
    with pytest.raises(ServerUnavailable):
        attempts.pause(LOST)


def test_pauses_grow() -> None:
    attempts = Attempts(600, is_safe=True, has_responded=True)
    pauses = [attempts.pause(LOST) for _ in range(10)]
    assert pauses[0] < 0.1
    assert pauses[4] > 0.5
    assert max(pauses) <= 2.5


def answer(status: int, body: bytes, **headers: str) -> BelljarError:
    request = httpx.Request("GET", "http://h/p?token=secret")
    return refusal_of(httpx.Response(status, headers=headers, request=request), body)


def test_errors_of_responses() -> None:
    reply = answer(429, b'{"error":{"code":"no_room","message":"full","hint":"wait"}}', **{"retry-after": "5"})
    assert isinstance(reply, TooMany)
    assert (reply.code, reply.message, reply.hint) == ("no_room", "full", "wait")
    assert (reply.status, reply.retry_after) == (429, 5.0)
    ended = answer(409, b'{"error":{"code":"session_ending","message":"m"}}')
    assert isinstance(ended, SessionEnded)
    assert ended.hint is None
    assert isinstance(answer(502, b"<html>bad gateway"), ServerUnavailable)
    stranger = answer(404, b"<html>")
    assert isinstance(stranger, ProtocolError)
    assert "secret" not in str(stranger)


def test_certificates_are_not_waited_for() -> None:
    error = failure_of(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "https://h")
    with pytest.raises(ServerUnavailable, match="SSL_CERT_FILE"):
        Attempts(60, is_safe=True, has_responded=True).pause(error)


@pytest.mark.parametrize(
    ("url", "path"),
    [("unix:/a/b", "/a/b"), ("unix:///a/b", "/a/b"), ("http+unix://%2Fa%2Fb", "/a/b"), ("http://h", None)],
)
def test_sockets_by_every_name(url: str, path: str | None) -> None:
    assert socket_of(url) == path


PNG = base64.b64encode(b"\x89PNG").decode()


def result(**fields: object) -> Result:
    return Result.model_validate({"exec_id": "e", "status": "ok", "exit_code": 0, **fields})


def test_the_text_of_a_result() -> None:
    value = {"data": {"text/plain": "42"}}
    figure = {"data": {"text/plain": "<Figure>", "image/png": PNG}}
    assert result(stdout="hi\n").text == "hi\n"
    assert result(stdout="hi\n", results=[value]).text == "42"
    assert result(stdout="hi\n", results=[value, figure]).text == "42"
    assert result(stdout="hi\n", results=[figure]).text == "hi\n"
    assert result(results=[figure]).text == "<Figure>"
    assert result(results=[figure]).images == [b"\x89PNG"]


def test_results_are_shown_in_notebooks() -> None:
    assert result(stdout="1\n")._repr_mimebundle_() == {"text/plain": "1"}
    figure = {"data": {"text/plain": "<Figure>", "image/png": PNG}}
    assert result(results=[figure])._repr_mimebundle_() == {"text/plain": "<Figure>", "image/png": PNG}
    table = {"data": {"text/plain": "a", "text/html": '<table onload="alert(1)">'}}
    shown = result(stdout="<b>\n", results=[table, figure])._repr_mimebundle_()
    # A sandbox has no say in the page around it.
    assert 'sandbox=""' in shown["text/html"]
    assert 'onload="' not in shown["text/html"]
    assert "&lt;b&gt;" in shown["text/html"]
    assert PNG in shown["text/html"]
    failed = result(status="error", exit_code=1, error={"name": "E", "value": "v", "traceback": "T\nE: v"})
    assert failed._repr_mimebundle_()["text/plain"] == "T\nE: v"


def test_failures_are_exceptions_when_asked() -> None:
    assert result().raise_for_error().ok
    with pytest.raises(ExecutionError, match="the code ended with exit code 3") as caught:
        result(exit_code=3).raise_for_error()
    assert caught.value.result.exit_code == 3
    with pytest.raises(ExecutionError, match="the code took too long"):
        result(status="timeout", exit_code=124).raise_for_error()


def test_newer_servers_may_say_more() -> None:
    assert result(colour="blue", status="frozen").status == "frozen"
