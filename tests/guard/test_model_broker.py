"""The model of a Kafka broker does what real ones did, in twelve runs: what clients saw of a bad disk, and of what was
done about it.

Three brokers, three replicas, two in sync at least; broker 1 has the bad disk. Measured on Kafka 4.3.1; the numbers
are those of the runs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from kjbod.wire.messages import BrokerHeartbeatRequest
from tests.guard.model_broker import CHECKPOINT_MS, METADATA, ModelDisk
from tests.guard.model_controller import InlineLoop
from tests.guard.universe import Universe

LED_BAD, LED, FOLLOWED, FOLLOWED_BAD = ("t", 0), ("t", 3), ("t", 1), ("t", 2)
"""One partition of each class, as broker 1 sees it: on the bad disk and on a healthy one."""
SOON, SECONDS, LAG, NEVER = "within 2 s", "within 12 s", "after 30 s", "not any more"
Deed = Callable[[Universe, ModelDisk], Awaitable[None]]


async def cut(universe: Universe, disk: ModelDisk) -> None:
    universe.was_cut(disk)


async def mask(universe: Universe, disk: ModelDisk) -> None:
    disk.masked = True


async def evict(universe: Universe, disk: ModelDisk) -> None:
    logs = universe.brokers[1].logs
    lists = {
        key: tuple(number for number in now.replicas if number != 1)
        for key, now in universe.partitions().items()
        if key in logs and logs[key].disk is disk
    }
    await universe.reassign(lists)


async def report(universe: Universe, disk: ModelDisk) -> None:
    await universe.ask(
        BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=universe.brokers[1].epoch,
            current_metadata_offset=0,
            offline_log_dirs=(disk.id,),
        )
    )


async def fence(universe: Universe, disk: ModelDisk) -> None:
    epoch = universe.brokers[1].epoch
    universe.brokers[1].end("SIGKILL")
    await universe.ask(
        BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=0, want_fence=True)
    )


@dataclass
class Row:
    """A run.

    Attributes:
        fault: of the disk: "hangs", "is frozen", "fails".
        checkpoint_s: when Kafka's next checkpoint came after it.
        done: what was done, and when after it.
        seen: the longest pause of the partitions led and followed: led bad, led, followed, followed bad.
        lasting_s: of the run.
        crippled: whether the broker does not apply metadata any more at its end.
    """

    fault: str
    checkpoint_s: float
    done: tuple[tuple[float, Deed], ...]
    seen: tuple[str, str, str, str]
    lasting_s: float = 60
    crippled: bool = False


ROWS = {
    "hang, nothing": Row("hangs", 1.0, (), (NEVER, SOON, NEVER, NEVER), lasting_s=29),
    "hang, nothing, for longer: no request handler is left": Row("hangs", 1.0, (), (NEVER, NEVER, LAG, LAG)),
    "errors, nothing": Row("fails", 1.0, (), (SOON, SOON, SOON, LAG)),
    "errors, evicted": Row("fails", 1.0, ((1.5, evict),), (SOON, SOON, SOON, SOON)),
    "hang, cut": Row("hangs", 1.0, ((2.7, cut),), (SOON, SOON, SOON, LAG)),
    "hang, cut and evicted": Row("hangs", 1.0, ((2.7, cut), (3.0, evict)), (SOON, SOON, SOON, SOON)),
    "hang, cut and evicted before a checkpoint": Row(
        "hangs", 4.6, ((2.7, cut), (3.0, evict)), (SOON, SOON, SOON, SOON)
    ),
    "hang, fenced": Row("hangs", 1.0, ((2.7, fence),), (SOON, SOON, SOON, SOON)),
    "freeze, cut and evicted": Row(
        "is frozen", 1.0, ((2.7, cut), (3.0, evict)), (SECONDS, SOON, LAG, SECONDS), lasting_s=35, crippled=True
    ),
    "hang, masked before a checkpoint": Row("hangs", 3.8, ((2.0, mask),), (SOON, SOON, SOON, LAG)),
    "hang, masked after a checkpoint: useless": Row("hangs", 1.0, ((2.0, mask),), (NEVER, NEVER, LAG, LAG)),
    "freeze, masked, reported": Row(
        "is frozen", 4.0, ((2.7, mask), (6.0, report)), (SECONDS, SOON, LAG, LAG), lasting_s=35, crippled=True
    ),
}


def seen(universe: Universe, key: tuple[str, int]) -> str:
    open_ms = universe.now_ms - universe.last_ack_ms[key]
    if open_ms > 5_000:
        return NEVER
    gap_ms = universe.gap_ms[key]
    return SOON if gap_ms < 2_000 else SECONDS if gap_ms < 12_000 else LAG if 24_000 < gap_ms < 40_000 else NEVER


@pytest.mark.parametrize("name", ROWS)
def test_clients_see_what_they_saw_with_real_kafka(name: str) -> None:
    row, loop = ROWS[name], InlineLoop()
    universe = Universe(loop, 7, guarded=False)

    async def main() -> None:
        try:
            await universe.begin()
            broker, disk = universe.brokers[1], universe.brokers[1].disks[0]
            until_ms = (CHECKPOINT_MS - universe.now_ms - 1_700 - round(row.checkpoint_s * 1000)) % CHECKPOINT_MS
            await asyncio.sleep(until_ms / 1000)
            if row.fault == "fails":
                universe.fail(1, 0, None)
            else:
                universe.hang(1, 0, None, frozen=row.fault == "is frozen")
            begun_ms = universe.now_ms
            for at_s, deed in row.done:
                await asyncio.sleep(at_s - (universe.now_ms - begun_ms) / 1000)
                await deed(universe, disk)
            await asyncio.sleep(row.lasting_s - (universe.now_ms - begun_ms) / 1000)
            assert (METADATA in broker.stuck) == row.crippled, universe.notes
        finally:
            await universe.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    found = tuple(seen(universe, key) for key in (LED_BAD, LED, FOLLOWED, FOLLOWED_BAD))
    assert found == row.seen, (universe.gap_ms, universe.notes)
    assert not universe.violations
