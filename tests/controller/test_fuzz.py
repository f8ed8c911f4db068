"""A live controller under frames of real brokers that were damaged, and under any message that is well formed."""

import asyncio
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.wire.messages import MetadataRequest
from kjbod_controller_stub import server as controller_server
from kjbod_controller_stub.server import SERVED
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, create, join
from tests.controller.world import CLUSTER_ID, directories
from tests.wire.composer import Composer

FRAMES = Path(__file__).parents[1] / "data" / "frames.jsonl"
_ANSWER_TIMEOUT_S = 0.05
_NUMBERS = (-1, 0, 1, 2, 3, 127, 128, 255, 32767, 2**31 - 1, -(2**31))


def real_requests() -> list[bytes]:
    """The requests of the capture that the controller serves."""
    entries = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    return [
        bytes.fromhex(entry["hex"]) for entry in entries if entry["direction"] == "request" and entry["key"] in SERVED
    ]


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """The frame with one to three things wrong."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                data[at : at + 4] = struct.pack(">i", rng.choice(_NUMBERS))
            case _:
                data[2:4] = struct.pack(">h", rng.randrange(20))  # another version
    return bytes(data)


async def ask(port: int, frame: bytes) -> bool:
    """Send one frame on a connection of its own; whether it was answered. A parked Fetch is not waited for."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            return True
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.close()


async def bombard(port: int, frames: Iterator[bytes], *, workers: int = 8) -> int:
    """Send all frames; how many were answered."""
    answered = 0

    async def work() -> None:
        nonlocal answered
        for frame in frames:
            good = await ask(port, frame)
            answered += good

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work())
    return answered


async def test_no_frame_stops_the_controller_or_leaves_a_state_that_replay_does_not_give(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs: list[str] = []
    monkeypatch.setattr(controller_server._log, "exception", lambda event, **fields: bugs.append(f"{event} {fields}"))
    rng = random.Random(858)
    real = real_requests()
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        created = await connection.request(create("t"), timeout_ms=5_000)
        composer = Composer(rng, [created.topics[0].topic_id, *directories(1)], SERVED)
        frames = (damaged(rng, rng.choice(real)) if rng.random() < 0.5 else composer.frame() for _ in range(1_500))
        answered = await bombard(server.port, frames)
        assert not bugs
        assert answered > 300
        assert (await connection.request(MetadataRequest(topics=None), timeout_ms=5_000)).cluster_id == CLUSTER_ID
        before = state(server)
    async with serving(site) as server:
        assert state(server) == before


def state(server: controller_server.ControllerServer) -> list[Any]:
    """What the log says, as far as a start does not add to it."""
    image = server.controller.image
    return [dict(image.brokers), dict(image.topics), dict(image.configs), server.controller.features_offset]
