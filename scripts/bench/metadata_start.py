"""Time that an agent takes to know the metadata again at its start, with what it kept and without, side by side.

A kjbod controller serves a log of very many partitions. What an agent runs for its metadata (:class:`Keeping`,
:class:`MetadataFollower`, :class:`Replayer`) reads them in turns: without anything kept, which fetches, decodes and
replays every record, and with what an agent before had kept. Each run counts what came from the controller, too.
"""

import argparse
import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kjbod.clock import SystemClock
from kjbod.ids import Uuid, random_directory_id, random_uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import encode_batch, read_batch
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import MetadataImage, Replayer, image_of
from kjbod.metadata.log_files import DIRECTORY_NAME, open_log
from kjbod.metadata.records import PartitionRecord, Record, RegisterBrokerRecord, TopicRecord, encode_record
from kjbod.runtime import memory
from kjbod.runtime.logging import get_logger
from kjbod_agent.keeping import IMAGE_NAME, Keeping
from kjbod_host.files.metadata_image import compact
from scripts.bench.command_line import positive
from scripts.rig.cluster import Cluster
from scripts.rig.processes import Processes

REACH_SHARE: Final = 1 / 3
"""Of today's time, at most, with 200,000 records known."""
NODE: Final = 1
BROKERS: Final = range(100, 120)
PARTITIONS: Final = 19
_BATCH: Final = 500
_TIMEOUT_S: Final = 300.0


class Reading(Struct, frozen=True):
    """A start."""

    seconds: float
    """Of the wall clock until all is applied."""
    cpu_seconds: float
    """Of this process."""
    fetched: int
    """Records that the controller sent and that were handed over."""
    lacked: int
    """Offsets behind what was kept, up to all that there was."""
    image: MetadataImage


def records(count: int, rng: random.Random, *, alike: bool) -> list[Record]:
    """So many records of topics, with partitions on brokers that are nobody's here."""
    homes = {broker: [random_directory_id(rng) for _ in range(4)] for broker in BROKERS}
    made: list[Record] = [
        RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=1,
            incarnation_id=random_uuid(rng),
            end_points=(),
            features=(),
            log_dirs=tuple(sorted(dirs)),
            fenced=True,
        )
        for broker, dirs in homes.items()
    ]
    while len(made) < count:
        topic = random_uuid(rng)
        made.append(TopicRecord(name=f"topic-{len(made)}", topic_id=topic))
        made += [_partition(topic, number, homes, rng, alike=alike) for number in range(PARTITIONS)]
    return made


def _partition(
    topic: Uuid, number: int, homes: dict[int, list[Uuid]], rng: random.Random, *, alike: bool
) -> PartitionRecord:
    first = number % len(BROKERS)
    replicas = tuple(BROKERS[(first + n) % len(BROKERS)] for n in range(3)) if alike else tuple(rng.sample(BROKERS, 3))
    return PartitionRecord(
        partition_id=number,
        topic_id=topic,
        replicas=replicas,
        isr=replicas,
        leader=-1,
        leader_epoch=0 if alike else rng.randrange(4),
        partition_epoch=0 if alike else rng.randrange(8),
        directories=tuple(homes[broker][number % 4] if alike else rng.choice(homes[broker]) for broker in replicas),
    )


def fill(directory: Path, what: list[Record]) -> None:
    """Append records to the log of a controller that does not run."""
    log = open_log(directory / DIRECTORY_NAME)
    values = [encode_record(record, versions.record_version(record, versions.LATEST)) for record in what]
    for at in range(0, len(values), _BATCH):
        batch = read_batch(encode_batch(values[at : at + _BATCH], log.end_offset, log.epochs[-1][0], 1000))
        assert batch is not None
        log.append([batch])
    log.sync()
    log.close()


