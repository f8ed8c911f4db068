"""sd_notify(3)."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.runtime import systemd


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The service manager's end."""
    name = f"{tmp_path}/notify" if request.param == "path" else f"@kjbod-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        listener.settimeout(30)
        yield listener


def test_the_service_manager_hears_how_we_are(manager: socket.socket) -> None:
    assert systemd.notify_ready("registered\nwith 3 directories")
    assert systemd.notify_status("fenced")
    assert systemd.notify_watchdog()
    assert systemd.notify_stopping("SIGTERM")
    assert [manager.recv(1000) for _ in range(4)] == [
        b"READY=1\nSTATUS=registered with 3 directories",
        b"STATUS=fenced",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=SIGTERM",
    ]


def test_a_long_status_is_cut_and_readiness_is_heard_all_the_same(manager: socket.socket) -> None:
    assert systemd.notify_ready("\u00e4" * 10_000)
    heard = manager.recv(100_000)
    assert len(heard) < 4096, "systemd ignores what is longer"
    assert heard.startswith(b"READY=1\nSTATUS=") and heard.decode().endswith("...")


def test_a_service_manager_that_does_not_listen_stops_nothing(manager: socket.socket) -> None:
    for _ in range(10_000):
        if not systemd.notify_status("x" * 1000):
            return
    pytest.fail("the socket's buffer never filled")


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify", "@nobody-there", "/" + "x" * 200])
def test_without_a_service_manager_nothing_happens(address: str) -> None:
    assert not systemd.sd_notify("READY=1", {"NOTIFY_SOCKET": address})
    assert not systemd.sd_notify("READY=1", {})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "1"}, 1),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_needs(environ: dict[str, str], expected: int | None) -> None:
    assert systemd.watchdog_interval_ms(environ) == expected
