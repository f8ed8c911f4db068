"""What a controller process takes when clients do not read, and that it gives it back."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.ids import METADATA_TOPIC_ID
from kjbod.wire.client import Connection
from kjbod.wire.frames import encode_request
from kjbod.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    MetadataRequest,
)
from kjbod_controller_stub import cluster_description
from kjbod_controller_stub import server as controller_server
from kjbod_controller_stub.server import READING_BYTES_MAX
from tests.controller.conftest import Serving, Site, until
from tests.controller.test_server import ROOT, connect, create, join

MIB = 1024 * 1024
UNREAD_BYTES_MAX = 24 * MIB
CLIENTS = 100
FETCHES = 4
TOPICS = 6
SLACK_BYTES = 24 * MIB
"""Of the interpreter: connections, codecs, what is half free."""
_RUN = """
import sys
from pathlib import Path
from kjbod_controller_stub import process, starting
process.GIVE_BACK_S = 1.0
starting.UNREAD_BYTES_MAX = int(sys.argv[2])
from kjbod_controller_stub.process import main
sys.exit(main(Path(sys.argv[1])))
"""


@pytest.fixture
def controller(site: Site) -> Iterator[tuple[int, int]]:
    """Pid and port of one in a process of its own."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    site.configure(listeners=f"CONTROLLER://127.0.0.1:{port}")
    sources = os.pathsep.join(str(ROOT / folder) for folder in ("", "agent", "controller_stub"))
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(site.config_path), str(UNREAD_BYTES_MAX)],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": sources},
    )
    assert process.stderr is not None
    try:
        assert any(b"controller.started" in line for line in process.stderr)
        yield process.pid, port
    finally:
        process.kill()
        process.communicate()


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def fetches() -> bytes:
    partition = FetchRequestPartition(partition=0, current_leader_epoch=1, fetch_offset=1, last_fetched_epoch=1)
    topic = FetchRequestTopic(topic_id=METADATA_TOPIC_ID, partitions=(partition,))
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=16 * MIB, topics=(topic,))
    return b"".join(encode_request(request, 17, number, "c") for number in range(FETCHES))


HALF_REQUESTS = 600
HALF_BYTES = 60_000


@pytest.mark.usefixtures("world")
async def test_what_came_of_requests_that_were_never_finished_is_given_back(controller: tuple[int, int]) -> None:
    pid, port = controller
    before = resident_bytes(pid)
    half = (200_000).to_bytes(4) + b"\x00\x01\x00\x0c".ljust(HALF_BYTES, b"x")
    clients = []
    try:
        for _ in range(HALF_REQUESTS):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            clients[-1].sendall(half)
        async with asyncio.timeout(60):
            await until(lambda: resident_bytes(pid) > before + HALF_REQUESTS * HALF_BYTES * 3 // 4)
    finally:
        for client in clients:
            client.close()
    async with asyncio.timeout(60):
        await until(lambda: resident_bytes(pid) < before + HALF_REQUESTS * HALF_BYTES // 2)


@pytest.mark.usefixtures("world")
async def test_clients_that_do_not_read_cost_what_the_limit_says_and_it_comes_back(
    controller: tuple[int, int],
) -> None:
    pid, port = controller
    async with await Connection.open("127.0.0.1", port, client_id="t", clock=SystemClock()) as broker:
        await join(broker, 1)
        for number in range(TOPICS):  # a megabyte of log
            assert (await broker.request(create(f"t{number}", 2_000), timeout_ms=60_000)).topics[0].error_code == 0
    before = resident_bytes(pid)
    deaf = []
    try:
        for _ in range(CLIENTS):
            client = socket.socket()
            deaf.append(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", port))
            client.sendall(fetches())
            client.setblocking(False)
        # All were begun when the last one is answered, or was cut off.
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(deaf[-1], 4)
        highest = resident_bytes(pid, "VmHWM")
        assert highest < before + UNREAD_BYTES_MAX + READING_BYTES_MAX + SLACK_BYTES
    finally:
        for client in deaf:
            client.close()
    async with asyncio.timeout(60):
        await until(lambda: resident_bytes(pid) < before + SLACK_BYTES)


async def test_what_a_client_only_wanted_to_read_is_not_made_when_it_has_gone(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[None] = []
    monkeypatch.setattr(cluster_description, "metadata", lambda *_, **__: made.append(None))
    monkeypatch.setattr(controller_server, "is_large", lambda *_: True)
    async with serving(site) as server:
        held = asyncio.Event()
        loop = asyncio.get_running_loop()
        server._turns.take(
            lambda: asyncio.run_coroutine_threadsafe(held.wait(), loop).result(),
            settle=lambda _: None,
            fail=lambda error: None,
            is_large=lambda: True,
        )
        clients = [await connect(server.port) for _ in range(3)]
        asked = [
            asyncio.ensure_future(each.request(MetadataRequest(topics=None), timeout_ms=60_000)) for each in clients
        ]
        await until(lambda: len(server._turns) == len(clients))
        for each in clients:
            await each.close()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: server.servers[0].connections == 0)
        held.set()
        await until(lambda: not len(server._turns))
        async with await connect(server.port) as client:
            with pytest.raises(Exception):  # noqa: B017  the stand-in has no answer
                await client.request(MetadataRequest(topics=None), timeout_ms=10_000)
    assert len(made) == 1
