"""A controller that is killed before system calls of its write path: ``python -m tests.controller.killing BASE SPEC``.
Kills at the :class:`~tests.depth.Points` of SPEC (JSON), or at the one call of that number; prints what it found as one
JSON object.

One life of it starts on a directory that another life left (a snapshot, a cut log, a torn tail, left-overs), creates
topics under small segments, with a snapshot and a clean-up after each, and stops. What it acknowledges it says on a
pipe. After each kill the directory is started on again: all that was acknowledged must be there, whole.
"""

import asyncio
import dataclasses
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.config.keys import Config
from kjbod.metadata import versions
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.records import FeatureLevelRecord
from kjbod.wire.client import Connection
from kjbod_controller_stub.server import ControllerServer
from scripts.rig.kafka import RELEASE
from scripts.rig.tracing import run_traced
from tests.controller.conftest import Site, until
from tests.controller.test_server import create, join
from tests.depth import Points

TOPICS = 4
PARTITIONS = 3
SEGMENT_BYTES = 600
"""A segment has two or three batches."""
LOG = "__cluster_metadata-0"


def configuration(directory: Path) -> Config:
    site = Site(directory.parent / "controller.properties", directory)
    site.configure(
        metadata_log_max_record_bytes_between_snapshots="1",
        metadata_max_retention_bytes="1",
        metadata_max_idle_interval_ms="600000",
        broker_session_timeout_ms="600000",
    )
    return dataclasses.replace(load_config(site.config_path), metadata_log_segment_bytes=SEGMENT_BYTES)


def prepare(directory: Path) -> None:
    """What the life that is killed starts from."""
    Site(directory.with_suffix(".properties"), directory).format()
    level = versions.release_level(RELEASE)  # what is left is given to a real controller, too
    features = (FeatureLevelRecord(name=n, feature_level=v) for n, v in versions.default_features(level).items())
    write_checkpoint(directory / "bootstrap.checkpoint", header_timestamp_ms=0, kraft=None, records=features)
    asyncio.run(live(configuration(directory), "before", None))
    last = max((directory / LOG).glob("*.log"))
    with last.open("ab") as file:
        file.write(bytes(40))  # a batch that was being written
    (directory / LOG / f"{1:020d}-{1:010d}.checkpoint.part").write_bytes(b"x")
    (directory / LOG / f"{0:020d}.index").write_bytes(b"x")


async def live(config: Config, prefix: str, told: int | None) -> None:
    """One life; each acknowledged topic, and the epoch, is said on the descriptor ``told``."""

    def tell(what: str) -> None:
        if told is not None:
            os.write(told, f"{what}\n".encode())

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        server = await ControllerServer.start(config, clock=SystemClock(), rng=random.Random(1))
        tasks.create_task(server.run())
        try:
            tell(f"epoch {server.quorum.epoch}")
            connection = await Connection.open("127.0.0.1", server.port, client_id="t", clock=SystemClock())
            async with connection:
                await join(connection, 1)
                for number in range(TOPICS):
                    name = f"{prefix}-{number}"
                    answer = await connection.request(create(name, PARTITIONS), timeout_ms=30_000)
                    assert answer.topics[0].error_code == 0
                    tell(f"topic {name}")
                await until(lambda: server.log.start_offset == server.log.end_offset)
        finally:
            await server.close()


async def check(config: Config, said: list[str]) -> None:
    """Start on what was left, and find all that was said."""
    epochs = [int(line.split()[1]) for line in said if line.startswith("epoch")]
    topics = {line.split()[1] for line in said if line.startswith("topic")}
    server = await ControllerServer.start(config, clock=SystemClock(), rng=random.Random(2))
    try:
        image = server.controller.image
        assert server.quorum.epoch > max(epochs, default=1), "an epoch was used twice"
        assert topics <= image.topic_ids.keys(), f"lost {topics - image.topic_ids.keys()}"
        assert all(len(topic.partitions) == PARTITIONS for topic in image.topics.values()), "a topic is not whole"
        assert not list((Path(config.metadata_log_dir) / LOG).glob("*.part")), "a part of a snapshot is left"
    finally:
        await server.close()


def in_fork(work: Callable[[], object]) -> int:
    """The exit code of ``work`` in a child: an event loop leaves threads, and the tracer may have none."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001  nothing may escape
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def one_life(base: Path, template: Path, kill_at: int | None) -> tuple[list[str], bool]:
    """The calls of one life that is killed, and whether what it left is good."""
    directory = base / "metadata"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(template, directory)
    config = configuration(directory)
    reader, writer = os.pipe()
    calls = run_traced(lambda: asyncio.run(live(config, "now", writer)), directory, kill_at=kill_at)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        said = [f"topic before-{number}" for number in range(TOPICS)] + file.read().splitlines()
    kept = base / "killed"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(directory, kept)
    return calls, in_fork(lambda: asyncio.run(check(config, said))) == 0


def main(base: Path, at: Points | int) -> None:
    template = base / "template"
    assert in_fork(lambda: prepare(template)) == 0
    calls, good = one_life(base, template, None)
    bad = [] if good else ["no kill"]
    points = [at] if isinstance(at, int) else at.of(range(1, len(calls) + 1))
    for number in points:
        seen, good = one_life(base, template, number)
        print(
            f"killed at {number} of {len(calls)}: {seen[-1]}: {'good' if good else 'BAD'}", file=sys.stderr, flush=True
        )
        if not good:
            bad.append(f"{number}: {seen[-1]}")
    print(json.dumps({"calls": calls, "killed_at": len(points), "bad": bad}))


if __name__ == "__main__":
    spec = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), Points(**spec) if isinstance(spec, dict) else spec)
