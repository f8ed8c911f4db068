"""A start imports what it uses: what the environment of a test has imported already is not seen, so it is a process."""

import subprocess
import sys

import pytest

DEAR = frozenset(
    [
        *("crc32c", "javaproperties", "importlib.metadata", "urllib.request", "email", "prometheus_client"),
        *("joserfc", "cryptography", "http.client", "kjbod.security.oauthbearer"),
    ]
)
"""Packages that take long to import, and which no start needs."""


@pytest.mark.parametrize("module", ["kjbod_agent.daemon", "kjbod_controller_stub.server", "kjbod.cli.status"])
@pytest.mark.usefixtures("world")
def test_a_start_imports_nothing_that_is_dear_and_not_used(module: str) -> None:
    told = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert DEAR & set(done.stdout.split()) == set()
