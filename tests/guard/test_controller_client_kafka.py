"""What a guard says to real controllers, and what they make of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kjbod.clock import SystemClock, system_random
from kjbod.ids import Uuid
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod_guard.actions import Outcome
from kjbod_guard.controller_client import ControllerClient
from kjbod_guard.ladder import KafkaView
from kjbod_guard.observing import Key, Observed
from kjbod_host.channel import ControllerChannel
from scripts.rig.cluster import Cluster, directory_id, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes


@dataclass
class Line:
    """A client of the controllers, and the metadata that show what came of it."""

    observed: Observed
    controllers: ControllerClient
    changed: asyncio.Event

    async def until(self, holds: Callable[[Observed], bool], timeout_s: float = 30) -> None:
        async with asyncio.timeout(timeout_s):
            while not (self.observed.complete and holds(self.observed)):
                self.changed.clear()
                await self.changed.wait()

    @property
    def epoch(self) -> int:
        assert self.observed.registration is not None
        return self.observed.registration.epoch

    @property
    def fenced(self) -> bool:
        return self.observed.registration is None or self.observed.registration.fenced


@asynccontextmanager
async def line_to(port: int, broker: int) -> AsyncIterator[Line]:
    clock = SystemClock()
    async with asyncio.TaskGroup() as group:
        channels = [ControllerChannel(client_id="kjbod", clock=clock, spawn=group.create_task) for _ in range(2)]
        line = Line(Observed(broker), ControllerClient(broker, channels[0], channels[1], clock), asyncio.Event())

        def committed(batch: Committed) -> None:
            line.observed.committed(batch, clock.monotonic_ms())
            line.changed.set()

        def snapshot(whole: Snapshot) -> None:
            line.observed = line.observed.snapshot(whole)

        follower = MetadataFollower(
            [("127.0.0.1", port)],
            client_id="kjbod-guard-test",
            clock=clock,
            rng=system_random(),
            on_committed=committed,
            on_snapshot=snapshot,
        )
        task = group.create_task(follower.run())
        await line.until(lambda _: follower.leader is not None)
        for channel in channels:
            channel.set_leader(follower.leader)
        yield line
        for channel in channels:
            channel.set_leader(None)
        task.cancel()


async def test_controllers_record_a_report_a_fence_and_a_broker_that_leaves_partitions_and_comes_back(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    cluster = Cluster(tmp_path, processes, kafka=kafka_kit)
    cluster.format_controller()
    cluster.start_controller()
    dirs = [tmp_path / f"b1-d{number}" for number in (1, 2)]
    configs = [cluster.configure_broker(1, dirs), cluster.configure_broker(2, [tmp_path / "b2-d1"])]
    brokers = []
    for number, config in enumerate(configs, start=1):
        cluster.format_broker(config)
        brokers.append(cluster.launch_broker(kafka_kit, config, name=f"broker-{number}"))
    for broker in brokers:
        await asyncio.to_thread(wait_until_serving, broker)
    cluster.create_topic("events", 4, brokers=(2, 1))
    ids = [directory_id(path) for path in dirs]

    async with line_to(cluster.port, 1) as line:
        observed = line.observed
        await line.until(lambda now: {d.directory for d in now.partitions.values()} == set(ids))
        assert all((p.replicas, p.isr, p.leads) == ((2, 1), (2, 1), False) for p in observed.partitions.values())

        # A wrong epoch changes nothing, and is told as what it is.
        offset = observed.offset
        for done in (
            await line.controllers.report(line.epoch + 1, [str(ids[1])]),
            await line.controllers.fence(line.epoch + 1),
        ):
            assert done.outcome is Outcome.FAILED and "STALE_BROKER_EPOCH (77)" in done.reason, done
        assert observed.view(ids[1]) is KafkaView.ONLINE and not line.fenced and observed.offset <= offset + 2

        # A fence is recorded, and the broker, which lives, comes back by its own heartbeat.
        assert (await line.controllers.fence(line.epoch)).outcome is Outcome.DONE
        await line.until(lambda _: line.fenced)
        await line.until(lambda _: not line.fenced)

        # Leadership goes to the first of a list, and back; where it is there already, that is no error.
        await line.until(lambda now: all(1 in p.isr for p in now.partitions.values()))
        names = [("events", number) for number in range(4)]
        for leads, order in ((True, (1, 2)), (False, (2, 1))):
            asked = [await line.controllers.reassign(dict.fromkeys(names, order))]
            asked += [await line.controllers.elect(names) for _ in range(2)]
            assert {done.outcome for answers in asked for done in answers.values()} == {Outcome.DONE}, asked
            await line.until(
                lambda now, leads=leads, order=order: all(  # type: ignore[misc]
                    (p.replicas, p.leads) == (order, leads) for p in now.partitions.values()
                )
            )
        refused = (await line.controllers.elect([("nothing", 0)]))["nothing", 0]
        assert refused.outcome is Outcome.FAILED and "UNKNOWN_TOPIC_OR_PARTITION (3)" in refused.reason

        # A report is recorded, for this directory alone.
        assert (await line.controllers.report(line.epoch, [str(ids[1])])).outcome is Outcome.DONE
        await line.until(lambda now: now.view(ids[1]) is KafkaView.OFFLINE)
        assert observed.view(ids[0]) is KafkaView.ONLINE and not line.fenced

        # The broker leaves what lies there, and comes back in its old place.
        await line.until(lambda now: all(1 in p.isr for p in now.partitions.values() if p.directory == ids[0]))
        left: dict[Key, Uuid] = {key: p.directory for key, p in observed.partitions.items() if p.directory == ids[0]}
        assert left
        observed.follow_evicted(left)
        answers = await line.controllers.reassign({("events", number): (2,) for _, number in left})
        assert {done.outcome for done in answers.values()} == {Outcome.DONE}, answers
        await line.until(lambda now: all(key in now.others for key in left))
        assert all(observed.others[key].replicas == (2,) for key in left)
        answers = await line.controllers.reassign({("events", number): (2, 1) for _, number in left})
        assert {done.outcome for done in answers.values()} == {Outcome.DONE}, answers
        await line.until(lambda now: all(key in now.partitions for key in left) and not now.others)
        await line.until(
            lambda now: all(now.partitions[k].replicas == (2, 1) and not now.partitions[k].adding for k in left)
        )

        # What does not exist is told by partition; what was said often enough is said no more.
        answers = await line.controllers.reassign({("nothing", 0): (1,), ("events", 99): (1,)})
        assert all("UNKNOWN_TOPIC_OR_PARTITION (3)" in done.reason for done in answers.values()), answers
        for _ in range(2):
            await line.controllers.report(line.epoch, [str(ids[1])])
        assert (await line.controllers.report(line.epoch, [str(ids[1])])).outcome is Outcome.REFUSED
