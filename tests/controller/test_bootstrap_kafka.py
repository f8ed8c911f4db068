"""A formatted directory's first start: whoever formatted it, ours and a real controller begin the same log from it."""

import asyncio
import dataclasses
import random
import shutil
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.metadata.batches import iter_batches
from kjbod.metadata.control_records import ControlRecord, KRaftVersion, KRaftVoters
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.records import FeatureLevelRecord, Record, RegisterControllerRecord, decode_record
from kjbod.storage_tool import FormatOptions, format_directories
from kjbod_controller_stub.server import ControllerServer
from scripts.rig.kafka import KafkaKit, controller_properties
from scripts.rig.processes import Processes, free_port, wait_until
from tests.controller.conftest import until
from tests.controller.pair import Outcome, Side
from tests.controller.random_requests import update
from tests.depth import only_deep, sample, seeded

pytestmark = pytest.mark.usefixtures("kafka_kit")

CLUSTER_ID = "kjbodBootstrap00AAAAAA"
CASES = [
    (level, static, tool)
    for level in (7, 16, 17, 21, 25, 30)
    for static in (True, False)
    for tool in ("kafka-storage", "kjbod")
]


def configure(root: Path, *, static: bool) -> tuple[Path, int]:
    """A configuration with a quorum of configured voters, or one whose voters are in the log."""
    config, port = root / "controller.properties", free_port()
    text = controller_properties(3000, port, root / "log") + "metadata.max.idle.interval.ms=0\n"
    if static:
        text = text.replace("controller.quorum.bootstrap.servers=", "controller.quorum.voters=3000@")
    config.write_text(text)
    return config, port


def format_with(tool: str, kit: KafkaKit, config: Path, level: int, *, static: bool) -> None:
    if tool == "kafka-storage":
        kit.format(config, CLUSTER_ID, *([] if static else ["--standalone"]), "--feature", f"metadata.version={level}")
        return
    format_directories(
        load_config(config),
        FormatOptions(cluster_id=CLUSTER_ID, standalone=not static, features=(f"metadata.version={level}",)),
        rng=random.Random(3),
        clock=SystemClock(),
        out=lambda line: None,
        warn=lambda line: None,
    )


def log_of(root: Path) -> list[tuple[int, Record | ControlRecord]]:
    """Version and record, but for the controller's registration of itself: a real one's comes when it will."""
    found: list[tuple[int, Record | ControlRecord]] = []
    for batch in iter_batches((root / "log" / DIRECTORY_NAME / f"{0:020d}.log").read_bytes()):
        if batch.control:
            found += [(0, control) for _, control in batch.control_records()]
            continue
        for log_record in batch.records:
            record, version = decode_record(log_record.value or b"")
            if not isinstance(record, RegisterControllerRecord):
                found.append((version, record))
    return found


@pytest.mark.parametrize(
    ("level", "static", "tool"),
    [
        pytest.param(level, static, tool, id=seeded(f"{level}-{'static' if static else 'dynamic'}-{tool}"))
        for level, static, tool in sample(CASES, ci=1)
    ],
)
def test_the_first_start_writes_the_same_log(
    level: int, static: bool, tool: str, tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    config, _ = configure(tmp_path, static=static)
    format_with(tool, kafka_kit, config, level, static=static)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    real = kafka_kit.start_server(processes, config, name="real")
    # It says that it is up before it has written them.
    wait_until(lambda: any(isinstance(one, FeatureLevelRecord) for _, one in log_of(tmp_path)), 60, "its first records")
    assert real.stop() == 143
    theirs = log_of(tmp_path)
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")

    async def start() -> int:
        server = await ControllerServer.start(load_config(config), clock=SystemClock(), rng=random.Random(5))
        await server.close()
        return server.controller.image.metadata_version

    assert asyncio.run(start()) == level
    assert log_of(tmp_path) == theirs


async def upgrade_quorum(port: int) -> list[Outcome]:
    side = await Side.open("", port)
    wanted = [("kraft.version", 0, 2), ("kraft.version", 2, 1), ("kraft.version", 1, 1), ("kraft.version", 0, 3)]
    told = [await side.ask(update(each)) for each in wanted]
    await side.connection.close()
    return told


@only_deep("three real controllers")
def test_a_quorum_of_configured_voters_becomes_one_whose_voters_are_in_the_log(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    told, logs = [], []
    for name in ("real", "ours"):
        root = tmp_path / name
        root.mkdir()
        config, port = configure(root, static=True)
        format_with("kafka-storage", kafka_kit, config, 30, static=True)

        async def ours(config: Path = config, port: int = port) -> list[Outcome]:
            async with asyncio.TaskGroup() as tasks:
                server = await ControllerServer.start(load_config(config), clock=SystemClock(), rng=random.Random(5))
                tasks.create_task(server.run())
                outcomes = await upgrade_quorum(port)
                await until(lambda: server.controller.cluster.kraft_version == 1)
                await server.close()
            return outcomes

        if name == "real":
            real = kafka_kit.start_server(processes, config, name=name)
            told.append(asyncio.run(upgrade_quorum(port)))
            assert real.stop() == 143
        else:
            told.append(asyncio.run(ours()))
            # What ours wrote is a quorum that a real controller leads.
            assert kafka_kit.start_server(processes, config, name="real on ours").stop() == 143
        logs.append([type(record) for _, record in log_of(root)])
    assert [dataclasses.asdict(each) for each in told[0]] == [dataclasses.asdict(each) for each in told[1]]
    assert logs[1][: len(logs[0])] == logs[0]
    assert {KRaftVersion, KRaftVoters} <= set(logs[0])
