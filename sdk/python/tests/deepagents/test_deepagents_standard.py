"""The tests that langchain-tests has for sandboxes.

Some of them expect what older versions of deepagents did. The code that fails them is inherited from deepagents, and
changing it here would make this backend differ from all others. So they are expected to fail, by name and with the
reason; they are reported as `xfailed`, and one that passes is a failure (`strict`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests
from servers import Server

from belljar.deepagents import BelljarSandbox

OVERWRITES = "`write` of deepagents >= 0.7.0 replaces an existing file; the test expects an error"
ABSOLUTE = "`glob` of deepagents >= 0.7.10 returns absolute paths; the test expects relative ones"
NO_DIRECTORIES = "`glob` of deepagents >= 0.7.10 returns files only; the test expects directories too"
# The first version of deepagents that a test fails with, and the reason.
EXPECTED_FAILURES = {
    "test_write_existing_file_fails": ((0, 7, 0), OVERWRITES),
    "test_glob": ((0, 7, 10), ABSOLUTE),
    "test_glob_basic_pattern": ((0, 7, 10), ABSOLUTE),
    "test_glob_with_directories": ((0, 7, 10), NO_DIRECTORIES),
    "test_glob_hidden_files_explicitly": ((0, 7, 10), ABSOLUTE),
    "test_glob_with_character_class": ((0, 7, 10), ABSOLUTE),
    "test_glob_with_question_mark": ((0, 7, 10), ABSOLUTE),
}
TESTS = 86


def reason_to_fail(test: str) -> str | None:
    since, reason = EXPECTED_FAILURES.get(test, ((0,), None))
    installed = tuple(int(part) for part in version("deepagents").split(".")[:3])
    return reason if installed >= since else None


class TestBelljarSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, server: Server) -> Iterator[SandboxBackendProtocol]:
        with BelljarSandbox(url=server.url) as backend:
            yield backend

    @pytest.fixture(autouse=True)
    def _known_failures(self, request: pytest.FixtureRequest) -> None:
        reason = reason_to_fail(request.node.originalname)
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(strict=True, reason=reason))


def test_these_are_all_of_them() -> None:
    found = {name for name in dir(TestBelljarSandbox) if name.startswith("test_")}
    assert found >= set(EXPECTED_FAILURES)
    # Later versions of langchain-tests may have more, which run too. One of the 86 is inherited from the base of all
    # standard tests.
    assert len(found) >= TESTS
