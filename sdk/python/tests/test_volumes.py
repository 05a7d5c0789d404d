"""Volumes, against a real server."""

from __future__ import annotations

import pytest

from belljar import AsyncClient, Client, Conflict, InvalidRequest, NotFound, Volume


def test_volumes_come_and_go(client: Client) -> None:
    made = client.volumes.create("shelf", size="8M")
    assert isinstance(made, Volume)
    assert (made.name, made.size, made.used_by) == ("shelf", 8 << 20, [])
    with pytest.raises(Conflict) as taken:
        client.volumes.create("shelf")
    assert taken.value.code == "volume_exists"
    for name in ("", "../x", ".hidden"):
        with pytest.raises(InvalidRequest):
            client.volumes.create(name)
    assert "shelf" in [volume.name for volume in client.volumes.list()]
    client.volumes.remove("shelf")
    for ask in (client.volumes.get, client.volumes.remove):
        with pytest.raises(NotFound) as gone:
            ask("shelf")
        assert gone.value.code == "volume_not_found"
    with pytest.raises(NotFound):
        client.session(volumes={"shelf": "ro"})


def test_files_are_shared_and_stay(client: Client) -> None:
    client.volumes.create("shared", size="8M")
    with client.session(volumes={"shared": "rw"}) as writer, client.session(volumes={"shared": "ro"}) as reader:
        assert reader.info.volumes == {"shared": "ro"}
        writer.files.write("/volumes/shared/a.txt", b"kept")
        assert reader.files.read("/volumes/shared/a.txt") == b"kept"
        refused = reader.run_code("open('/volumes/shared/b', 'w')").error
        assert refused is not None
        assert (refused.name, "Read-only file system" in refused.value) == ("OSError", True)
        with pytest.raises(Conflict) as used:
            client.volumes.remove("shared")
        assert used.value.code == "volume_in_use"
        assert writer.id in used.value.message
        assert {user.id: user.mode for user in client.volumes.get("shared").used_by} == {
            writer.id: "rw",
            reader.id: "ro",
        }
    run = client.run("open('/volumes/shared/a.txt').read()", volumes={"shared": "ro"})
    assert run.text == "'kept'"
    found = client.volumes.get("shared")
    assert (found.used_by, found.files, found.partial) == ([], 1, False)
    assert (found.used or 0) > 0
    client.volumes.remove("shared")


async def test_the_same_with_await(aclient: AsyncClient) -> None:
    await aclient.volumes.create("waited", size=8 << 20)
    async with aclient.session(volumes={"waited": "rw"}) as session:
        await session.run_code("open('/volumes/waited/a', 'w').write('x')")
    assert (await aclient.volumes.get("waited")).files == 1
    assert "waited" in [volume.name for volume in await aclient.volumes.list()]
    await aclient.volumes.remove("waited")
