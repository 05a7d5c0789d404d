"""Errors of the client and the server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from servers import CuttingProxy, Server

from belljar import (
    BelljarError,
    Client,
    Conflict,
    InvalidRequest,
    NotFound,
    ProtocolError,
    Refused,
    ServerUnavailable,
    Session,
    SessionEnded,
    TooMany,
    Unauthorized,
)


def test_a_missing_server_is_reported_soon(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"nothing listens at unix:.*BELLJAR_URL"):
        Client(f"unix:{tmp_path}/none").health()
    with pytest.raises(ServerUnavailable, match=r"nothing listens at http://127\.0\.0\.1:9"):
        Client("http://127.0.0.1:9").run("1")
    assert time.monotonic() - began < 8


def test_unknown_things(client: Client, session: Session) -> None:
    with pytest.raises(NotFound, match="there is no session `nope`") as caught:
        client.get_session("nope")
    assert (caught.value.code, caught.value.status) == ("session_not_found", 404)
    assert isinstance(caught.value, Refused)
    assert isinstance(caught.value, BelljarError)
    with pytest.raises(NotFound) as caught:
        session.join("nope").result()
    assert caught.value.code == "exec_not_found"
    # A hostile id is a name, not a path.
    for hostile in ("../../healthz", "..", ".", "%2e%2e", "a?b", "a#b"):
        with pytest.raises(NotFound, match="no session"):
            client.get_session(hostile)
    with pytest.raises(InvalidRequest):
        client.get_session("")


def test_what_has_ended(client: Client) -> None:
    session = client.session()
    session.stop()
    for use in (session.run_code, session.run_command, lambda code: session.stream(code).result()):
        with pytest.raises(SessionEnded, match="has ended: it was stopped") as caught:
            use("1")
        assert caught.value.hint is not None
        assert "create a new one" in caught.value.hint
    with pytest.raises(SessionEnded):
        session.extend(60)


def test_what_makes_no_sense(client: Client, session: Session) -> None:
    with pytest.raises(InvalidRequest, match="timeout: expected more than 0 seconds"):
        session.run_code("1", timeout=-1)
    with pytest.raises(InvalidRequest, match=r"limits\.memory: at least"):
        client.session(limits={"memory": 1})
    with pytest.raises(InvalidRequest, match="language"):
        client.run("1", language="cobol")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="exec_id"):
        session.run_code("1", exec_id="a b")


def test_conflicts(client: Client, session: Session) -> None:
    session.run_code("1", exec_id="one")
    with pytest.raises(Conflict, match="choose another") as caught:
        session.run_code("2", exec_id="one")
    assert caught.value.code == "exec_differs"
    with client.session("conflict", limits={"memory": "128M"}, stop_on_exit=True):
        with pytest.raises(Conflict) as caught:
            client.session("conflict", limits={"memory": "256M"})
        assert caught.value.code == "session_differs"


def test_keys(keyed: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = keyed
    with pytest.raises(Unauthorized, match=r"needs an API key.*belljar key create"):
        Client(server.url).usage()
    with pytest.raises(Unauthorized, match="not known here") as caught:
        Client(server.url, api_key="bj_wrong").session()
    assert "bj_wrong" not in str(caught.value)
    assert Client(server.url).health().ok


def test_no_room(keyed: tuple[Server, str]) -> None:
    server, key = keyed
    with Client(server.url, api_key=key, patience=1) as client, client.session():
        with pytest.raises(TooMany) as caught:
            client.session()
        assert caught.value.code == "no_room"
        assert caught.value.retry_after == 5
        assert caught.value.hint is not None
        with pytest.raises(TooMany):
            client.run("1", on_output=lambda event: None)


def test_not_a_belljar(server: Server, short_path: Path) -> None:
    import http.server
    import threading

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: object) -> None:
            pass

    stranger = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    try:
        with pytest.raises(ProtocolError, match="in an unexpected format"):
            Client(f"http://127.0.0.1:{stranger.server_port}").health()
    finally:
        stranger.shutdown()
        stranger.server_close()


def test_what_is_not_safe_is_not_repeated(server: Server, short_path: Path) -> None:
    line = CuttingProxy(server, short_path / "bad")
    try:
        with Client(line.url) as client, client.session() as session:
            client.close()
            line.cuts = [0]
            with pytest.raises(ServerUnavailable, match="was lost"):
                session.interrupt()
            client.close()
            line.cuts = [0, 0]
            assert session.refresh().is_alive, "asking is safe"
    finally:
        line.close()
