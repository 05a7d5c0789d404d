"""Images by name: what a user's own server has is allowed, and what is missing says how to get it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from servers import Server, binary
from users import User

from belljar import BelljarError, Config, NotFound, SessionManager


def layer(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        reply = tarfile.TarInfo("etc/only-here")
        reply.size = 3
        archive.addfile(reply, io.BytesIO(b"yes"))
    return path


def test_an_imported_image_is_allowed_on_ones_own_server(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = user.home / "store"
    home.mkdir()
    for name in ("python", "browser-use"):
        if (Path(user.env["BELLJAR_HOME"]) / name).exists():
            (home / name).symlink_to(Path(user.env["BELLJAR_HOME"]) / name)
    user.env["BELLJAR_HOME"] = str(home)
    user.becomes_us(monkeypatch)
    imported = [binary(), "image", "import", str(layer(tmp_path / "mine.tar")), "--name", "mine"]
    subprocess.run(imported, check=True, capture_output=True, env={**os.environ, **user.env}, cwd=tmp_path)
    with SessionManager() as first:
        # The server that the others find was started without any of this.
        assert first.start("plain").info.image == "host"
        first.stop("plain")
    with SessionManager(image="mine") as manager:
        assert manager.start("a").info.image == "mine"
        assert manager.client.get_session(manager.start("a").id).files.read("/etc/only-here") == b"yes"
        manager.stop("a")
    for variable in ("SANDBOX_IMAGE", "SANDBOX_IMAGE_NAME"):
        monkeypatch.setenv(variable, "mine:latest")
        with SessionManager.from_config(Config.from_env()) as manager:
            assert manager.start("b").info.image == "mine:latest"
            manager.stop("b")
        monkeypatch.delenv(variable)
    with SessionManager(image="registry.example/missing:1") as manager, pytest.raises(NotFound, match="image pull"):
        manager.start("c")


def test_a_server_of_others_says_how_images_are_allowed(server: Server) -> None:
    with SessionManager(url=server.url, image="mine") as manager, pytest.raises(BelljarError) as refused:
        manager.start("a")
    assert "BELLJAR_IMAGES" in str(refused.value)
    assert "`host`" in str(refused.value)
    # What other sandboxes call their only image is the server's own.
    with SessionManager(url=server.url, image="python-agent-sandbox:latest", memory="96M") as manager:
        assert manager.start("a").info.image == "host"
        manager.stop("a")
