"""The same directory under our controller and Apache Kafka's, turn by turn, with snapshots and a log that was cut."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.metadata.checkpoint_files import checkpoints_in
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.quorum_state import read_quorum_state
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import BrokerHeartbeatRequest, MetadataRequest
from kjbod_controller_stub.server import ControllerServer
from scripts.rig.kafka import DUMP_LOG, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import Processes, free_port
from tests.controller.conftest import until
from tests.controller.test_server import connect, create, join
from tests.controller.test_snapshots import following
from tests.controller.world import CLUSTER_ID
from tests.depth import at, sample, seeded

pytestmark = pytest.mark.usefixtures("kafka_kit")

NODE = 3000
SMALL_SEGMENT_BYTES = 2_000
TURNS = at(quick=3, ci=3, deep=6)
"""Ours, theirs, ours, ..."""


@dataclasses.dataclass(slots=True)
class Place:
    """A directory and the configuration for both."""

    kit: KafkaKit
    processes: Processes
    config: Path
    port: int
    log: Path
    kraft_version: int

    @contextlib.asynccontextmanager
    async def ours(self) -> AsyncIterator[ControllerServer]:
        config = dataclasses.replace(load_config(self.config), metadata_log_segment_bytes=SMALL_SEGMENT_BYTES)
        async with asyncio.TaskGroup() as tasks:
            server = await ControllerServer.start(config, clock=SystemClock(), rng=random.Random(3))
            try:
                tasks.create_task(server.run())
                yield server
            finally:
                await server.close()

    @contextlib.asynccontextmanager
    async def theirs(self) -> AsyncIterator[None]:
        controller = await asyncio.to_thread(self.kit.start_server, self.processes, self.config, name="controller")
        yield
        code = await asyncio.to_thread(controller.stop)
        assert code == 143, controller.tail()
        assert "ERROR" not in controller.stdout(), controller.stdout()

    def snapshots(self) -> int:
        return sum(1 for each in checkpoints_in(self.log) if each.end_offset)

    def log_start(self) -> int:
        return min(int(path.stem) for path in self.log.glob("*.log"))

    def epoch(self) -> int:
        state = read_quorum_state(self.log)
        assert state is not None
        return state.leader_epoch


def quorum(properties: str, kraft_version: int) -> str:
    """The configuration of a node whose voters are in the log, or, before kraft.version 1, in the configuration."""
    if kraft_version:
        return properties
    return properties.replace("controller.quorum.bootstrap.servers=", f"controller.quorum.voters={NODE}@")


@pytest.fixture(
    params=[pytest.param(version, id=seeded(f"kraft.version={version}")) for version in sample((1, 0), ci=1)]
)
def place(tmp_path: Path, kafka_kit: KafkaKit, processes: Processes, request: pytest.FixtureRequest) -> Place:
    config, port = tmp_path / "controller.properties", free_port()
    config.write_text(
        quorum(controller_properties(NODE, port, tmp_path / "metadata"), request.param)
        + "metadata.log.max.record.bytes.between.snapshots=3000\n"
        + "metadata.max.retention.bytes=10000\n"
        + f"internal.metadata.log.segment.bytes={SMALL_SEGMENT_BYTES}\n"
        + "broker.session.timeout.ms=600000\n"
    )
    kafka_kit.format(config, CLUSTER_ID, *(["--standalone"] if request.param else []))
    return Place(kafka_kit, processes, config, port, tmp_path / "metadata" / DIRECTORY_NAME, request.param)


async def use(place: Place, turn: int) -> MetadataImage:
    """Register a broker, create topics, and read what an agent sees."""
    async with await connect(place.port) as connection:
        stale = BrokerHeartbeatRequest(broker_id=1, broker_epoch=-1)
        # A real one leads before it is the active controller.
        while (await connection.request(stale, timeout_ms=20_000)).error_code == ErrorCode.NOT_CONTROLLER:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await join(connection, 1)
        names = [f"t-{turn}-{number}" for number in range(6)]
        for name in names:
            answer = await connection.request(create(name, 20), timeout_ms=20_000)
            assert answer.topics[0].error_code == 0
        async with following(place.port) as replayer:
            await until(lambda: replayer.image.topic_ids.keys() >= set(names))
            return replayer.image


def comparable(image: MetadataImage) -> MetadataImage:
    """Without what each start writes anew."""
    return dataclasses.replace(image, controllers={})


async def seen(place: Place, expected: MetadataImage) -> None:
    """An agent that starts now sees the same."""
    async with following(place.port) as replayer:
        await until(lambda: replayer.image.topic_ids.keys() >= expected.topic_ids.keys())
        assert comparable(replayer.image) == comparable(expected)


async def on_a_real_broker(place: Place) -> set[str]:
    """The topics that a broker knows which starts now, so that it loads our snapshot."""
    port, config = free_port(), place.config.with_name("broker.properties")
    properties = broker_properties(9, port, place.port, [place.config.with_name("b")])
    config.write_text(quorum(properties, place.kraft_version))
    await asyncio.to_thread(place.kit.format, config, CLUSTER_ID)
    broker = await asyncio.to_thread(place.kit.start_server, place.processes, config, name="broker")
    async with await connect(port) as connection:
        answer = await connection.request(MetadataRequest(topics=None), timeout_ms=20_000)
    assert any(path.suffix == ".checkpoint" for path in (config.with_name("b") / DIRECTORY_NAME).iterdir())
    await asyncio.to_thread(broker.close)
    return {topic.name or "" for topic in answer.topics}


def topics_by_kafkas_shell(place: Place) -> str:
    """Topics in the newest snapshot, as Kafka's shell lists them."""
    return place.kit.look_into(max(checkpoints_in(place.log).items())[1], "ls", "/image/topics/byName")


@pytest.mark.timeout(240)
async def test_a_real_controller_and_ours_hand_a_directory_over_with_snapshots_and_a_cut_log(place: Place) -> None:
    known: MetadataImage | None = None
    epoch = 0
    for turn in range(TURNS):
        running = place.theirs() if turn % 2 else place.ours()
        async with asyncio.timeout(100), running:
            if known is not None:
                await seen(place, known)
            known = await use(place, turn)
            await until(place.snapshots)
            if turn:
                await until(lambda: place.log_start() > 0)  # what follows starts from a snapshot
            assert place.epoch() > epoch
            epoch = place.epoch()
            if turn == TURNS - 1 - (TURNS - 1) % 2:
                assert await on_a_real_broker(place) >= known.topic_ids.keys()
        if turn % 2 == 0:
            tool = [DUMP_LOG, "--cluster-metadata-decoder", "--files"]
            files = [*sorted(place.log.glob("*.log")), *checkpoints_in(place.log).values()]
            dump = await asyncio.to_thread(place.kit.run, *tool, ",".join(map(str, files)))
            assert "RegisterControllerRecord" in dump.stdout or "REGISTER_CONTROLLER_RECORD" in dump.stdout
            assert "rror" not in dump.stderr
            assert "t-0-0" in await asyncio.to_thread(topics_by_kafkas_shell, place)
    assert known is not None
    assert len(known.topics) == 6 * TURNS