async def read(port: int, directory: Path, state: Path, cluster_id: str, *, use: bool) -> Reading:
    """Follow the metadata until all is applied, as an agent does; ``use``: with what was kept, and keep it."""
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.ensure_future(work))

    clock, began, cpu = SystemClock(), time.perf_counter(), time.process_time()
    keeping = Keeping(str(directory), state, cluster_id=cluster_id, node_id=NODE, spawn=spawn, log=get_logger())
    start = await keeping.load() if use else None
    replayer, fetched = Replayer(), 0

    def confirmed() -> None:
        assert start is not None
        replayer.image = start.image

    def on_committed(committed: Committed) -> None:
        nonlocal fetched
        for offset, record in committed.records:
            replayer.replay(offset, committed.epoch, record)
        replayer.skip(committed.last_offset, committed.epoch)
        fetched += len(committed.records)
        keeping.committed(committed)

    def on_snapshot(snapshot: Snapshot) -> None:
        nonlocal fetched
        replayer.image = image_of(snapshot.records, offset=snapshot.id.end_offset - 1, epoch=snapshot.id.epoch)
        fetched += len(snapshot.records)
        keeping.replaced(snapshot, contained=True)

    follower = MetadataFollower(
        [("127.0.0.1", port)],
        client_id="bench",
        clock=clock,
        rng=random.Random(),
        on_committed=on_committed,
        on_snapshot=on_snapshot,
        cluster_id=cluster_id,
        kept=None if start is None else start.kept,
        on_confirmed=confirmed,
        on_downloaded=keeping.downloaded,
    )
    spawn(follower.run())
    if use:
        spawn(keeping.run())
    async with asyncio.timeout(_TIMEOUT_S):
        while follower.high_watermark < 0 or follower.applied_offset < follower.high_watermark:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        while use and keeping.stopped is None and keeping.offset + 1 < follower.applied_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    keeping.close()
    lacked = replayer.image.offset + 1 - (0 if start is None else start.kept.end_offset)
    return Reading(took, used, fetched, lacked, replayer.image)


def measure(base: Path, count: int, repeat: int, *, alike: bool) -> list[tuple[Reading, Reading]]:
    """Pairs of starts, without and with what was kept."""
    with Processes(base / "logs") as processes:
        cluster = Cluster(base, processes)
        cluster.format_controller()
        cluster.start_controller().stop()
        fill(cluster.controller_dir, records(count, random.Random(1), alike=alike))
        cluster.start_controller()
        directory, state = base / "kept", base / "state"
        directory.mkdir()

        def start(*, use: bool) -> Reading:
            memory.settle()  # an agent begins with an empty heap
            return asyncio.run(read(cluster.port, directory, state, cluster.cluster_id, use=use))

        state.mkdir()
        start(use=True)
        compact(str(directory), str(state / IMAGE_NAME), cluster.cluster_id, NODE, 0)
        pairs = []
        for _ in range(repeat):
            pairs.append((start(use=False), start(use=True)))
            if pairs[-1][0].image != pairs[-1][1].image:
                raise SystemExit("what was kept is not what the controller has")
        return pairs


def main() -> int:
    """Measure, and say the ratio; 1 where it is out of reach."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/metadata-start", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--records", type=positive, default=200_000, help="known to the controller (%(default)s)")
    parser.add_argument("--repeat", type=positive, default=3, help="pairs of starts (%(default)s)")
    parser.add_argument("--alike", action="store_true", help="partitions that are alike, as after a creation")
    asked = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="kjbod-metadata-start-"))
    try:
        pairs = measure(base, asked.records, asked.repeat, alike=asked.alike)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    shares = [kept.seconds / fresh.seconds for fresh, kept in pairs]
    for fresh, kept in pairs:
        print(
            f"without {fresh.seconds:6.2f} s ({fresh.cpu_seconds:5.2f} s CPU, {fresh.fetched:,} records fetched)   "
            f"with {kept.seconds:6.2f} s ({kept.cpu_seconds:5.2f} s CPU, {kept.fetched:,} records fetched)   "
            f"ratio {kept.seconds / fresh.seconds:.2f}"
        )
    print(f"ratio, median of {len(shares)}: {statistics.median(shares):.2f} (at most {REACH_SHARE:.2f})")
    return 0 if statistics.median(shares) <= REACH_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
