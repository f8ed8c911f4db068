"""A live controller under frames of real brokers that were damaged, and under any message that is well formed."""

import asyncio
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kjbod.wire.messages import (
    AssignReplicasToDirsResponse,
    CreateTopicsResponse,
    CreateTopicsResponseTopic,
    MetadataRequest,
)
from kjbod_controller_stub import server as controller_server
from kjbod_controller_stub.limits import SERVED
from scripts.bench.controller_rig import ControllerRig
from scripts.fuzzing.frames import Frame, Frames, must_change_nothing
from scripts.fuzzing.harness import Fuzzer, error_codes, real_requests, require_sense
from scripts.rig.rig_error import RigError
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, create, join
from tests.controller.world import CLUSTER_ID, directories
from tests.depth import examples, seeds
from tests.wire.composer import Composer

_ANSWER_TIMEOUT_S = 0.05
_NUMBERS = (-1, 0, 1, 2, 3, 127, 128, 255, 32767, 2**31 - 1, -(2**31))


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


@pytest.mark.parametrize("seed", seeds(deep=1))
async def test_no_frame_stops_the_controller_or_leaves_a_state_that_replay_does_not_give(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    bugs: list[str] = []
    monkeypatch.setattr(controller_server._log, "exception", lambda event, **fields: bugs.append(f"{event} {fields}"))
    rng = random.Random(seed)
    count = examples(1_500)
    real = real_requests()
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        created = await connection.request(create("t"), timeout_ms=60_000)
        composer = Composer(rng, [created.topics[0].topic_id, *directories(1)], SERVED)
        frames = (damaged(rng, rng.choice(real)) if rng.random() < 0.5 else composer.frame() for _ in range(count))
        answered = await bombard(server.port, frames)
        assert not bugs
        assert answered > count // 5
        assert (await connection.request(MetadataRequest(topics=None), timeout_ms=60_000)).cluster_id == CLUSTER_ID
        before = state(server)
    async with serving(site) as server:
        assert state(server) == before


def state(server: controller_server.ControllerServer) -> list[Any]:
    """What the log says, as far as a start does not add to it."""
    image = server.controller.image
    return [dict(image.brokers), dict(image.topics), dict(image.configs), server.controller.features_offset]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("seed", seeds(deep=1))
async def test_a_controller_process_survives_what_may_change_nothing_and_what_may_change_anything(
    tmp_path: Path, seed: int
) -> None:
    """The short form of ``scripts/fuzz``: see there what it looks at."""
    with ControllerRig(tmp_path, tmp_path / "logs", "kjbod", kit=None, rules="kip-858", heap_mib=0) as rig:
        fuzzer = Fuzzer(rig, seed=seed, connections=4, memory_mib=256, say=lambda text: None)
        refused, others, accounted = examples(800), examples(1_200), examples(100)
        await fuzzer.run(refused=refused, others=others, accounted=accounted)
        assert fuzzer.tally.sent >= refused + others + accounted
        assert fuzzer.tally.answered > refused // 2
        assert fuzzer.tally.closed > refused // 4
        with pytest.raises(RigError, match="more than 1"):
            fuzzer.require_healthy(memory_mib=1)
        rig.kill_controller()
        with pytest.raises(RigError, match="has ended"):
            fuzzer.require_healthy(memory_mib=256)


def test_the_same_seed_makes_the_same_frames_and_every_kind_of_them() -> None:
    def some(seed: int) -> list[Frame]:
        frames = Frames(random.Random(seed), real_requests(), [], SERVED)
        return [frames.next() for _ in range(2_000)]

    made = some(1)
    assert made == some(1) != some(2)
    assert any(frame.misleads for frame in made)
    harmless = [must_change_nothing(frame, SERVED) for frame in made]
    assert 300 < sum(harmless) < 1_700
    assert {frame.body[:2] for frame in made} >= {struct.pack(">h", key) for key in SERVED}


async def test_metadata_that_make_no_sense_are_seen(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        created = await connection.request(create("t"), timeout_ms=60_000)
        require_sense(server.controller.image)
        partitions = server.controller.image.topics[created.topics[0].topic_id].partitions
        partitions[0] = structs.replace(partitions[0], leader=7)
        with pytest.raises(RigError, match="the leader is not in sync"):
            require_sense(server.controller.image)


def test_only_an_answer_without_a_single_success_is_a_refusal() -> None:
    topics = (CreateTopicsResponseTopic(name="a", error_code=36), CreateTopicsResponseTopic(name="b"))
    assert list(error_codes(CreateTopicsResponse(topics=topics))) == [36, 0]
    refused = AssignReplicasToDirsResponse(error_code=77)
    assert list(error_codes(refused)) == [77]
