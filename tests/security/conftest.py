"""A KDC for logins by Kerberos."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.rig.kdc import SERVER, Kdc, require_kdc
from tests.world import skip_unless


class Realm:
    """A running KDC with a server and two clients.

    Attributes:
        kdc: it.
        server: keytab of the server, and of the server's name as a client.
        alice: keytab of a client.
        bob: of another one.
    """

    def __init__(self, kdc: Kdc) -> None:
        self.kdc = kdc
        self.server = kdc.keytab("server", SERVER)
        self.alice = kdc.keytab("alice", "alice")
        self.bob = kdc.keytab("bob", "bob/admin")


@pytest.fixture
def make_realm(world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Realm]]:
    """Makes a realm, with the arguments of :class:`Kdc`, for this process and those that it starts."""
    skip_unless(require_kdc)
    made: list[Kdc] = []

    def make(**options: str) -> Realm:
        kdc = Kdc(tmp_path / "kdc", **options)
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        made.append(kdc.__enter__())
        return Realm(kdc)

    yield make
    for kdc in made:
        kdc.stop()


@pytest.fixture
def realm(make_realm: Callable[..., Realm]) -> Realm:
    """A realm."""
    return make_realm()
